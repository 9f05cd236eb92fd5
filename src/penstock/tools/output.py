"""Messages on standard output, whose reader may hold it up for as long as he likes.

A message is finished once its line has been written, and given back if it could not be. Writing
happens in a thread, so that heartbeats go on meanwhile. It may last for ever: nobody waits for the
thread when it is time to leave.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread

from penstock.client import Message
from penstock.errors import Error

__all__ = ["Output", "standard_output"]

# How long the reader may still take, once we are to leave, for what is being written.
LEAVING_SECONDS = 0.3


def standard_output() -> "Output":
    """Raises Error if it is closed."""
    if sys.stdout is None:
        raise Error("standard output is closed")
    return Output(sys.stdout.fileno())


class Output:
    """A file, a pipe or a terminal."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._turn = asyncio.Lock()  # so that the lines of two topics do not mix

    async def show(self, messages: Sequence[Message], lines: bytes) -> None:
        """Returns when these messages' lines are written. Raises BrokenPipeError if nobody reads
        any more, and Error if they cannot be written. Either way the messages are answered."""
        writing: asyncio.Future[None] | None = None
        try:
            async with self._turn:
                writing = _begin_writing(self.fd, lines)
                await _until_taken(writing)
            _raise_failure(writing)
        finally:
            is_written = writing is not None and not writing.cancel() and not writing.exception()
            for message in messages:
                if is_written:
                    message.finish()
                else:
                    message.requeue()


def _begin_writing(fd: int, data: bytes) -> asyncio.Future[None]:
    """Not by the loop's own threads, which are waited for at the end."""
    writing: Future[None] = Future()
    writing.set_running_or_notify_cancel()  # It goes on, though its outcome be of no interest.
    Thread(target=_write, args=(fd, data, writing), daemon=True).start()
    return asyncio.wrap_future(writing)


def _write(fd: int, data: bytes, writing: Future[None]) -> None:
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError as error:
        writing.set_exception(error)
    else:
        writing.set_result(None)


async def _until_taken(writing: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait({writing})
    except asyncio.CancelledError:
        await asyncio.wait({writing}, timeout=LEAVING_SECONDS)
        raise


def _raise_failure(writing: asyncio.Future[None]) -> None:
    try:
        writing.result()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Error(f"standard output cannot be written: {error.strerror}") from None
