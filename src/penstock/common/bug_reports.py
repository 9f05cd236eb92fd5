"""Logging and counting of unexpected exceptions, which are bugs.

Code that serves one client, channel, topic or timer catches its unexpected exceptions, reports them
here and continues with the others. So a bug affects only one of them, and is visible in the log and
in `/metrics`.
"""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from penstock.common.logs import Logger

__all__ = ["BugReports"]


class BugReports:
    """Logs and counts bugs."""

    def __init__(self, log: Logger) -> None:
        self.count = 0
        self._log = log

    def report(self, doing: str, bug: BaseException) -> None:
        """Logs and counts a bug. `doing` completes the log line "internal error while ..."."""
        self.count += 1
        if isinstance(bug, MemoryError):
            gc.collect()  # Closed connections may still hold received data.
        self._log.exception("internal error while %s - %r", doing, bug, error=bug)

    def contain(self, doing: str, step: Callable[[], object]) -> None:
        """Runs a step; if it raises, reports the exception and returns."""
        try:
            step()
        except Exception as bug:  # noqa: BLE001 (reported)
            self.report(doing, bug)

    def handle_loop_exceptions(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes the event loop report exceptions that were not caught elsewhere."""
        loop.set_exception_handler(self._on_loop_exception)

    def _on_loop_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, bug = context.get("message") or "in a callback", context.get("exception")
        if bug is None:
            self._log.error("event loop: %s", message)
        else:
            self.report(f"running the event loop ({message})", bug)
