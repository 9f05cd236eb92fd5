"""What has been published and is not confirmed yet: gathered by topic into batches.

A batch is open to further messages of its topic until it is taken to be sent, so batches grow by
themselves when nsqd is slower than the publishers. Every batch that was added ends in `confirmed`
or in `failed`, once, and what is said of it after that is not heard; until then it is somewhere: in
this queue, or on a connection.
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

# What a message takes in memory beside its body, about.
_ENTRY_BYTES = 200


class PublishQueue:
    """Batches that wait to be sent, and the room there is for more."""

    def __init__(self, config: ClientConfig, added: Callable[[], None]) -> None:
        """`added` is called when there is a new batch to be sent."""
        self._loop = asyncio.get_running_loop()
        self._batch_size_max = config.max_batch_size
        self._waiting_bytes_max = config.max_queued_bytes
        self._timeout = config.publish_timeout
        self._added = added
        self._queue: deque[AwaitedBatch] = deque()
        self._open: dict[str, AwaitedBatch] = {}
        self._unanswered: dict[AwaitedBatch, None] = {}  # the oldest first
        self._waiting_bytes = 0
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._nothing_waits = asyncio.Event()
        self._nothing_waits.set()

    def __bool__(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._queue)

    @property
    def next_deadline(self) -> float | None:
        """When the oldest batch will have waited too long."""
        return next(iter(self._unanswered)).deadline if self._unanswered else None

    # Room.

    @property
    def is_full(self) -> bool:
        """Whether as much is waiting as may."""
        return self._waiting_bytes >= self._waiting_bytes_max

    async def wait_for_room(self) -> None:
        """Returns when the queue is no longer full."""
        while self.is_full:
            waiter = self._loop.create_future()
            self._waiting_for_room.append(waiter)
            await waiter

    async def wait_until_empty(self) -> None:
        """Returns when all that was added is confirmed or has failed."""
        await self._nothing_waits.wait()

    # Adding.

    def add(self, topic: str, body: bytes) -> asyncio.Future[None]:
        """A message; the future is done when it is stored."""
        batch = self._open.get(topic)
        if batch is None or batch.size + len(body) + 4 > self._batch_size_max:
            batch = self._open[topic] = self._append(PublishBatch(checked_topic(topic)))
        batch.add(body)
        self._waiting_bytes += len(body) + 4 + _ENTRY_BYTES
        waiter = self._loop.create_future()
        batch.waiters.append(waiter)
        return waiter

    def add_batch(
        self, topic: str, bodies: Sequence[bytes], *, defer_ms: int = 0
    ) -> asyncio.Future[None]:
        """Messages that go together, or one that is deferred."""
        batch: AwaitedBatch = PublishBatch(checked_topic(topic), defer_ms=defer_ms)
        batch.extend(bodies)
        self._append(batch)
        self._waiting_bytes += _weight(batch)
        waiter = self._loop.create_future()
        batch.waiters.append(waiter)
        return waiter

    def _append(self, batch: AwaitedBatch) -> AwaitedBatch:
        batch.deadline = self._loop.time() + self._timeout
        self._queue.append(batch)
        self._unanswered[batch] = None
        self._nothing_waits.clear()
        self._added()
        return batch

    # Sending.

    def take(self) -> AwaitedBatch:
        """The batch to send next; nothing more is added to it."""
        batch = self._queue.popleft()
        self._close(batch)
        return batch

    def put_back(self, batches: Iterable[AwaitedBatch]) -> None:
        """Batches that were taken and have to be sent again, before all others."""
        still_wanted = [batch for batch in batches if batch in self._unanswered]
        self._queue.extendleft(reversed(still_wanted))

    def split(self, batch: AwaitedBatch) -> bool:
        """Puts back a batch as one for each message; False if it is one already."""
        parts = batch.split()
        if parts and batch in self._unanswered:
            del self._unanswered[batch]
            self._unanswered.update(dict.fromkeys(parts))
            self.put_back(parts)
        return bool(parts)

    def take_expired(self) -> list[AwaitedBatch]:
        """Those that have waited too long, sent or not. They are to be failed."""
        now = self._loop.time()
        expired = list(takewhile(lambda batch: batch.deadline <= now, self._unanswered))
        if expired:
            gone = set(expired)
            self._queue = deque(batch for batch in self._queue if batch not in gone)
            for batch in expired:
                self._close(batch)
        return expired

    def _close(self, batch: AwaitedBatch) -> None:
        if self._open.get(batch.topic) is batch:
            del self._open[batch.topic]

    # Answering.

    def confirmed(self, batch: AwaitedBatch) -> None:
        """The batch is stored."""
        if batch in self._unanswered:
            for waiter in batch.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._answered(batch)

    def failed(self, batch: AwaitedBatch, error: ClientError) -> None:
        """The batch will not be tried again."""
        if batch in self._unanswered:
            for waiter in batch.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
            self._answered(batch)

    def _answered(self, batch: AwaitedBatch) -> None:
        del self._unanswered[batch]
        self._waiting_bytes -= _weight(batch)
        if not self._unanswered:
            self._nothing_waits.set()
        # Each looks again when its turn comes, so it does no harm to wake too many.
        while self._waiting_for_room and not self.is_full:
            waiter = self._waiting_for_room.popleft()
            if not waiter.done():
                waiter.set_result(None)


def _weight(batch: AwaitedBatch) -> int:
    """What the batch takes in memory, about."""
    return batch.size - 4 + _ENTRY_BYTES * len(batch.bodies)
