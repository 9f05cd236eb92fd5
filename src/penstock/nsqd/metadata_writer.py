"""Keeps `nsqd.dat` up to date, without holding up the loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from penstock.common.errors import StorageError
from penstock.common.logs import Logger
from penstock.nsqd import metadata

__all__ = ["MetadataWriter"]

# New topics and channels are named in the file this soon. They are on disk already; the delay makes
# one write of a thousand creations.
DELAY_SECONDS = 0.05

# How soon it is tried again when the disk has refused it.
RETRY_SECONDS = 1.0


class MetadataWriter:
    """Writes what `render` returns in a thread of its own, one write after the other."""

    def __init__(self, data_path: Path, render: Callable[[], bytes], log: Logger) -> None:
        self._data_path = data_path
        self._render = render
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def write_soon(self) -> None:
        """What there is to say has changed."""
        self._write_in(DELAY_SECONDS)

    def write(self, done: Callable[[StorageError | None], None]) -> None:
        """Writes now. Calls `done` in the loop once the file is fsynced, or with the failure; a
        failed write is retried."""
        self._begin().add_done_callback(
            lambda written: self._loop.call_soon_threadsafe(done, written.result())
        )

    def write_and_wait(self) -> None:
        """Writes and waits, blocking the loop: for use at the start. A failed write is logged and
        retried."""
        self._begin().result()

    def close(self) -> None:
        """Writes for the last time, and ends the thread. A failure is logged."""
        self._closed = True
        self._begin().result()
        self._thread.shutdown()

    def _write_in(self, seconds: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(seconds, self._begin)

    def _begin(self) -> Future[StorageError | None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._thread.submit(self._try, self._render())

    def _try(self, content: bytes) -> StorageError | None:
        try:
            metadata.write(self._data_path, content)
        except StorageError as failure:
            self._log.error("failed to persist metadata - %s", failure)
            self._loop.call_soon_threadsafe(self._write_in, RETRY_SECONDS)
            return failure
        return None
