"""What ends a tool, and is no failure: being told to stop, or having been read enough. And what is
one, though it be no fault of the tool's: an output that is closed."""

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
    """Ctrl-C and SIGTERM end the block, and nothing else: the exit code is then 0."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def require_stdout() -> None:
    """Raises Error if it is closed."""
    if sys.stdout is None:
        raise Error("standard output is closed")


def silence_stdout() -> None:
    """Python would complain once more, at its end, that nobody reads what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """As Ctrl-C, which asyncio has its own way with: an exception amid the work of a loop would let
    it lose what it had in hand, and then wait for that for ever."""
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(on_ctrl_c):
        raise KeyboardInterrupt
    on_ctrl_c(signal.SIGINT, frame)
