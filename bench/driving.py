"""Puts load on a server and measures its cost; used by all scenarios."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures import Figures
from bench.load import Consumer, Crew, Load, Outcome
from bench.nsq import RDY_MAX
from bench.targets import Server

__all__ = ["BATCH", "CHANNEL", "TOPIC", "Drive", "drain", "drive", "megabytes", "publish"]

TOPIC = "load"
CHANNEL = "readers"
BATCH = 200
PUBLISHERS = 2
READERS = 2


@dataclass(frozen=True, slots=True)
class Drive:
    """Result of one crew of load processes, and its cost for the server."""

    outcomes: Sequence[Outcome]
    cpu_seconds: float
    peak_rss_bytes: int

    @property
    def messages(self) -> int:
        return sum(outcome.messages for outcome in self.outcomes)

    def figures(self, messages: int | None = None) -> Figures:
        """`messages` overrides the number that the crew counted."""
        if messages is None:
            messages = self.messages
        started_ns = min(outcome.started_ns for outcome in self.outcomes)
        finished_ns = max(outcome.finished_ns for outcome in self.outcomes)
        return {
            "rate": messages / (finished_ns - started_ns) * 1e9,
            "per_cpu": messages / self.cpu_seconds,
            "peak_mb": megabytes(self.peak_rss_bytes),
        }


def drive(server: Server, loads: Sequence[Load]) -> Drive:
    """Run a crew."""
    with Crew(loads) as crew:
        before = server.cpu_seconds()
        outcomes = crew.go()
        # A run shorter than the kernel's clock tick counts as one tick.
        cpu_seconds = max(server.cpu_seconds() - before, 0.01)
    return Drive(outcomes, cpu_seconds, server.peak_rss_bytes())


def publish(server: Server, count: int, *, batch: int = BATCH) -> Drive:
    """Two connections that send batches, each waiting for the response."""
    requests = max(1, count // (batch * PUBLISHERS))
    publishers = [
        server.wire.publisher(server.at, TOPIC, connections=1, requests=requests, batch=batch)
        for _ in range(PUBLISHERS)
    ]
    return drive(server, publishers)


def drain(server: Server, count: int, *, readers: int = READERS, ahead: int = RDY_MAX) -> Drive:
    """Readers of one channel receive and finish its messages."""
    reading = [server.wire.reader(server.at, TOPIC, CHANNEL, ahead=ahead) for _ in range(readers)]
    return drive(server, [Consumer(reading, count)])


def megabytes(size_bytes: int) -> float:
    return size_bytes / 1e6
