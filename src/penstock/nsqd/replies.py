"""Replies that go out in the order of their commands, though some wait for an fsync."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.errors import StorageError

__all__ = ["Replies"]


@dataclass(slots=True)
class _Held:
    action: Callable[[], None]
    waits: int


class Replies:
    """The replies of one connection."""

    __slots__ = ("_failed", "_held", "_on_failure", "_write")

    def __init__(
        self, write: Callable[[bytes], None], on_failure: Callable[[StorageError], None]
    ) -> None:
        self._write = write
        self._on_failure = on_failure
        self._held: deque[_Held] = deque()
        self._failed = False

    @property
    def are_waiting(self) -> bool:
        """Whether there is something that has not been written yet."""
        return bool(self._held)

    def send(self, data: bytes) -> None:
        """Writes at once, or after all that is still waiting."""
        if self._held:
            self._held.append(_Held(partial(self._write, data), waits=0))
        else:
            self._write(data)

    def then(self, action: Callable[[], None]) -> None:
        """Does this at once, or after all that is still waiting has been written."""
        if self._held:
            self._held.append(_Held(action, waits=0))
        else:
            action()

    def hold(self, data: bytes, waits: int) -> Callable[[StorageError | None], None]:
        """Writes once the returned function has been called `waits` times without a failure. With
        the first failure all that waits is void."""
        held = _Held(partial(self._write, data), waits)
        self._held.append(held)

        def done(failure: StorageError | None) -> None:
            if self._failed:
                return
            if failure is not None:
                self._failed = True
                self._held.clear()
                self._on_failure(failure)
            else:
                held.waits -= 1
                self._release()

        return done

    def _release(self) -> None:
        while self._held and self._held[0].waits == 0:
            self._held.popleft().action()
