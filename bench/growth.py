"""python -m bench.growth: the cost of a message as a dimension grows.

For each point of a curve, a new nsqd is started and loaded. The result is the server's CPU time per
message, which is reliable on a busy machine; the lowest of the repetitions counts. `python -m
bench.plot` plots the output of `--json FILE`.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench import targets
from bench.driving import BATCH, CHANNEL, TOPIC, Drive, drain, drive, publish
from bench.goals import GROWTH, GrowthGoal
from bench.load import Consumer, LoadError, allow_sockets
from bench.nsq import RDY_MAX, Nsq
from bench.report import machine
from bench.targets import Server

__all__ = ["CURVES", "Curve", "Growth", "factor", "main"]

BATCH_BYTES_MAX = 1_000_000
"""Bodies per MPUB, and RDY of a consumer."""

VOLUME_BYTES = 400_000_000
"""Bytes published at a point of the size curve, unless that is too many messages."""

COUNT = 800_000
"""Enough for about a CPU-second, because the kernel counts in hundredths."""

MANY_TOPICS = 500
"""With this many topics, the cost of creating them is visible."""

SYNC_TIMEOUT_SECONDS = 2.0
SYNC_TIMEOUTS_MAX = 30
IDLE_SHARE = 0.1
"""Maximum share of a core of an idle server, which has housekeeping for each topic."""

CONSUMED_BY_MANY = 200_000
SINGLES = 40_000

Costs = Mapping[str, float]
"""CPU microseconds per message, by operation."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A dimension that grows, and the load to measure at each of its values."""

    name: str
    title: str
    unit: str
    points: Sequence[int]
    quick_points: Sequence[int]
    run: Callable[[Server, int, float], Costs]
    """Called with the point, and the share of the messages of a full run."""


@dataclass
class Growth:
    """Results of one curve."""

    curve: Curve
    costs: dict[int, dict[str, float]] = field(default_factory=dict)

    def add(self, point: int, costs: Costs) -> None:
        """Keep the minimum of all repetitions."""
        known = self.costs.setdefault(point, {})
        for line, cost in costs.items():
            known[line] = min(cost, known.get(line, cost))

    @property
    def lines(self) -> list[str]:
        return list(dict.fromkeys(line for costs in self.costs.values() for line in costs))


def with_body_size(server: Server, size: int, share: float) -> Costs:
    """The bytes of a batch, and of the messages in flight, are limited."""
    server = replace(server, wire=Nsq(body=b"x" * size))
    batch = max(1, min(BATCH, BATCH_BYTES_MAX // size))
    count = int(share * min(COUNT, VOLUME_BYTES // size))
    server.wire.create(server.at, TOPIC, [CHANNEL])
    published = publish(server, max(count, 2 * batch), batch=batch)
    ahead = max(1, min(RDY_MAX, BATCH_BYTES_MAX // size))
    drained = drain(server, published.messages, ahead=ahead)
    return {"MPUB": _cost_us(published), "consume + FIN": _cost_us(drained)}


def with_idle_topics(server: Server, topics: int, share: float) -> Costs:
    """Topics with one channel each; all but one are idle."""
    for number in range(topics - 1):
        server.wire.create(server.at, f"idle{number}", [CHANNEL])
    if topics >= MANY_TOPICS:
        _wait_until_idle(server)
    return _costs_of_all(server, share)


def _wait_until_idle(server: Server) -> None:
    """New topics are synced at the next sync timeout; before that, they are not idle."""
    for _ in range(SYNC_TIMEOUTS_MAX):
        before = server.cpu_seconds()
        time.sleep(SYNC_TIMEOUT_SECONDS)
        if server.cpu_seconds() - before < IDLE_SHARE * SYNC_TIMEOUT_SECONDS:
            return
    raise LoadError("the server does not become idle")


def with_channels(server: Server, channels: int, share: float) -> Costs:
    """Each delivery counts as a message: with n channels, n for each publish."""
    names = [f"channel{number}" for number in range(channels)]
    server.wire.create(server.at, TOPIC, names)
    batches = max(1, int(share * COUNT / channels / BATCH))
    publisher = server.wire.publisher(
        server.at, TOPIC, connections=1, requests=batches, batch=BATCH
    )
    readers = [server.wire.reader(server.at, TOPIC, name, ahead=RDY_MAX) for name in names]
    deliveries = batches * BATCH * channels
    run = drive(server, [Consumer(readers, deliveries), publisher])
    return {"a delivery, publishing included": _cost_us(run, deliveries)}


def with_backlog(server: Server, messages: int, share: float) -> Costs:
    """The backlog exists before the measurement and has the same size after it."""
    server.wire.create(server.at, TOPIC, [CHANNEL])
    if messages:
        publish(server, messages)
    return _costs_of_all(server, share, channel_is_there=True)


def with_publishers(server: Server, connections: int, share: float) -> Costs:
    """Producers that send one PUB at a time."""
    allow_sockets(connections)
    return {"PUB": _cost_us(_publish_singles(server, connections, share))}


def with_consumers(server: Server, connections: int, share: float) -> Costs:
    """The consumers share the maximum RDY of one consumer, with at least one message each."""
    allow_sockets(connections)
    server.wire.create(server.at, TOPIC, [CHANNEL])
    published = publish(server, int(share * CONSUMED_BY_MANY))
    ahead = max(1, RDY_MAX // connections)
    drained = drain(server, published.messages, readers=connections, ahead=ahead)
    return {"consume + FIN": _cost_us(drained)}


CURVES: Sequence[Curve] = (
    Curve(
        "size",
        "size of a message",
        "bytes",
        (10, 100, 1_000, 10_000, 100_000, 1_000_000),
        (10, 100_000),
        with_body_size,
    ),
    Curve(
        "topics",
        "topics, all but one idle",
        "topics",
        (1, 10, 100, 1_000, 10_000),
        (1, 20),
        with_idle_topics,
    ),
    Curve(
        "channels", "channels of a topic", "channels", (1, 3, 10, 30, 100), (1, 5), with_channels
    ),
    Curve(
        "backlog",
        "messages that wait",
        "messages",
        (0, 100_000, 1_000_000, 5_000_000),
        (0, 10_000),
        with_backlog,
    ),
    Curve(
        "publishers",
        "connections that publish",
        "connections",
        (1, 10, 100, 1_000, 5_000),
        (1, 50),
        with_publishers,
    ),
    Curve(
        "consumers",
        "connections that consume",
        "connections",
        (1, 10, 100, 1_000, 5_000),
        (1, 50),
        with_consumers,
    ),
)


def factor(goal: GrowthGoal, growth: Growth) -> dict[str, float]:
    """The cost of each line at the end of the goal's range, relative to its start."""
    first, last = growth.costs.get(goal.first, {}), growth.costs.get(goal.last, {})
    return {
        line: last[line] / first[line]
        for line in growth.lines
        if {line} <= first.keys() & last.keys()
    }


@click.command()
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([curve.name for curve in CURVES]),
    help="Measure this curve only; may be repeated.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--quick", is_flag=True, help="Measure two points with few messages, to test that it runs."
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the curves to this file, as JSON.",
)
def main(*, only: Sequence[str], repeat: int, quick: bool, json_file: Path | None) -> None:
    """Measure the CPU cost of a message as a dimension grows."""
    curves = [curve for curve in CURVES if not only or curve.name in only]
    grown, failures = [], []
    for curve in curves:
        grown.append(Growth(curve))
        for _ in range(1 if quick else repeat):
            failures += _measure(grown[-1], quick=quick)
        _print(grown[-1])
    if json_file:
        json_file.write_text(as_json(grown))
    sys.exit(1 if failures else 0)


def as_json(grown: Sequence[Growth]) -> str:
    document = {
        "machine": machine(),
        "curves": [
            {
                "name": growth.curve.name,
                "title": growth.curve.title,
                "unit": growth.curve.unit,
                "cpu_us": [
                    {"point": point, "costs": costs} for point, costs in growth.costs.items()
                ],
            }
            for growth in grown
        ],
        "goals": [
            {"goal": str(goal), "line": line, "factor": times, "met": goal.is_met(times)}
            for goal, growth in _goals(grown)
            for line, times in factor(goal, growth).items()
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _measure(growth: Growth, *, quick: bool) -> list[str]:
    curve, failures = growth.curve, []
    for point in curve.quick_points if quick else curve.points:
        try:
            with targets.running(targets.penstock()) as server:
                growth.add(point, curve.run(server, point, 0.01 if quick else 1.0))
        except (LoadError, OSError) as error:
            failures.append(f"{curve.name} {point:,}: {error}")
            click.echo(failures[-1], err=True)
        else:
            click.echo(f"{curve.name} {point:,}", err=True)
    return failures


def _print(growth: Growth) -> None:
    table = Table(
        title=f"CPU microseconds per message, by {growth.curve.title}", title_justify="left"
    )
    table.add_column(growth.curve.unit, justify="right")
    for line in growth.lines:
        table.add_column(line, justify="right")
    for point, costs in growth.costs.items():
        table.add_row(
            f"{point:,}", *(f"{costs[line]:.2f}" if line in costs else "" for line in growth.lines)
        )
    console = Console()
    console.print(table)
    for goal, _ in _goals([growth]):
        for line, times in factor(goal, growth).items():
            met = "met" if goal.is_met(times) else "not met"
            console.print(
                f"{met:>8}  {line}: {goal}  ({times:.2f})", highlight=False, soft_wrap=True
            )


def _goals(grown: Sequence[Growth]) -> list[tuple[GrowthGoal, Growth]]:
    return [
        (goal, growth) for goal in GROWTH for growth in grown if goal.curve == growth.curve.name
    ]


def _costs_of_all(server: Server, share: float, *, channel_is_there: bool = False) -> Costs:
    """Batches, their consumption, and single messages."""
    if not channel_is_there:
        server.wire.create(server.at, TOPIC, [CHANNEL])
    published = publish(server, max(int(share * COUNT), 2 * BATCH))
    drained = drain(server, published.messages)
    singles = _publish_singles(server, 4, share)
    return {
        "MPUB": _cost_us(published),
        "consume + FIN": _cost_us(drained),
        "PUB": _cost_us(singles),
    }


def _publish_singles(server: Server, connections: int, share: float) -> Drive:
    requests = max(2, int(share * SINGLES / connections))
    publisher = server.wire.publisher(
        server.at, TOPIC, connections=connections, requests=requests, batch=1
    )
    return drive(server, [publisher])


def _cost_us(run: Drive, messages: int | None = None) -> float:
    return run.cpu_seconds / (messages or run.messages) * 1e6


if __name__ == "__main__":
    main()
