"""Unconfirmed messages of a producer, batched by topic.

A batch accepts further messages of its topic until it is taken for sending, so batches grow when
nsqd is slower than the publishers. Every batch ends exactly once, with `confirm` or `fail`; later
calls for it have no effect. Until then it is in this queue or on a connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from penstock.client.config import ClientConfig
from penstock.client.connection import AwaitedBatch
from penstock.client.publish_batch import PublishBatch, checked_topic
from penstock.common.errors import ClientError

__all__ = ["PublishQueue"]

# Approximate memory per message in addition to its body.
_ENTRY_BYTES = 200


class PublishQueue:
    """Batches to send, and the limit on unconfirmed bytes."""

    def __init__(self, config: ClientConfig, on_added: Callable[[], None]) -> None:
        """`on_added` is called when there is a new batch to send."""
        self._loop = asyncio.get_running_loop()
        self._batch_size_max = config.max_batch_size
        self._unconfirmed_bytes_max = config.max_queued_bytes
        self._timeout = config.publish_timeout
        self._on_added = on_added
        self._queue: deque[AwaitedBatch] = deque()
        self._open: dict[str, AwaitedBatch] = {}
        self._unconfirmed: dict[AwaitedBatch, None] = {}  # the oldest first
        self._unconfirmed_bytes = 0
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __bool__(self) -> bool:
        """Whether there is a batch to send."""
        return bool(self._queue)

    @property
    def next_deadline(self) -> float | None:
        """Deadline of the oldest batch."""
        return next(iter(self._unconfirmed)).deadline if self._unconfirmed else None

    # Limit.

    @property
    def is_full(self) -> bool:
        """Whether the limit on unconfirmed bytes is reached."""
        return self._unconfirmed_bytes >= self._unconfirmed_bytes_max

    async def wait_for_room(self) -> None:
        """Wait until the queue is not full."""
        while self.is_full:
            waiter = self._loop.create_future()
            self._waiting_for_room.append(waiter)
            await waiter

    async def wait_until_empty(self) -> None:
        """Wait until every batch is confirmed or has failed."""
        await self._is_empty.wait()

    # Adding.

    def add(self, topic: str, body: bytes) -> asyncio.Future[None]:
        """Queue a message; the future is done when nsqd has stored it."""
        batch = self._open.get(topic)
        if batch is None or batch.size + len(body) + 4 > self._batch_size_max:
            batch = self._open[topic] = self._append(PublishBatch(checked_topic(topic)))
        batch.add(body)
        self._unconfirmed_bytes += len(body) + 4 + _ENTRY_BYTES
        waiter = self._loop.create_future()
        batch.waiters.append(waiter)
        return waiter

    def add_batch(
        self, topic: str, bodies: Sequence[bytes], *, defer_ms: int = 0
    ) -> asyncio.Future[None]:
        """Queue messages that are published by one command."""
        batch: AwaitedBatch = PublishBatch(checked_topic(topic), defer_ms=defer_ms)
        batch.extend(bodies)
        self._append(batch)
        self._unconfirmed_bytes += _memory_bytes(batch)
        waiter = self._loop.create_future()
        batch.waiters.append(waiter)
        return waiter

    def _append(self, batch: AwaitedBatch) -> AwaitedBatch:
        batch.deadline = self._loop.time() + self._timeout
        self._queue.append(batch)
        self._unconfirmed[batch] = None
        self._is_empty.clear()
        self._on_added()
        return batch

    # Sending.

    def take(self) -> AwaitedBatch:
        """Remove and return the next batch; no message is added to it any more."""
        batch = self._queue.popleft()
        self._close(batch)
        return batch

    def requeue(self, batches: Iterable[AwaitedBatch]) -> None:
        """Put taken batches back at the front, to be sent again."""
        still_wanted = [batch for batch in batches if batch in self._unconfirmed]
        self._queue.extendleft(reversed(still_wanted))

    def split(self, batch: AwaitedBatch) -> bool:
        """Requeue a batch as one batch per message. False if it cannot be split."""
        parts = batch.split()
        if parts and batch in self._unconfirmed:
            del self._unconfirmed[batch]
            self._unconfirmed.update(dict.fromkeys(parts))
            self.requeue(parts)
        return bool(parts)

    def take_expired(self) -> list[AwaitedBatch]:
        """Remove and return the batches past their deadline, sent or not. The caller fails them."""
        now = self._loop.time()
        expired = list(takewhile(lambda batch: batch.deadline <= now, self._unconfirmed))
        if expired:
            removed = set(expired)
            self._queue = deque(batch for batch in self._queue if batch not in removed)
            for batch in expired:
                self._close(batch)
        return expired

    def _close(self, batch: AwaitedBatch) -> None:
        if self._open.get(batch.topic) is batch:
            del self._open[batch.topic]

    # Results.

    def confirm(self, batch: AwaitedBatch) -> None:
        """nsqd has stored the batch."""
        if batch in self._unconfirmed:
            for waiter in batch.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._remove(batch)

    def fail(self, batch: AwaitedBatch, error: ClientError) -> None:
        """The batch is not retried any more."""
        if batch in self._unconfirmed:
            for waiter in batch.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
            self._remove(batch)

    def _remove(self, batch: AwaitedBatch) -> None:
        del self._unconfirmed[batch]
        self._unconfirmed_bytes -= _memory_bytes(batch)
        if not self._unconfirmed:
            self._is_empty.set()
        # Each waiter checks again, so waking too many does no harm.
        while self._waiting_for_room and not self.is_full:
            waiter = self._waiting_for_room.popleft()
            if not waiter.done():
                waiter.set_result(None)


def _memory_bytes(batch: AwaitedBatch) -> int:
    """Approximate memory of the batch, in bytes."""
    return batch.size - 4 + _ENTRY_BYTES * len(batch.bodies)
