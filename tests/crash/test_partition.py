"""Hosts that cannot reach each other for a while, and what nsqlookupd knows afterwards.

Each host is a network namespace of the kernel, joined to the others by a bridge, so that a cable
can be pulled: packets are lost, and nobody is told. That takes Linux, root, and iproute2.
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

from penstock.testing.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(400)]

# The registry has to be right so soon after a cable is back.
HEALED_SECONDS = 60.0

# nsqd finds out with its next PING, which comes every 15 s and has a second to be answered.
NOTICED_SECONDS = 60.0

LOOKUPD, BUSY, QUIET, NEAR = (f"10.213.0.{number}" for number in range(1, 5))


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=60)


class Host:
    """A host on the bridge of the lab."""

    def __init__(self, lab: str, address: str) -> None:
        self.address = address
        self._cable = f"{lab}{address[-1]}"  # its end at the bridge
        self._namespace = f"{lab}-{address[-1]}"

    def set_up(self, bridge: str) -> None:
        ip("netns", "add", self._namespace)
        ip("link", "add", self._cable, "type", "veth", "peer", "eth0", "netns", self._namespace)
        ip("link", "set", self._cable, "master", bridge, "up")
        ip("-n", self._namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", self._namespace, "link", "set", device, "up")

    def tear_down(self) -> None:
        subprocess.run(["ip", "netns", "delete", self._namespace], check=False, timeout=120)

    def pull_cable(self) -> None:
        """From now on packets are lost, and the host sees nothing of it."""
        ip("link", "set", self._cable, "nomaster")

    def plug_in(self, bridge: str) -> None:
        ip("link", "set", self._cable, "master", bridge)

    def popen(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen([*self._inside, *command], stdout=file, stderr=file)

    def http(self, method: str, url: str) -> bytes:
        """Makes a request from this host, which must succeed."""
        program = (
            "import sys, urllib.request as u;"
            "r = u.Request(sys.argv[2], method=sys.argv[1]);"
            "sys.stdout.buffer.write(u.urlopen(r, timeout=30).read())"
        )
        command = [*self._inside, sys.executable, "-c", program, method, url]
        return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout

    @property
    def _inside(self) -> list[str]:
        """What goes before a command. Not `ip netns exec`, in whose copy of all mounts the disk of
        a test beside us would stay mounted."""
        return ["nsenter", f"--net=/run/netns/{self._namespace}", "--"]


class Lab:
    """A bridge with an nsqlookupd and three nsqds, each a host of its own."""

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
        """The topics of each node, with an entry for every producer that nsqlookupd knows."""
        nodes = json.loads(self.lookupd.http("GET", "http://127.0.0.1:4161/nodes"))["producers"]
        registry: dict[str, list[str]] = {}
        for node in nodes:
            registry.setdefault(node["broadcast_address"], []).append(
                ",".join(sorted(node["topics"]))
            )
        return registry

    def entries_of(self, address: str) -> int:
        """How often nsqlookupd has a node, in whatever state."""
        debug = json.loads(self.lookupd.http("GET", "http://127.0.0.1:4161/debug"))
        return sum(each["broadcast_address"] == address for each in debug.get("client::", []))

    def _run(self, stack: ExitStack, host: Host, program: str, *flags: str) -> None:
        command = (sys.executable, "-m", f"penstock.cli.{program}", *flags)
        process = host.popen(*command, log=self._log(host))
        stack.callback(process.wait, 10)
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
        # Only the system's administrator may make networks; `make test` installs iproute2.
        pytest.skip("network namespaces take Linux, root and iproute2")
    name = f"pn{os.getpid() % 100_000}"
    with ExitStack() as stack:
        try:
            lab = stack.enter_context(cabled(name, tmp_path))
        except subprocess.CalledProcessError as failure:
            # A container can keep this even from root, and what is tested is nsqd, not the host.
            pytest.skip(f"no network namespaces here: {failure.stderr.strip()}")
        lab.start(stack)
        yield lab


def make_topic(host: Host, topic: str) -> None:
    host.http("POST", f"http://127.0.0.1:4151/topic/create?topic={topic}")


def delete_topic(host: Host, topic: str) -> None:
    host.http("POST", f"http://127.0.0.1:4151/topic/delete?topic={topic}")


def test_the_registry_is_right_soon_after_a_partition(lab: Lab) -> None:
    """One of those cut off has something to tell at once; the other finds out by its PING."""
    cut_off = (lab.busy, lab.quiet)
    make_topic(lab.busy, "stays")
    make_topic(lab.busy, "goes")
    make_topic(lab.quiet, "stays")
    make_topic(lab.near, "elsewhere")
    whole = {BUSY: ["goes,stays"], QUIET: ["stays"], NEAR: ["elsewhere"]}
    wait_until(lambda: whole == lab.registry(), "all to register")

    for host in cut_off:
        host.pull_cable()
    delete_topic(lab.busy, "goes")
    make_topic(lab.busy, "comes")
    make_topic(lab.near, "meanwhile")
    wait_until(
        lambda: all("timed out" in lab.log_of(host) for host in cut_off),
        "them to notice",
        seconds=NOTICED_SECONDS,
    )
    make_topic(lab.quiet, "comes")
    for host in cut_off:
        host.plug_in(lab.bridge)

    healed = {BUSY: ["comes,stays"], QUIET: ["comes,stays"], NEAR: ["elsewhere,meanwhile"]}
    wait_until(lambda: healed == lab.registry(), "the registry", seconds=HEALED_SECONDS)
    assert [1, 1, 1] == [lab.entries_of(address) for address in (BUSY, QUIET, NEAR)]
