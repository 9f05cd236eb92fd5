"""5,000 consumers and 200 publishers on one channel, with one connection each.

    python -m bench.crowd [--consumers 5000] [--publishers 200] [--rate 5000] [--seconds 20]

The publishers keep a steady total rate, however slow nsqd is. Each consumer takes one message at a
time (RDY 1) and finishes it at once. So every message wakes another consumer, and batching does not
help. The program prints the latency of messages, the CPU cost for nsqd, and whether each message
was received once and in time; otherwise the exit code is 1.
"""

import argparse
import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import cycle, islice

from bench import targets
from bench.latency import UNBUFFERED, latencies_of, percentiles_ms, sleep_until, stamped_body
from bench.load import (
    BODY,
    Address,
    Crew,
    LoadError,
    Outcome,
    allow_sockets,
    connect,
    read_some,
    read_until,
)
from bench.nsq import FRAME_BYTES, MAGIC, OK, fin_commands, frame_count, pub
from bench.targets import Server
from penstock.protocol import commands

__all__ = ["main"]

TOPIC, CHANNEL = "crowd", "everyone"

CONSUMING_PROCESSES = 2
QUIET_SECONDS = 5.0
"""A run ends when no message has arrived for this long after the last publish."""


class CrowdOfConsumers:
    """Many consumers in one process, each with one message at a time."""

    def __init__(self, address: Address, connections: int, seconds: float) -> None:
        self._address = address
        self._connections = connections
        self._seconds = seconds

    def prepare(self) -> None:
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}
        opening = MAGIC + commands.identify(UNBUFFERED) + commands.sub(TOPIC, CHANNEL)
        for _ in range(self._connections):
            peer = connect(self._address)
            peer.sendall(opening)
            read_until(peer, OK * 2)
            peer.sendall(commands.rdy(1))
            self._sockets[peer.fileno()] = peer
            self._poll.register(peer, select.EPOLLIN)

    def run(self) -> Outcome:
        latencies_ns: list[int] = []
        started_ns = time.monotonic_ns()
        ends_ns = started_ns + int(self._seconds * 1e9)
        while ready := self._poll.poll(max(0, ends_ns - time.monotonic_ns()) / 1e9 + QUIET_SECONDS):
            for fd, _ in ready:
                latencies_ns += self._receive(fd)
        return Outcome(len(latencies_ns), started_ns, time.monotonic_ns(), latencies_ns)

    def _receive(self, fd: int) -> list[int]:
        peer = self._sockets[fd]
        frames = self._tails.pop(fd, b"") + read_some(peer)
        now_ns = time.monotonic_ns()
        count = frame_count(frames)
        if count:
            peer.sendall(fin_commands(frames, count))
        if tail := frames[count * FRAME_BYTES :]:
            self._tails[fd] = tail
        return latencies_of(frames, count, now_ns)


class CrowdOfPublishers:
    """Many publishers in one process that take turns at a common rate."""

    def __init__(self, address: Address, connections: int, *, rate: int, messages: int) -> None:
        self._address = address
        self._connections = connections
        self._interval_ns = 1_000_000_000 // rate
        self._messages = messages

    def prepare(self) -> None:
        self._sockets = [connect(self._address) for _ in range(self._connections)]
        for peer in self._sockets:
            peer.sendall(MAGIC)

    def run(self) -> Outcome:
        head = pub(TOPIC, BODY)[: -len(BODY)]
        replies = 0
        started_ns = due_ns = time.monotonic_ns()
        for peer in islice(cycle(self._sockets), self._messages):
            sleep_until(due_ns)
            peer.sendall(head + stamped_body())
            due_ns += self._interval_ns
            # The response to the previous publish: waiting for this one would slow down with nsqd.
            with suppress(BlockingIOError):
                replies += len(peer.recv(1024, socket.MSG_DONTWAIT))
        finished_ns = time.monotonic_ns()
        while replies < len(OK) * self._messages:
            for peer in self._sockets:
                with suppress(BlockingIOError):
                    replies += len(peer.recv(1024, socket.MSG_DONTWAIT))
        if replies > len(OK) * self._messages:
            raise LoadError("a publish was not answered with OK")
        return Outcome(self._messages, started_ns, finished_ns)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a run."""

    published: int
    rate: float
    latencies_ns: Sequence[int]
    cpu_share: float
    rss_mb: float
    channel: dict[str, int]
    p99_ms_max: float

    def problems(self) -> list[str]:
        """Violated expectations."""
        figures = {name: self.channel[name] for name in ("depth", "in_flight_count")}
        figures |= {name: self.channel[name] for name in ("requeue_count", "timeout_count")}
        found = [f"{name} is {value}" for name, value in figures.items() if value]
        if len(self.latencies_ns) != self.published:
            found.append(f"{len(self.latencies_ns)} of {self.published} messages came")
        elif percentiles_ms(self.latencies_ns)["p99_ms"] > self.p99_ms_max:
            found.append(f"p99 is over {self.p99_ms_max:g} ms")
        return found


def main(args: Sequence[str] | None = None) -> int:
    """Measure and print; returns whether all expectations hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--consumers", type=int, default=5000)
    parser.add_argument("--publishers", type=int, default=200)
    parser.add_argument("--rate", type=int, default=5000, help="total messages per second")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--p99-ms", type=float, default=100, help="maximum p99 latency in ms")
    given = parser.parse_args(args)
    allow_sockets(given.consumers + given.publishers)
    with targets.running(targets.penstock()) as server:
        result = _measure(server, given)
    late_ms = percentiles_ms(result.latencies_ns)
    print(f"{given.consumers} consumers, {given.publishers} publishers, load {_load_average()}")
    print(f"published {result.published:,} at {result.rate:,.0f}/s")
    print(
        "latency " + ", ".join(f"{name[:-3]} {ms:.2f} ms" for name, ms in late_ms.items()), end=""
    )
    print(f", longest {max(result.latencies_ns) / 1e6:.2f} ms")
    print(f"nsqd: {result.cpu_share:.0%} of a core, {result.rss_mb:.0f} MB")
    for problem in result.problems():
        print(f"WRONG: {problem}")
    return 1 if result.problems() else 0


def _measure(server: Server, given: argparse.Namespace) -> Result:
    server.wire.create(server.at, TOPIC, [CHANNEL])
    share, rest = divmod(given.consumers, CONSUMING_PROCESSES)
    crowds = [share + (number < rest) for number in range(CONSUMING_PROCESSES)]
    consumers = [CrowdOfConsumers(server.at.tcp, count, given.seconds) for count in crowds]
    messages = given.rate * given.seconds
    publishers = CrowdOfPublishers(
        server.at.tcp, given.publishers, rate=given.rate, messages=messages
    )
    with Crew([publishers, *consumers]) as crew:
        cpu_before = server.cpu_seconds()
        published, *consumed = crew.go()
        cpu_seconds = server.cpu_seconds() - cpu_before
        seconds = (published.finished_ns - published.started_ns) / 1e9
        return Result(
            published.messages,
            published.messages / seconds,
            [latency for outcome in consumed for latency in outcome.latencies_ns],
            cpu_seconds / seconds,
            server.rss_bytes() / 1e6,
            _channel_stats(server.at.http),
            given.p99_ms,
        )


def _channel_stats(http: Address) -> dict[str, int]:
    connection = HTTPConnection(*http, timeout=10)
    query = f"/stats?format=json&topic={TOPIC}&include_clients=false"
    connection.request("GET", query)
    channel: dict[str, int] = json.load(connection.getresponse())["topics"][0]["channels"][0]
    connection.close()
    return channel


def _load_average() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LoadError as error:
        sys.exit(str(error))
