"""Unexpected exceptions that were contained: each is logged with its traceback, and counted.

Code that serves one client, channel, topic or timer catches what that one raises, reports it here
and continues with the others. So a bug costs one of them, and the log and `/metrics` say so.
"""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from penstock.logs import Logger

__all__ = ["BugReports"]


class BugReports:
    """Logs and counts bugs."""

    def __init__(self, log: Logger) -> None:
        self.count = 0
        self._log = log

    def report(self, doing: str, bug: BaseException) -> None:
        """`doing` completes the sentence "internal error while ..."."""
        self.count += 1
        if isinstance(bug, MemoryError):
            gc.collect()  # Connections that have gone may still hold what they received.
        self._log.exception("internal error while %s - %r", doing, bug, error=bug)

    def contain(self, doing: str, step: Callable[[], object]) -> None:
        """Runs a step; if it raises, reports that and returns."""
        try:
            step()
        except Exception as bug:  # noqa: BLE001 (reported)
            self.report(doing, bug)

    def handle_loop_exceptions(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has the event loop report the exceptions that nothing else contained."""
        loop.set_exception_handler(self._on_loop_exception)

    def _on_loop_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, bug = context.get("message") or "in a callback", context.get("exception")
        if bug is None:
            self._log.error("event loop: %s", message)
        else:
            self.report(f"running the event loop ({message})", bug)
