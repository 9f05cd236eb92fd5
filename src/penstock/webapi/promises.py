"""An answer that comes later.

What a future of asyncio's is, but told at once: its callback runs when the promise is kept, not in
the loop's next turn. Where most requests are answered a moment later, as publishes are, that is a
third of what a request costs.
"""

from collections.abc import Callable

from msgspec import Struct

from penstock.webapi.errors import HttpError

__all__ = ["Promise"]


_NOT_YET = object()


class Promise(Struct, eq=False):
    """Made by an endpoint, kept once, heard by one."""

    _outcome: object = _NOT_YET
    _on_kept: Callable[[], None] | None = None

    def keep(self, outcome: object) -> None:
        """This is the answer, or the HttpError that it is instead."""
        assert self._outcome is _NOT_YET
        self._outcome = outcome
        if self._on_kept is not None:
            self._on_kept()

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._outcome is not _NOT_YET

    def result(self) -> object:
        """The answer, once it is there. Raises the HttpError that it is instead."""
        outcome = self._outcome
        assert outcome is not _NOT_YET
        if isinstance(outcome, HttpError):
            raise outcome
        return outcome

    def when_kept(self, on_kept: Callable[[], None]) -> None:
        """Calls `on_kept` once the answer is there: now, or when it comes."""
        self._on_kept = on_kept
        if self._outcome is not _NOT_YET:
            on_kept()
