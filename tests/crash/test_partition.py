"""nsqlookupd's registry after a network partition.

Each host is a network namespace on a common bridge. A partition drops packets without notice, as if
a cable were pulled. It needs Linux, root and iproute2.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.crash.hosts import Host, ip

from penstock.testing.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(400)]

# Deadline for a correct registry after the partition ends.
HEALED_SECONDS = 60.0

# nsqd notices the partition by a PING: sent every 15 s, with a timeout of 1 s.
NOTICED_SECONDS = 60.0

LOOKUPD, BUSY, QUIET, NEAR = (f"10.213.0.{number}" for number in range(1, 5))


class Lab:
    """A bridge with four hosts: an nsqlookupd and three nsqds."""

    def __init__(self, name: str, path: Path) -> None:
        self.bridge = f"{name}br"
        self.hosts = [Host(name, address) for address in (LOOKUPD, BUSY, QUIET, NEAR)]
        self.lookupd, self.busy, self.quiet, self.near = self.hosts
        self._path = path

    def start(self, stack: ExitStack) -> None:
        self._run(stack, self.lookupd, "nsqlookupd", "--http-address=0.0.0.0:4161")
        for host in (self.busy, self.quiet, self.near):
            self._run(
                stack,
                host,
                "nsqd",
                f"--broadcast-address={host.address}",
                f"--lookupd-tcp-address={LOOKUPD}:4160",
                f"--data-path={self._data_path(host)}",
            )

    def log_of(self, host: Host) -> str:
        return self._log(host).read_text(encoding="utf-8")

    def registry(self) -> dict[str, list[str]]:
        """Topics of each producer that nsqlookupd lists, by broadcast address."""
        nodes = json.loads(self.lookupd.http("GET", "http://127.0.0.1:4161/nodes"))["producers"]
        registry: dict[str, list[str]] = {}
        for node in nodes:
            registry.setdefault(node["broadcast_address"], []).append(
                ",".join(sorted(node["topics"]))
            )
        return registry

    def entries_of(self, address: str) -> int:
        """Number of registrations of a node, tombstoned ones included."""
        debug = json.loads(self.lookupd.http("GET", "http://127.0.0.1:4161/debug"))
        return sum(each["broadcast_address"] == address for each in debug.get("client::", []))

    def _run(self, stack: ExitStack, host: Host, program: str, *flags: str) -> None:
        command = (sys.executable, "-m", f"penstock.cli.{program}", *flags)
        process = host.popen(*command, log=self._log(host))
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        wait_until(lambda: self.log_of(host).count(": listening on ") == 2, program)

    def _data_path(self, host: Host) -> Path:
        path = self._path / host.address
        path.mkdir()
        return path

    def _log(self, host: Host) -> Path:
        return self._path / f"{host.address}.log"


@contextmanager
def cabled(name: str, path: Path) -> Iterator[Lab]:
    lab = Lab(name, path)
    with ExitStack() as stack:
        ip("link", "add", lab.bridge, "type", "bridge")
        stack.callback(ip, "link", "delete", lab.bridge)
        ip("link", "set", lab.bridge, "up")
        for host in lab.hosts:
            stack.callback(host.tear_down)
            host.set_up(lab.bridge)
        yield lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        # `make test` installs iproute2.
        pytest.skip("network namespaces need Linux, root and iproute2")
    name = f"pn{os.getpid() % 100_000}"
    with ExitStack() as stack:
        try:
            lab = stack.enter_context(cabled(name, tmp_path))
        except subprocess.CalledProcessError as failure:
            # Containers can forbid namespaces even to root.
            pytest.skip(f"cannot create network namespaces:  {failure.stderr.strip()}")
        lab.start(stack)
        yield lab


def make_topic(host: Host, topic: str) -> None:
    host.http("POST", f"http://127.0.0.1:4151/topic/create?topic={topic}")


def delete_topic(host: Host, topic: str) -> None:
    host.http("POST", f"http://127.0.0.1:4151/topic/delete?topic={topic}")


def test_the_registry_is_correct_after_a_partition(lab: Lab) -> None:
    """One of the partitioned nodes notices at once, because its topics change; the other by its
    PING.
    """
    cut_off = (lab.busy, lab.quiet)
    make_topic(lab.busy, "stays")
    make_topic(lab.busy, "goes")
    make_topic(lab.quiet, "stays")
    make_topic(lab.near, "elsewhere")
    whole = {BUSY: ["goes,stays"], QUIET: ["stays"], NEAR: ["elsewhere"]}
    wait_until(lambda: whole == lab.registry(), "all nodes to register")

    for host in cut_off:
        host.pull_cable()
    delete_topic(lab.busy, "goes")
    make_topic(lab.busy, "comes")
    make_topic(lab.near, "meanwhile")
    wait_until(
        lambda: all("timed out" in lab.log_of(host) for host in cut_off),
        "both nodes to notice",
        seconds=NOTICED_SECONDS,
    )
    make_topic(lab.quiet, "comes")
    for host in cut_off:
        host.plug_in(lab.bridge)

    healed = {BUSY: ["comes,stays"], QUIET: ["comes,stays"], NEAR: ["elsewhere,meanwhile"]}
    wait_until(lambda: healed == lab.registry(), "the registry", seconds=HEALED_SECONDS)
    assert [1, 1, 1] == [lab.entries_of(address) for address in (BUSY, QUIET, NEAR)]
