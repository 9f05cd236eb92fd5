"""The effect of more shards on this machine: `python -m bench.shards`.

The same load is put on an nsqd with one shard, then with more: all of it on one, or a part on each.
The load has one process per possible shard, each with its own topic. The program prints rates, and
the CPU time of nsqd and of the load per message, because both share the cores: with C cores, and s
and l CPU-seconds per message, any number of shards is limited to C / (s + l) messages per second,
and one shard to 1 / s.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

from bench import targets
from bench.driving import BATCH, CHANNEL, TOPIC, drive
from bench.load import Consumer, Endpoint, Load, LoadError
from bench.targets import Server
from penstock.nsqd.shards import PORT_STEP

__all__ = ["main"]

READY_SECONDS_MAX = 30.0
CONNECTIONS = 32
"""Messages of each publisher that sends one message at a time."""

Figures = tuple[float, float, float]
"""Messages per second, and CPU microseconds per message of nsqd and of the load."""


def main(args: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--messages", type=int, default=2_000_000, help="in batches, or consumed")
    parser.add_argument("--singles", type=int, default=200_000, help="published one by one")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(args)
    found: dict[tuple[str, int], list[Figures]] = {}
    for _ in range(given.repeat):
        for shards in given.shards:
            for row, figures in _measure(shards, max(given.shards), given).items():
                found.setdefault((row, shards), []).append(figures)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| | shards | msgs/s | nsqd, µs of CPU a message | load, the same |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for (row, shards), samples in sorted(found.items()):
        rate, server_us, load_us = map(median, zip(*samples, strict=True))
        print(f"| {row} | {shards} | {rate:,.0f} | {server_us:.2f} | {load_us:.2f} |")
    return 0


def _measure(shards: int, loads: int, given: argparse.Namespace) -> dict[str, Figures]:
    with targets.running(targets.penstock(), f"--shards={shards}") as server:
        parts = [(_endpoint(server, load % shards), f"{TOPIC}{load}") for load in range(loads)]
        for at, topic in parts:
            _wait_until_ready(server, at)
            server.wire.create(at, topic, [CHANNEL])
        batches = given.messages // loads // BATCH
        singles = given.singles // loads // CONNECTIONS

        def publisher(at: Endpoint, topic: str) -> Load:
            return server.wire.publisher(at, topic, connections=1, requests=batches, batch=BATCH)

        def consumer(at: Endpoint, topic: str) -> Load:
            return Consumer([server.wire.reader(at, topic, CHANNEL)], batches * BATCH)

        def one_by_one(at: Endpoint, topic: str) -> Load:
            return server.wire.publisher(
                at, topic, connections=CONNECTIONS, requests=singles, batch=1
            )

        rows: dict[str, Callable[[Endpoint, str], Load]] = {
            f"MPUB x{BATCH}": publisher,
            "consume + FIN": consumer,
            "PUB one by one": one_by_one,
        }
        return {
            row: _figures(server, [load(at, topic) for at, topic in parts])
            for row, load in rows.items()
        }


def _figures(server: Server, loads: Sequence[Load]) -> Figures:
    before = _children_seconds()
    drove = drive(server, loads)
    load_seconds = _children_seconds() - before
    return (
        drove.figures()["rate"],
        drove.cpu_seconds / drove.messages * 1e6,
        load_seconds / drove.messages * 1e6,
    )


def _children_seconds() -> float:
    """CPU seconds of exited children: the load, without the running server."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _endpoint(server: Server, shard: int) -> Endpoint:
    (host, tcp_port), (_, http_port) = server.at.tcp, server.at.http
    step = PORT_STEP * shard
    return Endpoint((host, tcp_port + step), (host, http_port + step))


def _wait_until_ready(server: Server, at: Endpoint) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not server.wire.is_ready(at):
        if time.monotonic() > deadline:
            raise LoadError("a shard does not answer")
        time.sleep(0.01)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LoadError as error:
        sys.exit(str(error))
