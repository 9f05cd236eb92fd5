"""Replies of one connection, in the order of its commands.

A reply may have to wait until a published message is stored; later replies then wait behind it.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from penstock.broker.publishing import TurnBatch
from penstock.common.errors import StorageError

__all__ = ["Replies"]

PendingReply: TypeAlias = tuple[TurnBatch | None, str, bytes, Callable[[], object] | None]
"""The batch to wait for, the command to name if it fails, the bytes to write, and a function to
call after them."""


class Replies:
    """Writes replies at once, or after those that are pending."""

    __slots__ = ("_corked", "_on_failure", "_send_later", "_write", "_write_now", "pending", "send")

    def __init__(
        self, write: Callable[[bytes], None], on_failure: Callable[[str, StorageError], None]
    ) -> None:
        """`on_failure` is called with the command that failed, and the error."""
        self._write = self._write_now = write
        self._corked: list[bytes] = []
        self._on_failure = on_failure
        self.pending: deque[PendingReply] = deque()
        """Replies that wait for a message to be stored, and those behind them."""
        self._send_later = self._append_pending  # Bound once: saves a method object per reply.
        self.send = write
        """Writes a reply. While nothing is pending this is the transport's own `write`, which saves
        a call per reply."""

    def set_writer(self, write: Callable[[bytes], None]) -> None:
        """Replaces the function that writes to the transport."""
        if self._write is self._write_now:  # Nothing is corked.
            self._write = write
        self._write_now = write
        self._choose_send()

    def cork(self) -> None:
        """Collects replies until `uncork`, for one write."""
        self._write = self._corked.append
        self._choose_send()

    def uncork(self) -> None:
        """Writes the collected replies, and later ones at once."""
        self._write = self._write_now
        self._choose_send()
        self._write_corked()

    def send_when_stored(self, batch: TurnBatch, command: str, data: bytes) -> None:
        """Writes a reply once the batch is safe. If the batch fails, `on_failure` is called with
        `command` instead."""
        self.pending.append((batch, command, data, None))
        batch.waiters.append(self)
        self.send = self._send_later

    def call_when_sent(self, action: Callable[[], object]) -> None:
        """Calls a function after all replies so far have been written."""
        if self.pending:
            self.pending.append((None, "", b"", action))
        else:
            self._write_corked()
            action()

    def on_batch_done(self, batch: TurnBatch) -> None:
        """Writes the replies that waited for this batch."""
        pending = self.pending
        if len(pending) == 1 and batch.is_safe and pending[0][0] is batch:  # The usual case.
            data = pending.popleft()[2]
            self.send = write = self._write
            write(data)
        elif pending:
            self._send_ready()

    def _choose_send(self) -> None:
        self.send = self._send_later if self.pending else self._write

    def _append_pending(self, data: bytes) -> None:
        self.pending.append((None, "", data, None))

    def _send_ready(self) -> None:
        """Writes the pending replies up to the first whose batch is not safe, with one write."""
        pending = self.pending
        ready: list[bytes] = []
        while pending:
            batch, command, data, action = pending[0]
            if batch is not None and not batch.is_safe:
                break
            pending.popleft()
            ready.append(data)
            if action is not None:
                self._write_all(ready)
                self._write_corked()
                self._choose_send()
                action()
        self._write_all(ready)
        failure = batch.failure if pending and batch is not None else None
        if failure is not None:
            pending.clear()  # The connection ends with the error.
        self._choose_send()
        if failure is not None:
            self._on_failure(command, failure)

    def _write_all(self, replies: list[bytes]) -> None:
        if data := b"".join(replies):
            self._write(data)
            replies.clear()

    def _write_corked(self) -> None:
        if self._corked:
            data = b"".join(self._corked)
            self._corked.clear()
            self._write_now(data)
