"""The brokers of the demo: nsqlookupd, two nsqds and nsqadmin."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.testing.nsqadmin import NsqadminProcess, run_nsqadmin
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd

__all__ = ["Cluster", "running_cluster"]

NODES = 2


@dataclass(frozen=True)
class Cluster:
    """The running processes."""

    nsqlookupd: NsqlookupdProcess
    nsqds: list[NsqdProcess]
    nsqadmin: NsqadminProcess

    @property
    def http_addresses(self) -> list[str]:
        return [nsqd.http_address for nsqd in self.nsqds]

    def create_topic(self, topic: str) -> None:
        """Create a topic on every node."""
        for nsqd in self.nsqds:
            nsqd.post(f"/topic/create?topic={topic}")

    def next_seqs(self, topic: str) -> dict[str, int]:
        """Next sequence number of a topic, by log id."""
        logs = [nsqd.http("GET", f"/topic/log?topic={topic}").json() for nsqd in self.nsqds]
        return {log["log_id"]: log["next_seq"] for log in logs}

    def depth(self, topic: str, channel: str) -> int | None:
        """Depth of a channel on all nodes; None if it is missing, or a node is unreachable."""
        depths = [_depth(nsqd, topic, channel) for nsqd in self.nsqds]
        known = [depth for depth in depths if depth is not None]
        return sum(known) if len(known) == len(depths) else None


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start all processes. They are stopped at the end, or killed after an error."""
    with ExitStack() as stack:
        nsqlookupd = stack.enter_context(run_nsqlookupd("--broadcast-address=127.0.0.1"))
        nsqds = [
            stack.enter_context(_nsqd(node, folder, nsqlookupd)) for node in range(1, NODES + 1)
        ]
        flag = f"--lookupd-http-address={nsqlookupd.http_address}"
        nsqadmin = stack.enter_context(run_nsqadmin(flag))
        yield Cluster(nsqlookupd, nsqds, nsqadmin)


@contextmanager
def _nsqd(node: int, folder: Path, nsqlookupd: NsqlookupdProcess) -> Iterator[NsqdProcess]:
    """An nsqd with fixed ports, which it keeps after a restart."""
    data_path = folder / f"nsqd-{node}"
    data_path.mkdir()
    tcp_port, http_port = _free_ports(2)
    flags = (
        f"--node-id={node}",
        f"--tcp-address=127.0.0.1:{tcp_port}",
        f"--http-address=127.0.0.1:{http_port}",
        f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
        "--broadcast-address=127.0.0.1",
        "--retention-time=24h",
    )
    with run_nsqd(*flags, data_path=data_path) as nsqd:
        yield nsqd


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def _depth(nsqd: NsqdProcess, topic: str, channel: str) -> int | None:
    try:
        stats = nsqd.http("GET", f"/stats?format=json&topic={topic}&channel={channel}").json()
    except OSError:  # the node is down
        return None
    channels = [each for found in stats["topics"] for each in found["channels"]]
    return channels[0]["depth"] if channels else None
