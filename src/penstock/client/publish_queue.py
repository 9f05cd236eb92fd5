"""What has been published and is not confirmed yet: gathered by topic into batches.

A batch is open to further messages of its topic until it is taken to be sent, so batches grow by
themselves when nsqd is slower than the publishers. Every batch that was added ends in `confirmed`
or in `failed`, once; until then it is somewhere: in this queue, or on a connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from penstock.client.batches import Batch, checked_topic
from penstock.client.config import ClientConfig
from penstock.client.connection import Publishes
from penstock.errors import ClientError

__all__ = ["PublishQueue"]

# What a message takes in memory beside its body, about.
_ENTRY_BYTES = 200


class PublishQueue:
    """Batches that wait to be sent, and the room there is for more."""

    def __init__(self, config: ClientConfig, added: Callable[[], None]) -> None:
        """`added` is called when there is a new batch to be sent."""
        self._loop = asyncio.get_running_loop()
        self._batch_size_max = min(config.max_batch_size, config.max_body_size)
        self._waiting_bytes_max = config.max_queued_bytes
        self._timeout = config.publish_timeout
        self._added = added
        self._queue: deque[Publishes] = deque()
        self._open: dict[str, Publishes] = {}
        self._unanswered = 0  # batches
        self._waiting_bytes = 0
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._nothing_waits = asyncio.Event()
        self._nothing_waits.set()

    def __len__(self) -> int:
        return len(self._queue)

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
            batch = self._open[topic] = self._append(Batch(checked_topic(topic)))
        batch.add(body)
        self._waiting_bytes += len(body) + 4 + _ENTRY_BYTES
        waiter = self._loop.create_future()
        batch.waiters.append(waiter)
        return waiter

    def add_batch(
        self, topic: str, bodies: Sequence[bytes], *, defer_ms: int = 0
    ) -> asyncio.Future[None]:
        """Messages that go together, or one that is deferred."""
        batch: Publishes = Batch(checked_topic(topic), defer_ms=defer_ms)
        batch.extend(bodies)
        self._append(batch)
        self._waiting_bytes += _weight(batch)
        waiter = self._loop.create_future()
        batch.waiters.append(waiter)
        return waiter

    def _append(self, batch: Publishes) -> Publishes:
        batch.deadline = self._loop.time() + self._timeout
        self._queue.append(batch)
        self._unanswered += 1
        self._nothing_waits.clear()
        self._added()
        return batch

    # Sending.

    def take(self) -> Publishes:
        """The batch to send next; nothing more is added to it."""
        batch = self._queue.popleft()
        if self._open.get(batch.topic) is batch:
            del self._open[batch.topic]
        return batch

    def put_back(self, batches: Iterable[Publishes]) -> None:
        """Batches that were taken and have to be sent again, before all others."""
        self._queue.extendleft(reversed(list(batches)))

    def split(self, batch: Publishes) -> bool:
        """Puts back a batch as one for each message; False if it is one already."""
        parts = batch.split()
        self._unanswered += len(parts) - 1 if parts else 0
        self.put_back(parts)
        return bool(parts)

    def take_expired(self) -> list[Publishes]:
        """Those that have waited too long to be sent."""
        now = self._loop.time()
        expired = [batch for batch in self._queue if batch.deadline <= now]
        if expired:
            self._queue = deque(batch for batch in self._queue if batch.deadline > now)
            for batch in expired:
                if self._open.get(batch.topic) is batch:
                    del self._open[batch.topic]
        return expired

    # Answering.

    def confirmed(self, batch: Publishes) -> None:
        """The batch is stored."""
        for waiter in batch.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._answered(batch)

    def failed(self, batch: Publishes, error: ClientError) -> None:
        """The batch will not be tried again."""
        for waiter in batch.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._answered(batch)

    def _answered(self, batch: Publishes) -> None:
        self._waiting_bytes -= _weight(batch)
        self._unanswered -= 1
        if not self._unanswered:
            self._nothing_waits.set()
        # All of them, because each looks again when its turn comes.
        while self._waiting_for_room and not self.is_full:
            waiter = self._waiting_for_room.popleft()
            if not waiter.done():
                waiter.set_result(None)


def _weight(batch: Publishes) -> int:
    """What the batch takes in memory, about."""
    return batch.size - 4 + _ENTRY_BYTES * len(batch.bodies)
