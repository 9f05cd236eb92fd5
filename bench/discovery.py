"""nsqlookupd with a large cluster: 200 nodes with 1,000 topics, over real sockets.

    python -m bench.discovery [--nodes 200] [--topics 1000] [--lookups 2000]

Prints the time to register, the latency of /lookup and other calls, the delay of a waiting lookup
after a change, and the memory of the process.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection

from bench.procfs import rss_bytes
from penstock.protocol import lookup_v1
from penstock.testing.nsqlookupd import NsqlookupdProcess, RawLookupClient, run_nsqlookupd

__all__ = ["main"]

MILLISECONDS = 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--lookups", type=int, default=2000)
    given = parser.parse_args()
    with run_nsqlookupd() as nsqlookupd:
        before = resident_mb(nsqlookupd)
        nodes, seconds = register(nsqlookupd, given.nodes, given.topics)
        pairs = given.nodes * given.topics
        print(f"{pairs} topics with a channel each: {seconds:.1f} s, {pairs / seconds:.0f}/s")
        print(f"memory: {before:.0f} MB empty, {resident_mb(nsqlookupd):.0f} MB full")
        calls: dict[str, Callable[[int], str]] = {
            "/lookup": lambda n: f"/lookup?topic=topic-{n % given.topics}",
            "/channels": lambda n: f"/channels?topic=topic-{n % given.topics}",
            "/topics": lambda _: "/topics",
        }
        for name, target in calls.items():
            print(f"{name}: {figures(times(nsqlookupd, target, given.lookups))}")
        print(f"/nodes: {figures(times(nsqlookupd, lambda _: '/nodes', 10))}")
        print(f"waiting /lookup, after a change: {figures(wake_times(nsqlookupd, nodes[0]))}")
        print(f"memory: {resident_mb(nsqlookupd):.0f} MB after all that")


def register(
    nsqlookupd: NsqlookupdProcess, nodes: int, topics: int
) -> tuple[list[RawLookupClient], float]:
    """Register every topic with a channel for every node, one node after the other."""
    started = time.perf_counter()
    peers = []
    for number in range(nodes):
        peer = nsqlookupd.node(f"nsqd-{number}.example", hostname=f"nsqd-{number}")
        for topic in range(topics):
            peer.send(lookup_v1.register(f"topic-{topic}", "channel"))
        for _ in range(topics):
            peer.response()
        peers.append(peer)
    return peers, time.perf_counter() - started


def times(nsqlookupd: NsqlookupdProcess, target: Callable[[int], str], count: int) -> list[float]:
    """Seconds of each call, sequentially on one connection, until the response is complete."""
    connection = HTTPConnection(nsqlookupd.http_address, timeout=20)
    taken = []
    for number in range(count):
        started = time.perf_counter()
        connection.request("GET", target(number))
        connection.getresponse().read()
        taken.append(time.perf_counter() - started)
    connection.close()
    return taken


def wake_times(
    nsqlookupd: NsqlookupdProcess, node: RawLookupClient, count: int = 50
) -> list[float]:
    """Seconds from the REGISTER of a new topic to the response of a waiting lookup."""
    taken = []
    for number in range(count):
        answered_at: list[float] = []
        topic = f"new-{number}"
        waiter = threading.Thread(target=lookup_and_wait, args=(nsqlookupd, topic, answered_at))
        waiter.start()
        while b"nsqlookupd_waiting_lookups 1\n" not in nsqlookupd.http("GET", "/metrics").body:
            pass
        started = time.perf_counter()
        node.send(lookup_v1.register(topic))
        waiter.join()
        node.response()
        taken.append(answered_at[0] - started)
    return taken


def lookup_and_wait(nsqlookupd: NsqlookupdProcess, topic: str, answered_at: list[float]) -> None:
    """Look up a topic that does not exist yet."""
    nsqlookupd.http("GET", f"/lookup?topic={topic}&wait=30s")
    answered_at.append(time.perf_counter())


def figures(seconds: list[float]) -> str:
    """Median, 99th percentile and maximum."""
    in_order = sorted(seconds)
    late = in_order[int(len(in_order) * 0.99)]
    return (
        f"median {statistics.median(in_order) * MILLISECONDS:.2f} ms, "
        f"99 % {late * MILLISECONDS:.2f} ms, longest {in_order[-1] * MILLISECONDS:.2f} ms"
    )


def resident_mb(nsqlookupd: NsqlookupdProcess) -> float:
    """Resident memory of the process."""
    return rss_bytes(nsqlookupd.pid) / 1e6


if __name__ == "__main__":
    main()
