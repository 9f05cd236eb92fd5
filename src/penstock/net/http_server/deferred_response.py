"""An answer that comes later.

What a future of asyncio's is, but told at once: its callback runs when the promise is kept, not in
the loop's next turn. Where most requests are answered a moment later, as publishes are, that is a
third of what a request costs.
"""

from collections.abc import Callable

from penstock.net.http_server.errors import HttpError

__all__ = ["Promise"]


_NOT_YET = object()


class Promise:
    """Made by an endpoint, kept once, heard by one."""

    outcome: object = _NOT_YET
    """The answer, or the HttpError that it is instead, once it is there."""
    _on_kept: Callable[[], None] | None = None

    def keep(self, outcome: object) -> None:
        """This is what was promised."""
        assert self.outcome is _NOT_YET
        self.outcome = outcome
        on_kept = self._on_kept
        if on_kept is not None:
            on_kept()

    def done(self) -> bool:
        """Whether the answer is there."""
        return self.outcome is not _NOT_YET

    def result(self) -> object:
        """The answer, once it is there. Raises the HttpError that it is instead."""
        outcome = self.outcome
        assert outcome is not _NOT_YET
        if isinstance(outcome, HttpError):
            raise outcome
        return outcome

    def when_kept(self, on_kept: Callable[[], None]) -> None:
        """Calls `on_kept` once the answer is there: now, or when it comes."""
        self._on_kept = on_kept
        if self.outcome is not _NOT_YET:
            on_kept()
