"""What ends a tool, and is no failure: being told to stop, or having been read enough. And what is
one, though it be no fault of the tool's: an output that cannot be written."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.errors import Error

__all__ = ["leaving_on_signals", "quiet_when_unread", "require_stdout", "silence_stdout"]


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, and nothing else: the exit code is then 0."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def quiet_when_unread() -> Iterator[None]:
    """Whoever read our output has seen enough: that ends the block, and is no failure. Raises Error
    if the output cannot be written."""
    try:
        yield
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        silence_stdout()
        raise Error(f"standard output cannot be written: {error.strerror}") from None


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
