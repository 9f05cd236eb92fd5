"""Hosts for tests: network namespaces on a common bridge. They need Linux, root and iproute2."""

import subprocess
import sys
from pathlib import Path

__all__ = ["Host", "ip"]


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=60)


class Host:
    """A host with one cable to a bridge."""

    def __init__(self, lab: str, address: str) -> None:
        self.address = address
        self._cable = f"{lab}{address[-1]}"  # the end at the bridge
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
        """Drop all packets; the host gets no error."""
        ip("link", "set", self._cable, "nomaster")

    def plug_in(self, bridge: str) -> None:
        ip("link", "set", self._cable, "master", bridge)

    def cut_towards(self, other: "Host") -> None:
        """Drop the packets from this host to another one, but not those back: this host sends them
        to an unused hardware address."""
        self._set_neighbour("replace", other, "lladdr", "02:00:00:00:00:99", "nud", "permanent")

    def heal_towards(self, other: "Host") -> None:
        """End `cut_towards`."""
        self._set_neighbour("delete", other)

    def _set_neighbour(self, action: str, other: "Host", *options: str) -> None:
        namespace = self._namespace
        ip("-n", namespace, "neighbour", action, other.address, *options, "dev", "eth0")

    def popen(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen([*self.inside, *command], stdout=file, stderr=file)

    def http(self, method: str, url: str) -> bytes:
        """Make a request from this host; fails if the status is not 200."""
        program = (
            "import sys, urllib.request as u;"
            "r = u.Request(sys.argv[2], method=sys.argv[1]);"
            "sys.stdout.buffer.write(u.urlopen(r, timeout=30).read())"
        )
        command = [*self.inside, sys.executable, "-c", program, method, url]
        return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout

    @property
    def inside(self) -> list[str]:
        """Prefix of a command that runs on this host.

        Not `ip netns exec`: it copies all mounts, and the copies would keep test disks mounted.
        """
        return ["nsenter", f"--net=/run/netns/{self._namespace}", "--"]
