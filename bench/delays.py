"""Scenarios that measure latency."""

from collections.abc import Mapping

from bench.driving import CHANNEL, TOPIC, Drive, drive
from bench.figures import Figures
from bench.latency import (
    UNBUFFERED,
    PacedPublisher,
    RoundTrips,
    TimedReader,
    TimingConsumer,
    percentiles_ms,
)
from bench.load import BODY
from bench.nsq import Nsq
from bench.targets import Server
from penstock.protocol import commands

__all__ = ["at_half_speed", "deferred", "one_at_a_time", "steady"]

PACE = 4_000
AS_FAST_AS_IT_GOES = 1_000_000_000
HALF_SPEED_SECONDS = 4
ROUND_TRIP_SECONDS_MAX = 3.0
"""Few, because an nsqd that buffers its output takes 250 ms for each."""

DEFER_MS = 500
LONG_MS = 3_600_000
"""Within the default limit of nsqd, and longer than any run."""


def steady(server: Server, count: int) -> Mapping[str, Figures]:
    server.wire.create(server.at, TOPIC, [CHANNEL])
    run = _paced(server, PACE, count)
    return {"latency": {**_latency(run), "per_cpu": count / run.cpu_seconds}}


def at_half_speed(server: Server, count: int) -> Mapping[str, Figures]:
    """First measures the maximum rate, with a publisher that never waits."""
    server.wire.create(server.at, TOPIC, [CHANNEL])
    pace = int(_paced(server, AS_FAST_AS_IT_GOES, count).figures(count)["rate"]) // 2
    run = _paced(server, pace, min(count, HALF_SPEED_SECONDS * pace))
    messages = run.outcomes[0].messages
    return {"latency-half": {**_latency(run), "rate": pace, "per_cpu": messages / run.cpu_seconds}}


def one_at_a_time(server: Server, count: int) -> Mapping[str, Figures]:
    server.wire.create(server.at, TOPIC, [CHANNEL])
    reader = TimedReader(server.at.tcp, TOPIC, CHANNEL, identify=None)
    trips = RoundTrips(server.at.tcp, TOPIC, reader, messages=count, seconds=ROUND_TRIP_SECONDS_MAX)
    return {"latency-plain": _latency(drive(server, [trips]))}


def deferred(server: Server, count: int) -> Mapping[str, Figures]:
    """Publish deferred messages, then measure the delay of messages that become due."""
    server.wire.create(server.at, TOPIC, [CHANNEL])
    run = _paced(server, PACE, count // 2, defer_ms=DEFER_MS)
    delivered = {**_latency(run, DEFER_MS), "per_cpu": count // 2 / run.cpu_seconds}
    publisher = Nsq().requester(
        server.at,
        [commands.dpub(TOPIC, LONG_MS, BODY)],
        connections=4,
        requests=count // 4,
    )
    return {
        "deferred-publish": drive(server, [publisher]).figures(),
        "deferred-deliver": delivered,
    }


def _paced(server: Server, rate: int, count: int, *, defer_ms: int = 0) -> Drive:
    reader = TimedReader(server.at.tcp, TOPIC, CHANNEL, UNBUFFERED)
    consumer = TimingConsumer(reader, count)
    publisher = PacedPublisher(server.at.tcp, TOPIC, rate=rate, messages=count, defer_ms=defer_ms)
    return drive(server, [consumer, publisher])


def _latency(run: Drive, after_ms: int = 0) -> Figures:
    """Time from send to receipt, less the requested deferral."""
    return percentiles_ms([one - after_ms * 1_000_000 for one in run.outcomes[0].latencies_ns])
