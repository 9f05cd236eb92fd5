"""Replies that go out in the order of their commands, though some wait for a message to be safe."""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from penstock.errors import StorageError

__all__ = ["Held", "Replies"]

Action: TypeAlias = Callable[[], None] | bytes
"""What is to be done, or written."""


class Held:
    """One that waits. What it waits for calls `done`."""

    __slots__ = ("_replies", "_word", "action", "is_due")

    def __init__(self, replies: "Replies", word: str, action: Action) -> None:
        self._replies = replies
        self._word = word
        self.action = action
        self.is_due = False

    def done(self, failure: StorageError | None) -> None:
        """There is nothing to wait for any more. With the first failure all that waits is void."""
        if failure is None:
            self.is_due = True
            self._replies.release()
        else:
            self._replies.fail(self._word, failure)


class Replies:
    """The replies of one connection."""

    __slots__ = ("_failed", "_held", "_on_failure", "_write")

    def __init__(
        self, write: Callable[[bytes], None], on_failure: Callable[[str, StorageError], None]
    ) -> None:
        self._write = write
        self._on_failure = on_failure
        self._held: deque[Held] = deque()
        self._failed = False

    @property
    def are_waiting(self) -> bool:
        """Whether there is something that has not been written yet."""
        return bool(self._held)

    def hold(self, word: str, data: bytes) -> Held:
        """A reply that has to wait, and that all later ones wait for. `word` is the command that is
        to blame if it fails."""
        held = Held(self, word, data)
        self._held.append(held)
        return held

    def send(self, data: bytes) -> None:
        """Writes at once, or after all that is still waiting."""
        if self._held:
            self._do_afterwards(data)
        else:
            self._write(data)

    def then(self, action: Callable[[], None]) -> None:
        """Does this at once, or after all that is still waiting has been written."""
        if self._held:
            self._do_afterwards(action)
        else:
            action()

    def release(self) -> None:
        """Writes what need not wait any longer."""
        held = self._held
        while held and held[0].is_due:
            action = held.popleft().action
            if isinstance(action, bytes):
                self._write(action)
            else:
                action()

    def fail(self, word: str, failure: StorageError) -> None:
        """Nothing of what waits will be written."""
        if not self._failed:
            self._failed = True
            self._held.clear()
            self._on_failure(word, failure)

    def _do_afterwards(self, action: Action) -> None:
        last = Held(self, "", action)
        last.is_due = True
        self._held.append(last)
