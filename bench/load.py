"""Load processes: they publish and consume with as little CPU per message as possible.

The load must not limit a run, so it does nothing per message: requests are built once, replies are
compared as bytes, and deliveries are counted and finished per buffer. Each load runs in its own
process; all of them prepare, then start together (`Crew`).

After the measurement, all deliveries are checked: every message of every channel was received
exactly once.
"""

import gc
import multiprocessing
import resource
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol, Self

__all__ = [
    "BODY",
    "RECEIVE_BYTES",
    "Address",
    "Consumer",
    "Crew",
    "Endpoint",
    "Load",
    "LoadError",
    "Outcome",
    "Publisher",
    "Reader",
    "allow_sockets",
    "connect",
    "read_some",
    "read_until",
]

Address = tuple[str, int]

BODY = b"x" * 200

RECEIVE_BYTES = 16 * 1024
RUN_SECONDS_MAX = 300.0
"""Timeout for servers that stop responding; no scenario takes that long."""

SOCKETS_BESIDE = 200
"""Open files of a process besides its connections."""


class LoadError(Exception):
    """The server behaved unexpectedly; the text describes how."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Ports of a server; the HTTP port may be unused."""

    tcp: Address
    http: Address


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one load process; times are time.monotonic_ns."""

    messages: int
    started_ns: int
    finished_ns: int
    latencies_ns: Sequence[int] = ()


class Load(Protocol):
    """Work for one process. `prepare` is not timed; both may raise LoadError or OSError."""

    def prepare(self) -> None: ...

    def run(self) -> Outcome: ...


class Reader(Protocol):
    """One connection that consumes a channel."""

    channel: str

    def open(self) -> socket.socket:
        """Connect and subscribe, without requesting messages."""

    def begin(self) -> None:
        """Request messages."""

    def receive(self) -> int:
        """Receive and finish messages; returns their number. Called when the socket is readable."""

    def close(self) -> None:
        """Wait until the server has processed all commands."""

    def ids(self) -> Iterable[bytes]:
        """The id of every message received."""


@dataclass
class Publisher:
    """Sends prebuilt requests in turn on several connections.

    Each connection waits for its reply before it sends the next request. The loop visits the
    connections with blocking calls: this saves the selector (two system calls per request), and the
    server always has requests of the other connections to process.
    """

    dial: Callable[[], socket.socket]
    """Open a connection for requests."""
    in_turn: Sequence[bytes]
    is_reply: Callable[[bytes], bool]
    """True for a complete reply, False for a part of it; raises LoadError for any other."""
    connections: int
    requests: int
    batch: int = 1
    sockets: list[socket.socket] = field(default_factory=list)

    def prepare(self) -> None:
        self.sockets += [self.dial() for _ in range(self.connections)]

    def run(self) -> Outcome:
        next_request, sockets = cycle(self.in_turn).__next__, self.sockets
        started_ns = time.monotonic_ns()
        for peer in sockets:
            peer.sendall(next_request())
        for _ in range(self.requests - 1):
            for peer in sockets:
                self._await_reply(peer)
                peer.sendall(next_request())
        for peer in sockets:
            self._await_reply(peer)
        finished_ns = time.monotonic_ns()
        return Outcome(self.connections * self.requests * self.batch, started_ns, finished_ns)

    def _await_reply(self, peer: socket.socket) -> None:
        reply = peer.recv(RECEIVE_BYTES)
        while not self.is_reply(reply):
            reply += read_some(peer)


@dataclass
class Consumer:
    """Reads channels on several connections until `messages` were delivered in total.

    If more are queued, the last read may deliver some of them, too.
    """

    readers: Sequence[Reader]
    messages: int

    def prepare(self) -> None:
        self.poll = select.epoll()
        self.by_fd: dict[int, Reader] = {}
        for reader in self.readers:
            peer = reader.open()
            self.by_fd[peer.fileno()] = reader
            self.poll.register(peer, select.EPOLLIN)

    def run(self) -> Outcome:
        by_fd, poll, left = self.by_fd, self.poll.poll, self.messages
        started_ns = time.monotonic_ns()
        for reader in self.readers:
            reader.begin()
        while left > 0:
            for fd, _ in poll():
                left -= by_fd[fd].receive()
        for reader in self.readers:
            reader.close()
        finished_ns = time.monotonic_ns()
        self._check(self.messages - left)
        return Outcome(self.messages - left, started_ns, finished_ns)

    def _check(self, received: int) -> None:
        """Check that every channel got the same number of messages, without duplicates."""
        seen: dict[str, set[bytes]] = {reader.channel: set() for reader in self.readers}
        for reader in self.readers:
            seen[reader.channel].update(reader.ids())
        expected = received // len(seen)
        for channel, ids in seen.items():
            if len(ids) != expected:
                raise LoadError(f"channel {channel} got {len(ids)} of {expected} messages")


class Crew:
    """The processes of one run: ready at the start of the `with` block, stopped at its end."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self._loads = loads
        self._workers: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        # Forked, not spawned: a worker starts in a millisecond, and this process has no threads.
        context = multiprocessing.get_context("fork")
        for load in self._loads:
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(load, theirs), daemon=True)
            worker.start()
            theirs.close()
            self._workers.append((worker, ours))
        try:
            self._collect()
        except LoadError:
            self._stop()
            raise
        return self

    def go(self) -> list[Outcome]:
        """Start all processes, and wait until all have finished."""
        for _, pipe in self._workers:
            pipe.send(None)
        return [outcome for outcome in self._collect() if outcome is not None]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _collect(self) -> list[Outcome | None]:
        deadline = time.monotonic() + RUN_SECONDS_MAX
        return [_answer(pipe, deadline) for _, pipe in self._workers]

    def _stop(self) -> None:
        for worker, pipe in self._workers:
            pipe.close()
            worker.terminate()
            worker.join()


def allow_sockets(count: int) -> None:
    """Raise the limit on open files, also for child processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SOCKETS_BESIDE
    if hard < needed:
        raise LoadError(f"{needed} sockets are needed, and {hard} are allowed: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def connect(address: Address) -> socket.socket:
    """A connection without delay (TCP_NODELAY)."""
    peer = socket.create_connection(address, timeout=10)
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def read_until(peer: socket.socket, ending: bytes) -> bytes:
    """Read up to and including `ending`, which must be the last output of the server."""
    received = b""
    while not received.endswith(ending):
        try:
            received += read_some(peer)
        except LoadError as error:
            raise LoadError(f"{error} after {received[-60:]!r}") from None
    return received


def read_some(peer: socket.socket) -> bytes:
    """Wait for bytes; raises LoadError at EOF."""
    received = peer.recv(RECEIVE_BYTES)
    if not received:
        raise LoadError("the server closed the connection")
    return received


def _work(load: Load, pipe: Connection) -> None:
    """Run one worker: prepare, report ready, wait for the start, run, report the result."""
    gc.disable()  # short-lived; a garbage collection during the run would look like latency
    try:
        load.prepare()
        pipe.send(None)
        pipe.recv()
        pipe.send(load.run())
    except (LoadError, OSError) as error:
        pipe.send(LoadError(f"{type(load).__name__}: {error}"))
    except EOFError:
        pass  # another worker failed to prepare, so the run was cancelled


def _answer(pipe: Connection, deadline: float) -> Outcome | None:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        raise LoadError(f"no end after {RUN_SECONDS_MAX:.0f} s")
    try:
        answer = pipe.recv()
    except EOFError:
        raise LoadError("a load process died") from None
    if isinstance(answer, LoadError):
        raise answer
    assert answer is None or isinstance(answer, Outcome)
    return answer
