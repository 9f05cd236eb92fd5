"""One topic of nsq_to_file: from its consumer into its files, and only then finished.

`_held` is what has been written and not been synced. Whoever touches it or the files has the lock.
"""

import asyncio
from contextlib import suppress

from penstock.client import Consumer, Message
from penstock.common.clock import SECOND_NS
from penstock.tools.file_options import FileOptions
from penstock.tools.rotating_file import RotatingFile

__all__ = ["TopicArchive"]


class TopicArchive:
    """Takes what the consumer, which has been started, brings."""

    def __init__(self, consumer: Consumer, files: RotatingFile, options: FileOptions) -> None:
        self._consumer = consumer
        self._files = files
        self._held_max = options.max_in_flight
        self._sync_seconds = options.sync_interval_ns / SECOND_NS
        self._held: list[Message] = []
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Until `stop`; then all that has come is on disk, and finished. Raises StorageError."""
        touching = asyncio.create_task(self._consumer.keep_touching(lambda: self._held))
        try:
            await self._take()
            await self.hang_up()
        finally:
            touching.cancel()
            await self._consumer.close()

    def stop(self) -> None:
        """Asks for no more messages."""
        self._consumer.stop()

    async def hang_up(self) -> None:
        """Syncs, and finishes the file. Raises StorageError."""
        async with self._lock:
            await self._sync()
            await asyncio.to_thread(self._files.close)

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        tick_at = loop.time() + self._sync_seconds
        while True:
            messages: list[Message] | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout_at(tick_at):
                    messages = await self._consumer.batch(self._held_max)
            if messages:
                await self._store(messages)
            elif messages is not None:
                return
            if loop.time() >= tick_at:
                tick_at = loop.time() + self._sync_seconds
                await self._tick()

    async def _store(self, messages: list[Message]) -> None:
        async with self._lock:
            is_full = len(self._held) + len(messages) >= self._held_max
            must_sync = is_full or self._consumer.is_starved
            is_synced = await asyncio.to_thread(self._write, messages, must_sync=must_sync)
            self._held += messages
            if is_synced:
                self._finish()

    def _write(self, messages: list[Message], *, must_sync: bool) -> bool:
        """In a thread. Returns whether all is synced."""
        has_rotated = self._files.write([message.body for message in messages])
        if has_rotated or must_sync:
            self._files.sync()
        return has_rotated or must_sync

    async def _tick(self) -> None:
        async with self._lock:
            await asyncio.to_thread(self._files.rotate_if_due)
            await self._sync()

    async def _sync(self) -> None:
        if self._held:
            await asyncio.to_thread(self._files.sync)
            self._finish()

    def _finish(self) -> None:
        """All that is held, which is synced."""
        for message in self._held:
            message.finish()
        self._held = []
