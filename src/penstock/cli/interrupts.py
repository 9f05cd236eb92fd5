"""Signals and closed outputs: a stop by signal is a success, a closed stdout is an error."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.common.errors import Error

__all__ = ["exit_on_signals", "require_stdout", "silence_stdout"]


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block without an error."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def require_stdout() -> None:
    """Raises Error if stdout is closed."""
    if sys.stdout is None:
        raise Error("standard output is closed")


def silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python's flush at exit does not report an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C. asyncio has its own SIGINT handler: an exception raised inside
    the event loop could lose data and then hang."""
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(on_ctrl_c):
        raise KeyboardInterrupt
    on_ctrl_c(signal.SIGINT, frame)
