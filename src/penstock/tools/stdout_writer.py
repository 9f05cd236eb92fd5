"""Lines on standard output, whose reader may hold it up for as long as he likes.

A message is finished once its line has been written, and given back if it could not be. Writing
happens in a thread, so that heartbeats go on meanwhile. It may last for ever: nobody waits for the
thread when it is time to leave, as would be done for the loop's own threads.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

from penstock.client import Message
from penstock.common.errors import Error

__all__ = ["StdoutWriter", "open_stdout"]

# How long the reader may still take, once we are to leave, for what is being written.
LEAVING_SECONDS = 0.3


def open_stdout() -> "StdoutWriter":
    """Raises Error if it is closed."""
    if sys.stdout is None:
        raise Error("standard output is closed")
    return StdoutWriter(sys.stdout.fileno())


class StdoutWriter:
    """A file, a pipe or a terminal."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # One after the other, so that the lines of two topics do not mix.
        self._to_write: SimpleQueue[tuple[bytes, Future[None]]] = SimpleQueue()
        Thread(target=self._write_all, daemon=True).start()

    async def show(self, messages: Sequence[Message], lines: bytes) -> None:
        """Returns when these messages' lines are written. Raises BrokenPipeError if nobody reads
        any more, and Error if they cannot be written. Either way the messages are answered."""
        writing = self._begin_writing(lines)
        try:
            await _until_taken(writing)
            _raise_failure(writing)
        finally:
            is_written = not writing.cancel() and writing.exception() is None
            for message in messages:
                if is_written:
                    message.finish()
                else:
                    message.requeue()

    async def write(self, lines: bytes) -> None:
        """The same for lines that are of no message."""
        await self.show((), lines)

    def _begin_writing(self, data: bytes) -> asyncio.Future[None]:
        writing: Future[None] = Future()
        writing.set_running_or_notify_cancel()  # It goes on, though its outcome be of no interest.
        self._to_write.put((data, writing))
        return asyncio.wrap_future(writing)

    def _write_all(self) -> None:
        while True:
            data, writing = self._to_write.get()
            try:
                _write(self.fd, data)
            except OSError as error:
                writing.set_exception(error)
            else:
                writing.set_result(None)


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


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
