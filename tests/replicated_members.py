"""Members of a replicated node as processes, for tests of what users see of replication."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock.protocol import commands
from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import EtcdProcess, run_etcd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until

__all__ = ["Members", "fetch", "run_members"]


def fetch(address: str, path: str) -> tuple[int, str]:
    """Status and body of a response; status 0 if there is none."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Members:
    """The members a, b and c of node n1 of the cluster shop."""

    def __init__(self, etcd: EtcdProcess, folder: Path, flags: tuple[str, ...]) -> None:
        self.etcd = etcd
        self.tcp: dict[str, str] = {}
        self.http: dict[str, str] = {}
        self._folder = folder
        self._flags = flags
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        flags = [
            f"--data-path={self.folder(name)}",
            f"--tcp-address={self.tcp[name]}",
            f"--http-address={self.http[name]}",
            "--broadcast-address=127.0.0.1",
            "--cluster=shop",
            "--node=n1",
            f"--member={name}",
            f"--etcd={self.etcd.url}",
            "--leader-timeout=2s",
            "--replica-timeout=2s",
            *self._flags,
        ]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.nsqd", *flags], stdout=log, stderr=log
            )

    def folder(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for name in tuple(self._processes):
            self.kill(name)

    def status(self, name: str) -> dict[str, Any]:
        """The answer to GET /replication; empty if there is none."""
        code, body = fetch(self.http[name], "/replication")
        answer: dict[str, Any] = json.loads(body) if code == 200 else {}
        return answer

    def leader(self) -> str:
        """The running member that leads, once there is one."""

        def probe() -> str:
            ready = [each for each in self._processes if fetch(self.http[each], "/ready")[0] == 200]
            return ready[0] if ready else ""

        return wait_until(probe, "a leader")

    def wait_in_sync(self, *names: str) -> str:
        """Wait until these members are in sync; returns the leader."""
        leader = self.leader()
        wait_until(
            lambda: self.status(leader).get("in_sync") == sorted(names), f"{names} to be in sync"
        )
        return leader

    def publish(self, topic: str, *bodies: bytes) -> None:
        with RawClient(self.tcp[self.leader()]) as producer:
            for body in bodies:
                producer.call(commands.pub(topic, body))


@contextmanager
def run_members(folder: Path, *flags: str, started: str = "abc") -> Iterator[Members]:
    """Run etcd and members, and kill them at the end."""
    with ExitStack() as stack:
        members = Members(stack.enter_context(run_etcd()), folder, flags)
        for name in "abc":
            members.tcp[name] = stack.enter_context(reserved_address())
            members.http[name] = stack.enter_context(reserved_address())
        stack.callback(members.kill_all)
        for name in started:
            members.start(name)
        yield members
