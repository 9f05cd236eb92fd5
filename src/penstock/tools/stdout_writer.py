"""Writes lines to standard output, whose reader may block for any time.

A message is finished after its line is written, or requeued if that fails. A daemon thread writes,
so that heartbeats continue and the process can exit while a write blocks.
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

# Time limit for the current write after a cancellation.
CANCEL_SECONDS = 0.3


def open_stdout() -> "StdoutWriter":
    """Raises Error if stdout is closed."""
    if sys.stdout is None:
        raise Error("standard output is closed")
    return StdoutWriter(sys.stdout.fileno())


class StdoutWriter:
    """Writes to a file, a pipe or a terminal."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # A queue, so that the lines of two topics do not mix.
        self._to_write: SimpleQueue[tuple[bytes, Future[None]]] = SimpleQueue()
        Thread(target=self._write_all, daemon=True).start()

    async def show(self, messages: Sequence[Message], lines: bytes) -> None:
        """Write the lines of these messages, then finish the messages. If writing fails, requeue
        them and raise BrokenPipeError if the reader is gone, Error otherwise."""
        writing = self._begin_writing(lines)
        try:
            await _wait_until_written(writing)
            _raise_failure(writing)
        finally:
            is_written = not writing.cancel() and writing.exception() is None
            for message in messages:
                if is_written:
                    message.finish()
                else:
                    message.requeue()

    async def write(self, lines: bytes) -> None:
        """Write lines that belong to no message; raises like `show`."""
        await self.show((), lines)

    def _begin_writing(self, data: bytes) -> asyncio.Future[None]:
        writing: Future[None] = Future()
        writing.set_running_or_notify_cancel()  # A write that has started cannot be cancelled.
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


async def _wait_until_written(writing: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait({writing})
    except asyncio.CancelledError:
        await asyncio.wait({writing}, timeout=CANCEL_SECONDS)
        raise


def _raise_failure(writing: asyncio.Future[None]) -> None:
    try:
        writing.result()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Error(f"standard output cannot be written: {error.strerror}") from None
