"""Replies that go out in the order of their commands, though some wait for a message to be safe."""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from penstock.errors import StorageError
from penstock.nsqd.publisher import Batch

__all__ = ["Replies"]

Held: TypeAlias = tuple[Batch | None, str, bytes, Callable[[], None] | None]
"""What has to be safe first; the command to blame if it fails; what is to be written, and done."""


class Replies:
    """The replies of one connection."""

    __slots__ = ("_corked", "_held", "_on_failure", "_write", "_write_now")

    def __init__(
        self, write: Callable[[bytes], None], on_failure: Callable[[str, StorageError], None]
    ) -> None:
        """`on_failure` is told which command could not be carried out, and why."""
        self._write = self._write_now = write
        self._corked: list[bytes] = []
        self._on_failure = on_failure
        self._held: deque[Held] = deque()

    def write_by(self, write: Callable[[bytes], None]) -> None:
        """Takes another function to write with."""
        if self._write is self._write_now:  # nothing is corked
            self._write = write
        self._write_now = write

    @property
    def are_waiting(self) -> bool:
        """Whether there is something that has not been written yet."""
        return bool(self._held)

    def cork(self) -> None:
        """Keeps what is to be written until `uncork`, for one write: more is about to come."""
        self._write = self._corked.append

    def uncork(self) -> None:
        """Writes what was kept, and what comes from now on at once."""
        self._write = self._write_now
        self._write_corked()

    def hold(self, batch: Batch, word: str, data: bytes) -> None:
        """A reply that has to wait for a batch, and that all later ones wait for. `word` is the
        command that is to blame if it fails."""
        self._held.append((batch, word, data, None))
        batch.waiting.append(self)

    def send(self, data: bytes) -> None:
        """Writes at once, or after all that is still waiting."""
        if self._held:
            self._held.append((None, "", data, None))
        else:
            write = self._write  # Behind a dot it would be looked for among the methods first.
            write(data)

    def then(self, action: Callable[[], None]) -> None:
        """Does this at once, or after all that is still waiting has been written."""
        if self._held:
            self._held.append((None, "", b"", action))
        else:
            self._write_corked()
            action()

    def settled(self, batch: Batch) -> None:
        """A batch that a reply waits for is safe, or has failed."""
        held = self._held
        if len(held) == 1 and batch.is_safe and held[0][0] is batch:  # nearly always
            self._write(held.popleft()[2])
        elif held:
            self._release()

    def _release(self) -> None:
        """Writes what need not wait any longer, with one write, up to what failed."""
        held = self._held
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
                action()
        self._write_all(due)
        if held and batch is not None and batch.failure is not None:
            held.clear()  # Nothing that comes after it will be written.
            self._on_failure(word, batch.failure)

    def _write_all(self, due: list[bytes]) -> None:
        if data := b"".join(due):
            self._write(data)
            due.clear()

    def _write_corked(self) -> None:
        if self._corked:
            data = b"".join(self._corked)
            self._corked.clear()
            self._write_now(data)
