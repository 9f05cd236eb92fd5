"""Stopping a job that Spark is at: a signal is noted, and Spark is asked to stop.

A KeyboardInterrupt in the middle of a call to Java would leave that call's answer to be taken for
the next one's. So signals raise nothing here.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stop", "stop_on_signals"]


class Stop:
    """Whether it is time to stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Waits so long unless it is time to stop; whether it is."""
        return self._asked.wait(seconds)


@contextmanager
def stop_on_signals(interrupt: Callable[[], None] | None = None) -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask to stop; once more, and the process ends at once.

    `interrupt` is called then, in a thread of its own: it may end what the main thread waits for.
    """
    stop = Stop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_asked:
            os._exit(1)
        stop.ask()
        if interrupt is not None:
            threading.Thread(target=interrupt, daemon=True).start()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
