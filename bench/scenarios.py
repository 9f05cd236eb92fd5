"""The scenarios. Each gets its own, newly started server.

To add one: write a function that puts load on a `Server` and returns the figures of each row that
it fills, in one of the modules below, and add it to SCENARIOS. If its figures have a bound, add
that to `bench.goals`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from bench import delays, rates, restarts
from bench.figures import Figures
from bench.nsq import Nsq
from bench.targets import Server, Target

__all__ = ["SCENARIOS", "Needs", "Scenario", "row_titles"]

TLS_FLAGS = ("--tls-cert={certificate}", "--tls-key={key}")


class Needs(Enum):
    """The targets that support a scenario."""

    ANY = auto()
    NSQ = auto()
    """Supported by every nsqd and by the reference server."""
    COMPLETE = auto()
    """Supported by all servers except the reference server."""
    COMPLETE_NSQ = auto()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A measurement that fills one or more rows of the table."""

    name: str
    rows: Mapping[str, str]
    """Key and title of each row."""
    run: Callable[[Server, int], Mapping[str, Figures]]
    """Sends `count` messages through a server; returns the figures by row."""
    count: int
    quick_count: int
    needs: Needs = Needs.ANY
    flags: Sequence[str] = ()
    """Additional flags of the server."""

    def fits(self, target: Target) -> bool:
        if self.needs in {Needs.NSQ, Needs.COMPLETE_NSQ} and not isinstance(target.wire, Nsq):
            return False
        return target.is_complete or self.needs in {Needs.ANY, Needs.NSQ}


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        "mpub",
        {"mpub": "MPUB x200, 2 connections"},
        rates.publish_batches,
        count=1_000_000,
        quick_count=20_000,
    ),
    Scenario(
        "consume",
        {"consume": "consume + FIN, 2 readers"},
        rates.consume,
        count=600_000,
        quick_count=20_000,
    ),
    Scenario(
        "pub",
        {"pub": "PUB one by one, 4 connections"},
        rates.publish_singles,
        count=60_000,
        quick_count=2_000,
    ),
    Scenario(
        "pub64",
        {"pub64": "PUB one by one, 64 connections"},
        rates.publish_singles_by_many,
        count=128_000,
        quick_count=2_560,
    ),
    Scenario(
        "topics",
        {"topics": "PUB one by one, 4 connections, 1,000 topics in turn"},
        rates.publish_to_many_topics,
        count=60_000,
        quick_count=400,
    ),
    Scenario(
        "http",
        {"http": "HTTP /pub, 32 connections"},
        rates.publish_http,
        count=64_000,
        quick_count=3_200,
        needs=Needs.NSQ,
    ),
    Scenario(
        "http-mpub",
        {"http-mpub": "HTTP /mpub x200, 4 connections"},
        rates.publish_http_batches,
        count=1_000_000,
        quick_count=16_000,
        needs=Needs.COMPLETE_NSQ,
    ),
    Scenario(
        "fanout",
        {"fanout": "fan-out to 10 channels, deliveries"},
        rates.fan_out,
        count=800_000,
        quick_count=20_000,
    ),
    Scenario(
        "consumers",
        {"consumers": "consume + FIN, 1,000 readers of 25 each"},
        rates.consume_by_many,
        count=400_000,
        quick_count=2_000,
    ),
    Scenario(
        "tls",
        {"tls-publish": "TLS: MPUB x200", "tls-consume": "TLS: consume + FIN"},
        rates.under_tls,
        count=600_000,
        quick_count=10_000,
        needs=Needs.COMPLETE_NSQ,
        flags=TLS_FLAGS,
    ),
    Scenario(
        "snappy",
        {"snappy-publish": "snappy: MPUB x200", "snappy-consume": "snappy: consume + FIN"},
        rates.under_snappy,
        count=600_000,
        quick_count=10_000,
        needs=Needs.COMPLETE_NSQ,
    ),
    Scenario(
        "deferred",
        {
            "deferred-publish": "DPUB one by one, 4 connections",
            "deferred-deliver": "deferred by 0.5 s, 4,000 msgs/s: late by",
        },
        delays.deferred,
        count=40_000,
        quick_count=800,
        needs=Needs.COMPLETE_NSQ,
    ),
    Scenario(
        "backlog",
        {
            "backlog-publish": "1,000,000 backlog: publish",
            "backlog-drain": "1,000,000 backlog: drain",
        },
        rates.backlog,
        count=1_000_000,
        quick_count=40_000,
    ),
    Scenario(
        "huge-backlog",
        {
            "huge-backlog-publish": "5,000,000 backlog: publish",
            "huge-backlog-drain": "5,000,000 backlog: drain",
        },
        rates.huge_backlog,
        count=5_000_000,
        quick_count=40_000,
    ),
    Scenario(
        "restart",
        {
            "restart-stopped": "1,000,000 backlog, stopped: started again",
            "restart-killed": "1,000,000 backlog, killed: started again",
        },
        restarts.restart,
        count=1_000_000,
        quick_count=20_000,
        needs=Needs.COMPLETE,
    ),
    Scenario(
        "latency",
        {"latency": "end to end at 4,000 msgs/s"},
        delays.steady,
        count=16_000,
        quick_count=1_000,
        needs=Needs.NSQ,
    ),
    Scenario(
        "latency-half",
        {"latency-half": "end to end at half of the maximum rate"},
        delays.at_half_speed,
        count=200_000,
        quick_count=4_000,
        needs=Needs.NSQ,
    ),
    Scenario(
        "latency-plain",
        {"latency-plain": "end to end, nothing negotiated, one at a time"},
        delays.one_at_a_time,
        count=5_000,
        quick_count=200,
        needs=Needs.NSQ,
    ),
    Scenario("idle", {"idle": "started and idle"}, restarts.idle, count=0, quick_count=0),
)


def row_titles() -> Mapping[str, str]:
    return {row: title for scenario in SCENARIOS for row, title in scenario.rows.items()}
