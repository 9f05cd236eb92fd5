"""An answer that comes later.

What a future of asyncio's is, but told at once: its callback runs when the promise is kept, not in
the loop's next turn. Where most requests are answered a moment later, as publishes are, that is a
third of what a request costs.
"""

from collections.abc import Callable

from msgspec import Struct

from penstock.webapi.errors import HttpError

__all__ = ["Promise"]


class Promise(Struct, eq=False):
    """Made by an endpoint, kept once, heard by one."""

    _is_kept: bool = False
    _result: object = None
    _error: HttpError | None = None
    _on_kept: "Callable[[Promise], None] | None" = None

    def keep(self, result: object) -> None:
        """This is the answer."""
        self._result = result
        self._settle()

    def refuse(self, error: HttpError) -> None:
        """This is the answer instead."""
        self._error = error
        self._settle()

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._is_kept

    def result(self) -> object:
        """The answer, once it is there. Raises the HttpError that it is instead."""
        assert self._is_kept
        if self._error is not None:
            raise self._error
        return self._result

    def add_done_callback(self, on_kept: "Callable[[Promise], None]") -> None:
        """Calls `on_kept` once the answer is there: now, or when it comes."""
        self._on_kept = on_kept
        if self._is_kept:
            on_kept(self)

    def _settle(self) -> None:
        assert not self._is_kept
        self._is_kept = True
        if self._on_kept is not None:
            self._on_kept(self)
