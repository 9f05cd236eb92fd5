"""Replies that go out in the order of their commands, though some wait for a message to be safe."""

from collections import deque
from collections.abc import Callable

from penstock.errors import StorageError

__all__ = ["Held", "Replies"]


class Held:
    """Replies that wait. What they wait for calls `done`; and there is one wait more, which ends
    with `complete`: until then commands may follow whose replies belong here too."""

    __slots__ = ("_replies", "action", "waits", "word")

    def __init__(self, replies: "Replies") -> None:
        self._replies = replies
        self.action: Callable[[], None] | bytes = b""
        self.waits = 1
        self.word = ""  # the command that is to blame if it fails

    def done(self, failure: StorageError | None) -> None:
        """One thing less to wait for. With the first failure all that waits is void."""
        if failure is not None:
            self._replies.fail(self.word, failure)
        else:
            self.waits -= 1
            if not self.waits:
                self._replies.release()

    def complete(self, data: bytes) -> None:
        """This is what is to be written when there is nothing more to wait for."""
        self.action = data
        self.done(None)


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

    def hold(self) -> Held:
        """Begins replies that have to wait, and that all later ones wait for."""
        held = Held(self)
        self._held.append(held)
        return held

    def send(self, data: bytes) -> None:
        """Writes at once, or after all that is still waiting."""
        if self._held:
            self.hold().complete(data)
        else:
            self._write(data)

    def then(self, action: Callable[[], None]) -> None:
        """Does this at once, or after all that is still waiting has been written."""
        if self._held:
            held = self.hold()
            held.action = action
            held.waits = 0
        else:
            action()

    def release(self) -> None:
        """Writes what need not wait any longer."""
        held = self._held
        while held and not held[0].waits:
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
