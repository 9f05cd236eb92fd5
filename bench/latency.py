"""The time of a message from its publisher's send to its consumer's receive.

`PacedPublisher` and `TimingConsumer` measure a steady stream through a busy server: the publisher
keeps its rate and does not wait for responses, so a stall affects every message that it delays.
`RoundTrips` measures one message at a time through an idle server.

The body contains the send time. Both processes read the same clock (time.monotonic_ns).
"""

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct

from bench.figures import percentile
from bench.load import BODY, Address, LoadError, Outcome, connect, read_some
from bench.nsq import (
    BODY_AT,
    FRAME_BYTES,
    MAGIC,
    OK,
    SELDOM,
    NsqReader,
    fin_commands,
    frame_count,
    pub,
)
from penstock.protocol import commands

__all__ = [
    "UNBUFFERED",
    "PacedPublisher",
    "RoundTrips",
    "TimedReader",
    "TimingConsumer",
    "latencies_of",
    "percentiles_ms",
    "sleep_until",
    "stamped_body",
]

SENT_AT = Struct(">Q")
PADDING = BODY[SENT_AT.size :]

UNBUFFERED: Mapping[str, int] = {**SELDOM, "output_buffer_size": -1, "output_buffer_timeout": -1}
"""IDENTIFY of a consumer without output buffering."""

REPLY_EVERY = 16
"""Requests between two reads of replies; few enough not to fill the socket's buffer."""


class PacedPublisher:
    """Sends `messages` single publishes at `rate` a second."""

    def __init__(
        self, address: Address, topic: str, *, rate: int, messages: int, defer_ms: int = 0
    ) -> None:
        request = commands.dpub(topic, defer_ms, BODY) if defer_ms else pub(topic, BODY)
        self._address = address
        self._head = request[: -len(BODY)]
        self._interval_ns = 1_000_000_000 // rate
        self._messages = messages
        self._replies = bytearray()

    def prepare(self) -> None:
        self._socket = connect(self._address)
        self._socket.sendall(MAGIC)

    def run(self) -> Outcome:
        started_ns = due_ns = time.monotonic_ns()
        for i in range(self._messages):
            sleep_until(due_ns)
            self._socket.sendall(self._head + stamped_body())
            due_ns += self._interval_ns
            if i % REPLY_EVERY == 0:
                with suppress(BlockingIOError):
                    self._replies += self._socket.recv(65536, socket.MSG_DONTWAIT)
        finished_ns = time.monotonic_ns()
        self._check_replies()
        return Outcome(self._messages, started_ns, finished_ns)

    def _check_replies(self) -> None:
        expected = OK * self._messages
        while expected.startswith(self._replies) and len(self._replies) < len(expected):
            self._replies += read_some(self._socket)
        if self._replies != expected:
            raise LoadError("a publish was not answered with OK")


@dataclass
class TimingConsumer:
    """Measures the latency of `messages` messages."""

    reader: "TimedReader"
    messages: int

    def prepare(self) -> None:
        self.reader.open()

    def run(self) -> Outcome:
        latencies_ns: list[int] = []
        started_ns = time.monotonic_ns()
        while len(latencies_ns) < self.messages:
            latencies_ns += self.reader.receive()
        return Outcome(len(latencies_ns), started_ns, time.monotonic_ns(), latencies_ns)


class RoundTrips:
    """Publishes a message and waits for its delivery, `messages` times or for `seconds`."""

    def __init__(
        self, address: Address, topic: str, reader: "TimedReader", *, messages: int, seconds: float
    ) -> None:
        self._address = address
        self._head = pub(topic, BODY)[: -len(BODY)]
        self._reader = reader
        self._messages = messages
        self._seconds = seconds

    def prepare(self) -> None:
        self._reader.open()
        self._socket = connect(self._address)
        self._socket.sendall(MAGIC)

    def run(self) -> Outcome:
        latencies_ns: list[int] = []
        started_ns = now_ns = time.monotonic_ns()
        until_ns = started_ns + int(self._seconds * 1e9)
        while len(latencies_ns) < self._messages and now_ns < until_ns:
            latencies_ns.append(self._once())
            now_ns = time.monotonic_ns()
        return Outcome(len(latencies_ns), started_ns, now_ns, latencies_ns)

    def _once(self) -> int:
        self._socket.sendall(self._head + stamped_body())
        latencies_ns: list[int] = []
        while not latencies_ns:
            latencies_ns = self._reader.receive()
        if (reply := read_some(self._socket)) != OK:
            raise LoadError(f"not an OK: {reply[:60]!r}")
        (latency_ns,) = latencies_ns
        return latency_ns


class TimedReader:
    """A consumer that reads the clock once per receive and finishes its messages."""

    def __init__(
        self, address: Address, topic: str, channel: str, identify: Mapping[str, int] | None
    ) -> None:
        self._reader = NsqReader(address, topic, channel, identify=identify)
        self._tail = b""

    def open(self) -> None:
        self._socket = self._reader.open()
        self._reader.begin()

    def receive(self) -> list[int]:
        """Wait for data; returns the latencies of the messages that are now complete."""
        frames = self._tail + read_some(self._socket)
        now_ns = time.monotonic_ns()
        count = frame_count(frames)
        end = count * FRAME_BYTES
        if count:
            self._socket.sendall(fin_commands(frames, count))
        self._tail = frames[end:]
        return latencies_of(frames, count, now_ns)


def latencies_of(frames: bytes, count: int, now_ns: int) -> list[int]:
    """Latencies of the first `count` messages, received now."""
    sent_ns = SENT_AT.unpack_from
    end = count * FRAME_BYTES
    return [now_ns - sent_ns(frames, at)[0] for at in range(BODY_AT, end, FRAME_BYTES)]


def stamped_body() -> bytes:
    """A body that contains the time of sending."""
    return SENT_AT.pack(time.monotonic_ns()) + PADDING


def percentiles_ms(latencies_ns: Sequence[int]) -> dict[str, float]:
    """Percentiles 50, 99 and 99.9."""
    ordered_ms = [one / 1e6 for one in sorted(latencies_ns)]
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {key: percentile(ordered_ms, share) for key, share in shares.items()}


def sleep_until(due_ns: int) -> None:
    """Sleep until a time; returns at once if it has passed."""
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
