"""A replicated node as processes for tests: etcd and the members, each on fixed ports.

    with run_replicated_node() as node:
        leader = node.wait_for_leader()
        node.wait_in_sync(3)
        node.members[leader].publish("orders", b"one")
        node.kill(leader)
        other = node.wait_for_leader(not_=leader)

At the end of the block the members are stopped cleanly, or killed if the test failed. A traceback
in a log, damage in a data path, and logs that differ between members in sync fail the test.
"""

import asyncio
import base64
import http.client
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.admin_api.replicated_nodes import ReplicatedNodes
from penstock.net.http_client.client import HttpClient
from penstock.replication.etcd_client import EtcdConfig
from penstock.storage.layout import TOPICS_NAME, maybe_segment_seq
from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import EtcdProcess, run_etcd
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

__all__ = [
    "CLUSTER",
    "FAST_TAKEOVER",
    "NODE",
    "MemberProcess",
    "ReplicatedNode",
    "run_replicated_node",
]

CLUSTER = "shop"
NODE = "n1"

# Short timeouts, so that tests do not wait for long.
FAST_TAKEOVER = ("--leader-timeout=2s", "--replica-timeout=2s")

_STATUS_SECONDS = 2.0


class MemberProcess(NsqdProcess):
    """A member of a replicated node. It restarts on the same ports and the same data path."""

    def __init__(
        self,
        name: str,
        addresses: tuple[str, str],
        data_path: Path,
        flags: Sequence[str],
        log_fd: int,
        prefix: Sequence[str] = (),
        program: Sequence[str] = (),
    ) -> None:
        """`addresses` are those of TCP and HTTP. `prefix` starts a command in another network
        namespace."""
        self.name = name
        self.is_suspended = False
        self._prefix = prefix
        tcp_address, http_address = addresses
        broadcast_address = tcp_address.rpartition(":")[0]
        fixed = [
            f"--tcp-address={tcp_address}",
            f"--http-address={http_address}",
            f"--broadcast-address={broadcast_address}",
            f"--member={name}",
        ]
        super().__init__(data_path, [*fixed, *flags], log_fd, program)
        self.tcp_address, self.http_address = addresses

    def suspend(self) -> None:
        """Send SIGSTOP: connections stay open, and nothing is answered."""
        self.send_signal(signal.SIGSTOP)
        self.is_suspended = True

    def resume(self) -> None:
        """Send SIGCONT."""
        self.is_suspended = False
        self.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        super().kill()
        self.is_suspended = False

    def get(self, target: str) -> tuple[int, bytes] | None:
        """Status and body of a GET; None if the member does not answer soon."""
        if not self.is_running or self.is_suspended:
            return None
        connection = http.client.HTTPConnection(self.http_address, timeout=_STATUS_SECONDS)
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    @property
    def is_leading(self) -> bool:
        """Whether `/ready` of this member is OK: only a leader that serves clients answers so."""
        return self.get("/ready") == (200, b"OK")

    def status(self) -> dict[str, Any] | None:
        """The response to `GET /replication`; None if the member does not answer."""
        answer = self.get("/replication")
        if answer is None or answer[0] != 200:
            return None
        found: dict[str, Any] = json.loads(answer[1])
        return found

    @property
    def whole_log(self) -> str:
        """The log of all its processes."""
        if self._log_fd is None:
            return self._last_log
        size = os.fstat(self._log_fd).st_size
        return os.pread(self._log_fd, size, 0).decode(errors="replace")

    def check_log(self) -> None:
        log = self.whole_log
        assert "Traceback" not in log, f"member {self.name} has a bug:\n{log}"

    def segments(self) -> dict[str, dict[int, bytes]]:
        """Content of all segments, by topic and first number."""
        found: dict[str, dict[int, bytes]] = {}
        for path in sorted((self.data_path / TOPICS_NAME).glob("*/*")):
            first_seq = maybe_segment_seq(path.name)
            if first_seq is not None:
                found.setdefault(path.parent.name, {})[first_seq] = path.read_bytes()
        return found

    def _command(self) -> list[str]:
        return [*self._prefix, *super()._command()]

    def _is_ready(self) -> bool:
        """Whether HTTP is served: leaders and followers serve it, but only leaders serve TCP."""
        if "HTTP: listening on" in self.log:
            return True
        exit_code = self._running().poll()
        if exit_code is not None:
            raise self.start_error(self.program, exit_code, self.log)
        return False


class ReplicatedNode:
    """Several members and their etcd, started by `run_replicated_node`."""

    def __init__(self, etcd: EtcdProcess, members: dict[str, MemberProcess]) -> None:
        self.etcd = etcd
        self.members = members

    # Who leads.

    def leader(self, *, rather_not: str = "") -> str | None:
        """The member that leads in the latest epoch; `rather_not` only if no other one leads. A
        leader that was cut off does not know yet that another one has taken over."""
        epochs = {}
        for name, member in self.members.items():
            if member.is_leading and (status := member.status()) is not None:
                epochs[name] = name != rather_not, status.get("epoch", 0)
        return max(epochs, key=epochs.__getitem__, default=None)

    def wait_for_leader(self, *, not_: str = "") -> str:
        """Wait until a member other than `not_` leads."""

        def found() -> str:
            leader = self.leader(rather_not=not_)
            return "" if leader in (None, not_) else str(leader)

        try:
            return wait_until(found, "a leader")
        except AssertionError as timeout:
            raise AssertionError(f"{timeout}\n{self.logs()}") from None

    @property
    def led_by(self) -> MemberProcess:
        """The leader; waits for it."""
        return self.members[self.wait_for_leader()]

    def status(self, name: str) -> dict[str, Any]:
        """What `/replication` of a member shows; waits for an answer."""
        shown = wait_until(self.members[name].status, f"{name} to answer")
        assert shown is not None
        return shown

    def in_sync(self) -> list[str]:
        """The members that the leader shows as in sync; empty if there is no leader."""
        leader = self.leader()
        status = self.members[leader].status() if leader is not None else None
        return list(status.get("in_sync", ())) if status is not None else []

    def wait_in_sync(self, count: int) -> str:
        """Wait until exactly this many members are in sync; returns the leader."""

        def found() -> str:
            leader = self.leader()
            status = self.members[leader].status() if leader is not None else None
            return str(leader) if status and len(status.get("in_sync", ())) == count else ""

        try:
            return wait_until(found, f"{count} members in sync")
        except AssertionError as timeout:
            raise AssertionError(f"{timeout}\n{self.logs()}") from None

    def prefer(self, name: str) -> None:
        """Make a member lead now, and after each takeover as soon as it is in sync, as `penstock
        cluster move` does. Waits until it leads with all members in sync."""
        http_client = HttpClient(connect_timeout_seconds=10.0, request_timeout_seconds=10.0)
        nodes = ReplicatedNodes(EtcdConfig((self.etcd.url,)), CLUSTER, http_client)
        asyncio.run(nodes.move(NODE, name))
        wait_until(lambda: self.leader() == name, f"{name} to lead")
        self.wait_in_sync(len(self.members))

    # Faults.

    def kill(self, *names: str) -> None:
        """Kill members (SIGKILL); all of them, if none is named."""
        for name in names or tuple(self.members):
            if self.members[name].is_running:
                os.kill(self.members[name].pid, signal.SIGKILL)
        for name in names or tuple(self.members):
            self.members[name].kill()

    def expire_lease(self, name: str) -> None:
        """Delete the entry of a killed member from etcd now, as etcd does after
        --leader-timeout."""
        key = f"/penstock/{CLUSTER}/{NODE}/alive/{name}"
        self.etcd.call("/v3/kv/deleterange", key=base64.b64encode(key.encode()).decode())

    def suspend(self, name: str) -> None:
        """Send SIGSTOP to a member."""
        self.members[name].suspend()

    def resume(self, name: str) -> None:
        """Send SIGCONT to a member."""
        self.members[name].resume()

    def terminate(self, name: str) -> None:
        """Stop a member cleanly."""
        self.members[name].terminate()

    def start(self, *names: str) -> None:
        """Start members that are not running; all of them, if none is named."""
        for name in names or tuple(self.members):
            if not self.members[name].is_running:
                self.members[name].start()

    def replace_disk(self, name: str) -> None:
        """Delete everything in the data path of a member. It must not be running."""
        member = self.members[name]
        assert not member.is_running, f"{name} is running"
        for found in member.data_path.iterdir():
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink()

    # The end.

    def stop(self) -> None:
        """Stop all members cleanly, and check their logs, their data paths, and that all copies in
        sync are equal."""
        # A test may run further members itself.
        in_sync = [name for name in self.in_sync() if name in self.members]
        for member in self.members.values():
            if member.is_running:
                member.close_clients()
                member.send_signal(signal.SIGTERM)
        for name, member in self.members.items():
            if member.is_running:
                exit_code = member.wait()
                assert exit_code == 0, f"{name} ended with exit code {exit_code}:\n{member.log}"
        self.check(in_sync)

    def check(self, in_sync: Sequence[str]) -> None:
        """Check the logs, the data paths, and that the copies of these members are equal. No member
        must be running."""
        for member in self.members.values():
            member.check()
        copies = {name: self.members[name].segments() for name in in_sync}
        for name, copy in copies.items():
            for other, other_copy in copies.items():
                if name < other:
                    _check_equal(name, copy, other, other_copy)

    def logs(self) -> str:
        """The last lines of all members' logs without HTTP requests, for a failed test."""
        shown = []
        for name, member in self.members.items():
            lines = [line for line in member.whole_log.splitlines() if " GET /" not in line]
            shown.append("\n".join([f"--- {name}:", *lines[-40:]]))
        return "\n".join(shown)

    def release(self) -> None:
        """Kill everything and release the log files."""
        for member in self.members.values():
            with suppress(ProcessLookupError):
                member.release()


def _check_equal(
    name: str,
    copy: dict[str, dict[int, bytes]],
    other: str,
    other_copy: dict[str, dict[int, bytes]],
) -> None:
    """Fail if two copies differ. One may lack the oldest segments, which retention has deleted."""
    assert set(copy) == set(other_copy), (name, sorted(copy), other, sorted(other_copy))
    for topic, segments in copy.items():
        others = other_copy[topic]
        first = max(min(segments, default=0), min(others, default=0))
        for first_seq in sorted(set(segments) | set(others)):
            if first_seq >= first:
                ours, theirs = segments.get(first_seq), others.get(first_seq)
                assert ours == theirs, (
                    f"{topic}: segment {first_seq} differs: {name} has {_size(ours)} bytes, "
                    f"{other} has {_size(theirs)}"
                )


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)


@contextmanager
def run_replicated_node(
    members: Sequence[str] = ("a", "b", "c"),
    flags: Sequence[str] = FAST_TAKEOVER,
    *,
    data_paths: Mapping[str, Path] | None = None,
    program: Sequence[str] = (),
) -> Iterator[ReplicatedNode]:
    """Run etcd and these members for the duration of a block, on 127.0.0.1. The block begins when
    one of them leads and all are in sync. `data_paths` are those of some members; the others have
    temporary ones. `program` replaces the program at the start of each command."""
    with ExitStack() as stack:
        etcd = stack.enter_context(run_etcd())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="members-")))
        common = (f"--cluster={CLUSTER}", f"--node={NODE}", f"--etcd={etcd.url}")
        processes = {}
        for name in members:
            addresses = (
                stack.enter_context(reserved_address()),
                stack.enter_context(reserved_address()),
            )
            log_file = stack.enter_context(tempfile.TemporaryFile())
            data_path = (data_paths or {}).get(name, folder / name)
            data_path.mkdir(exist_ok=True)
            processes[name] = MemberProcess(
                name, addresses, data_path, [*common, *flags], log_file.fileno(), program=program
            )
        node = ReplicatedNode(etcd, processes)
        stack.callback(node.release)
        node.start()
        node.wait_for_leader()
        node.wait_in_sync(len(members))
        yield node
        node.stop()
