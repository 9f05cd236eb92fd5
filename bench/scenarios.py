"""What is measured. Each scenario gets a server that was just started and is its own.

To add one: write a function that puts load on a `Server` and returns the figures of each row it
fills, and name it in SCENARIOS. If its figures have a bound, add that to `bench.goals`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Figures
from bench.latency import (
    UNBUFFERED,
    PacedPublisher,
    RoundTrips,
    TimedReader,
    TimingConsumer,
    percentiles_ms,
)
from bench.load import Consumer, Crew, Load, Outcome
from bench.nsq import Nsq, http_publisher
from bench.targets import Server, Target

__all__ = ["SCENARIOS", "Scenario", "row_titles"]

TOPIC = "load"
CHANNEL = "readers"
BATCH = 200
PUBLISHERS = 2
READERS = 2
FANOUT = tuple(f"channel{n}" for n in range(10))
PACE = 4_000
ROUND_TRIP_SECONDS_MAX = 3.0
"""An nsqd that buffers its output takes 250 ms for each: a dozen of those are enough to see it."""

IDLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scenario:
    """A measurement that fills one or more rows of the table."""

    name: str
    rows: Mapping[str, str]
    """Key and title of each row."""
    run: Callable[[Server, int], Mapping[str, Figures]]
    """Puts `count` messages through a server; the figures, by row."""
    count: int
    quick_count: int
    nsq_only: bool = False

    def fits(self, target: Target) -> bool:
        return not self.nsq_only or isinstance(target.wire, Nsq)


def publish_batches(server: Server, count: int) -> Mapping[str, Figures]:
    return {"mpub": _publish(server, count).figures()}


def consume(server: Server, count: int) -> Mapping[str, Figures]:
    server.wire.create(server.at, TOPIC, [CHANNEL])
    _publish(server, count)
    return {"consume": _drain(server, count).figures()}


def publish_singles(server: Server, count: int) -> Mapping[str, Figures]:
    publisher = server.wire.publisher(server.at, TOPIC, connections=4, requests=count // 4, batch=1)
    return {"pub": _drive(server, [publisher]).figures()}


def publish_http(server: Server, count: int) -> Mapping[str, Figures]:
    publisher = http_publisher(server.at, TOPIC, connections=32, requests=count // 32)
    return {"http": _drive(server, [publisher]).figures()}


def fan_out(server: Server, count: int) -> Mapping[str, Figures]:
    """Publishing and all deliveries at once. A delivery is what counts as a message here."""
    server.wire.create(server.at, TOPIC, FANOUT)
    published = count // len(FANOUT)
    publisher = server.wire.publisher(
        server.at, TOPIC, connections=1, requests=published // BATCH, batch=BATCH
    )
    readers = [server.wire.reader(server.at, TOPIC, channel) for channel in FANOUT]
    consumer = Consumer(readers, published * len(FANOUT))
    return {"fanout": _drive(server, [consumer, publisher]).figures(consumer.messages)}


def backlog(server: Server, count: int) -> Mapping[str, Figures]:
    """Memory is what the server has ever held, so the drain's includes the publish's."""
    server.wire.create(server.at, TOPIC, [CHANNEL])
    published = _publish(server, count).figures()
    return {"backlog-publish": published, "backlog-drain": _drain(server, count).figures()}


def steady_latency(server: Server, count: int) -> Mapping[str, Figures]:
    server.wire.create(server.at, TOPIC, [CHANNEL])
    reader = TimedReader(server.at.tcp, TOPIC, CHANNEL, UNBUFFERED)
    consumer = TimingConsumer(reader, count)
    publisher = PacedPublisher(server.at.tcp, TOPIC, rate=PACE, messages=count)
    drive = _drive(server, [consumer, publisher])
    latencies_ns = drive.outcomes[0].latencies_ns
    return {"latency": {**percentiles_ms(latencies_ns), "per_cpu": count / drive.cpu_seconds}}


def plain_latency(server: Server, count: int) -> Mapping[str, Figures]:
    server.wire.create(server.at, TOPIC, [CHANNEL])
    reader = TimedReader(server.at.tcp, TOPIC, CHANNEL, identify=None)
    trips = RoundTrips(server.at.tcp, TOPIC, reader, messages=count, seconds=ROUND_TRIP_SECONDS_MAX)
    return {"latency-plain": percentiles_ms(_drive(server, [trips]).outcomes[0].latencies_ns)}


def idle(server: Server, _count: int) -> Mapping[str, Figures]:
    time.sleep(IDLE_SECONDS)
    return {"idle": {"start_s": server.start_seconds, "idle_mb": _megabytes(server.rss_bytes())}}


@dataclass(frozen=True, slots=True)
class Drive:
    """What one crew did, and what it cost the server."""

    outcomes: Sequence[Outcome]
    cpu_seconds: float
    peak_rss_bytes: int

    def figures(self, messages: int | None = None) -> Figures:
        if messages is None:
            messages = sum(outcome.messages for outcome in self.outcomes)
        started_ns = min(outcome.started_ns for outcome in self.outcomes)
        finished_ns = max(outcome.finished_ns for outcome in self.outcomes)
        return {
            "rate": messages / (finished_ns - started_ns) * 1e9,
            "per_cpu": messages / self.cpu_seconds,
            "peak_mb": _megabytes(self.peak_rss_bytes),
        }


def _drive(server: Server, loads: Sequence[Load]) -> Drive:
    with Crew(loads) as crew:
        before = server.cpu_seconds()
        outcomes = crew.go()
        # A run shorter than the kernel's clock tick counts as one tick.
        cpu_seconds = max(server.cpu_seconds() - before, 0.01)
    return Drive(outcomes, cpu_seconds, server.peak_rss_bytes())


def _publish(server: Server, count: int) -> Drive:
    requests = count // (BATCH * PUBLISHERS)
    publishers = [
        server.wire.publisher(server.at, TOPIC, connections=1, requests=requests, batch=BATCH)
        for _ in range(PUBLISHERS)
    ]
    return _drive(server, publishers)


def _drain(server: Server, count: int) -> Drive:
    readers = [server.wire.reader(server.at, TOPIC, CHANNEL) for _ in range(READERS)]
    return _drive(server, [Consumer(readers, count)])


def _megabytes(size_bytes: int) -> float:
    return size_bytes / 1e6


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        "mpub",
        {"mpub": "MPUB x200, 2 connections"},
        publish_batches,
        count=1_000_000,
        quick_count=20_000,
    ),
    Scenario(
        "consume",
        {"consume": "consume + FIN, 2 readers"},
        consume,
        count=600_000,
        quick_count=20_000,
    ),
    Scenario(
        "pub",
        {"pub": "PUB one by one, 4 connections"},
        publish_singles,
        count=60_000,
        quick_count=2_000,
    ),
    Scenario(
        "http",
        {"http": "HTTP /pub, 32 connections"},
        publish_http,
        count=64_000,
        quick_count=3_200,
        nsq_only=True,
    ),
    Scenario(
        "fanout",
        {"fanout": "fan-out to 10 channels, deliveries"},
        fan_out,
        count=800_000,
        quick_count=20_000,
    ),
    Scenario(
        "backlog",
        {
            "backlog-publish": "1,000,000 backlog: publish",
            "backlog-drain": "1,000,000 backlog: drain",
        },
        backlog,
        count=1_000_000,
        quick_count=40_000,
    ),
    Scenario(
        "latency",
        {"latency": "end to end at 4,000 msgs/s"},
        steady_latency,
        count=16_000,
        quick_count=1_000,
        nsq_only=True,
    ),
    Scenario(
        "latency-plain",
        {"latency-plain": "end to end, nothing negotiated, one at a time"},
        plain_latency,
        count=5_000,
        quick_count=200,
        nsq_only=True,
    ),
    Scenario("idle", {"idle": "started and idle"}, idle, count=0, quick_count=0),
)


def row_titles() -> Mapping[str, str]:
    return {row: title for scenario in SCENARIOS for row, title in scenario.rows.items()}
