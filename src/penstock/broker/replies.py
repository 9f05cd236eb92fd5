"""Replies that go out in the order of their commands, though some wait for a message to be safe."""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from penstock.broker.publishing import TurnBatch
from penstock.common.errors import StorageError

__all__ = ["Replies"]

PendingReply: TypeAlias = tuple[TurnBatch | None, str, bytes, Callable[[], object] | None]
"""What has to be safe first; the command to blame if it fails; what is to be written, and done."""


class Replies:
    """The replies of one connection."""

    __slots__ = ("_corked", "_later", "_on_failure", "_write", "_write_now", "pending", "send")

    def __init__(
        self, write: Callable[[bytes], None], on_failure: Callable[[str, StorageError], None]
    ) -> None:
        """`on_failure` is told which command could not be carried out, and why."""
        self._write = self._write_now = write
        self._corked: list[bytes] = []
        self._on_failure = on_failure
        self.pending: deque[PendingReply] = deque()
        """Replies that are not written yet, because they wait for an fsync."""
        self._later = self._send_later  # made once, not with each reply that waits
        self.send = write
        """Writes at once, or after all that is still waiting: whichever it is at the time, so that
        a reply for which nothing waits costs its write and no more."""

    def set_writer(self, write: Callable[[bytes], None]) -> None:
        """Takes another function to write with."""
        if self._write is self._write_now:  # nothing is corked
            self._write = write
        self._write_now = write
        self._choose()

    def cork(self) -> None:
        """Keeps what is to be written until `uncork`, for one write: more is about to come."""
        self._write = self._corked.append
        self._choose()

    def uncork(self) -> None:
        """Writes what was kept, and what comes from now on at once."""
        self._write = self._write_now
        self._choose()
        self._write_corked()

    def send_when_stored(self, batch: TurnBatch, word: str, data: bytes) -> None:
        """A reply that has to wait for a batch, and that all later ones wait for. `word` is the
        command that is to blame if it fails."""
        self.pending.append((batch, word, data, None))
        batch.waiters.append(self)
        self.send = self._later

    def call_when_sent(self, action: Callable[[], object]) -> None:
        """Does this at once, or after all that is still waiting has been written."""
        if self.pending:
            self.pending.append((None, "", b"", action))
        else:
            self._write_corked()
            action()

    def on_batch_done(self, batch: TurnBatch) -> None:
        """A batch that a reply waits for is safe, or has failed."""
        held = self.pending
        if len(held) == 1 and batch.is_safe and held[0][0] is batch:  # nearly always
            data = held.popleft()[2]
            self.send = write = self._write
            write(data)
        elif held:
            self._send_ready()

    def _choose(self) -> None:
        self.send = self._later if self.pending else self._write

    def _send_later(self, data: bytes) -> None:
        self.pending.append((None, "", data, None))

    def _send_ready(self) -> None:
        """Writes what need not wait any longer, with one write, up to what failed."""
        held = self.pending
        due: list[bytes] = []
        while held:
            batch, word, data, action = held[0]
            if batch is not None and not batch.is_safe:
                break
            held.popleft()
            due.append(data)
            if action is not None:
                self._write_all(due)
                self._write_corked()
                self._choose()
                action()
        self._write_all(due)
        failure = batch.failure if held and batch is not None else None
        if failure is not None:
            held.clear()  # Nothing that comes after it will be written.
        self._choose()
        if failure is not None:
            self._on_failure(word, failure)

    def _write_all(self, due: list[bytes]) -> None:
        if data := b"".join(due):
            self._write(data)
            due.clear()

    def _write_corked(self) -> None:
        if self._corked:
            data = b"".join(self._corked)
            self._corked.clear()
            self._write_now(data)
