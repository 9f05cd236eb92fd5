"""Detects whether a message has become more expensive.

Run `python -m bench.guard --save before.json` with the old code, and `python -m bench.guard
--against before.json` with the new code, on the same machine.

The real protocol, broker and log parse commands and publish, store, deliver and finish messages,
with files in memory and without sockets. Alternating with that, the same process times a loop of
plain Python. The result is the cost of a message in steps of that loop, so it hardly depends on
other load on the machine. The fastest of many short rounds counts, because other load can only make
a round longer.

The results of different processors differ by more than the limit, so none are kept in the
repository.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import click

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS
from penstock.protocol import commands, events
from penstock.protocol.events import Limits
from penstock.protocol.server import ServerConnection
from penstock.storage import DataPath, LogSettings
from penstock.testing import ManualClock, MemoryFiles
from penstock.testing.bugs import raise_bug

__all__ = ["WORSE_MAX", "Cost", "main", "measure"]

WORSE_MAX = 1.25

ROUNDS = 60
BODY = b"x" * 200
BATCH = 200
BATCHES = 25
SINGLES = 250
STEPS = 10_000
SAVE_EVERY = 10
"""Commands between two writes of the journal."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a message in one workload, in steps of the loop: now, and in an earlier run."""

    workload: str
    steps: float
    before: float | None = None

    @property
    def factor(self) -> float | None:
        """Cost relative to the earlier run; None if that has no such workload."""
        return self.steps / self.before if self.before else None

    @property
    def is_too_much(self) -> bool:
        return self.factor is not None and self.factor > WORSE_MAX

    def __str__(self) -> str:
        text = f"{self.workload}: {self.steps:.2f} steps a message"
        return text if self.factor is None else f"{text}, {self.factor:.2f} times as many as before"


def measure(rounds: int, before: Mapping[str, float]) -> list[Cost]:
    """Measure all workloads, alternating with the reference loop."""
    seconds: dict[str, float] = {"steps": float("inf")}
    with _no_collection():
        for _ in range(rounds):
            for name, (run, count) in WORKLOADS.items():
                for what, took in (("steps", _calibrate() / STEPS), (name, run() / count)):
                    seconds[what] = min(took, seconds.get(what, took))
    return [Cost(name, seconds[name] / seconds["steps"], before.get(name)) for name in WORKLOADS]


@click.command()
@click.option("--save", type=click.Path(path_type=Path), help="Write the figures to this file.")
@click.option(
    "--against",
    type=click.Path(exists=True, path_type=Path),
    help="Compare with the figures in this file, saved on the same machine.",
)
@click.option("--rounds", default=ROUNDS, show_default=True, help="Rounds of each workload.")
def main(*, save: Path | None, against: Path | None, rounds: int) -> None:
    """Measure the CPU cost of a message without sockets.

    With --against, exits with 1 if a message costs more than 25 % more than before.
    """
    measured = measure(rounds, json.loads(against.read_text()) if against else {})
    for cost in measured:
        click.echo(cost)
    if save:
        save.write_text(_as_json(measured))
    if any(cost.is_too_much for cost in measured):
        click.echo(f"at most {WORSE_MAX:g} times is allowed", err=True)
        sys.exit(1)


def _as_json(measured: Sequence[Cost]) -> str:
    return json.dumps({cost.workload: round(cost.steps, 2) for cost in measured}, indent=2) + "\n"


def _calibrate() -> float:
    """Operations typical of the workloads: calls, dicts, lists, bytes, structs."""
    pack, seen, frames = Struct(">iiqH16s").pack, {}, []
    began = time.thread_time()
    for number in range(STEPS):
        message_id = b"%016x" % number
        seen[message_id] = frame = pack(230, 2, number, 1, message_id) + BODY
        frames.append(frame)
        if len(frames) == BATCH:
            for one in b"".join(frames).split(b"\0\1"):
                seen.pop(one[:16], None)
            frames.clear()
    return time.thread_time() - began


def _batches() -> float:
    broker = _Passage()
    return broker.run([commands.mpub("topic", [BODY] * BATCH)] * BATCHES)


def _singles() -> float:
    broker = _Passage()
    return broker.run([commands.pub("topic", BODY)] * SINGLES)


WORKLOADS: Mapping[str, tuple[Callable[[], float], int]] = {
    "MPUB x200, delivered and finished": (_batches, BATCHES * BATCH),
    "PUB one by one, delivered and finished": (_singles, SINGLES),
}


def _events_of(connection: ServerConnection, data: bytes) -> Iterator[events.Event]:
    """Parse the bytes of one read as nsqd does."""
    only = connection.fast_parser.parse_single(data) or connection.parse_single(data)
    if only is not None:
        return iter([only])
    connection.receive_data(data)
    return iter(connection.next_event, None)


class _Passage:
    """A broker in memory with a publisher and a consumer. Implements both callback protocols."""

    def __init__(self) -> None:
        files = MemoryFiles()
        files.make_folder("data")
        self._clock = clock = ManualClock()
        data_path = DataPath.open("data", LogSettings(), files)
        self._broker = Broker(BrokerSettings(), data_path, self, clock, lambda: 0.0)
        self._subscriber = Subscriber(self, 60 * SECOND_NS)
        self._channel = self._broker.subscribe("topic", "channel", self._subscriber)
        self._subscriber.rdy = 2500
        self._channel.ready(self._subscriber)
        self._publisher = self._connected(b"")
        self._consumer = self._connected(commands.sub("topic", "channel"))
        self._received: list[bytes] = []
        self._pump_wanted = True

    def run(self, requests: list[bytes]) -> float:
        """CPU seconds from the first command to the last FIN."""
        began = time.thread_time()
        for number, request in enumerate(requests):
            self._publish(request)
            self._finish()
            if number % SAVE_EVERY == 0:
                self._broker.save_progress()
        seconds = time.thread_time() - began
        assert self._channel.depth == self._channel.in_flight_count == 0
        return seconds

    def _publish(self, request: bytes) -> None:
        for event in _events_of(self._publisher, request):
            assert isinstance(event, events.Publish)
            topic = self._broker.topic_cache[event.topic]
            topic.publish(event.bodies)
        while self._pump_wanted:
            self._pump_wanted = False
            self._broker.pump()

    def _finish(self) -> None:
        ids = [frame[18:34] for frame in self._received]
        self._received.clear()
        for event in _events_of(self._consumer, commands.fins(ids)):
            assert isinstance(event, events.Fin)
            assert not self._channel.finish(self._subscriber, event.ids)

    def _connected(self, command: bytes) -> ServerConnection:
        connection = ServerConnection(Limits())
        connection.receive_data(commands.MAGIC + command)
        connection.next_event()
        return connection

    # The peer.

    def deliver(self, frames: list[bytes]) -> None:
        self._received += frames

    def channel_gone(self) -> None:
        pass

    # The driver.

    def end_turn_soon(self) -> None:
        self._pump_wanted = True

    def advance_at(self, now_ns: int) -> None:
        pass

    def save_soon(self) -> None:
        pass

    def topology_changed(self, topic: Topic, *, persistent: bool) -> None:
        pass

    report_bug = staticmethod(raise_bug)

    def topic_created(self, topic: Topic) -> None:
        pass


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector, whose cost would hit workloads at random."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


if __name__ == "__main__":
    main()
