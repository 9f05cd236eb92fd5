"""Publishes, put together into batches.

Most producers send one message at a time and wait for its answer, so that a read brings one message
only. But when there are many producers, one turn of the event loop brings many reads: all that it
brings for a topic is stored as one batch, with one write, and answered then. Where producers are so
few, or topics so many, that hardly a message would find company, each is stored, and answered, at
once.

Between `publish` and the end of the turn a message is not stored, and not acknowledged. Whoever
wants to see or to change a topic in the meantime calls `store` first.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from penstock.broker.topic import Topic
from penstock.errors import StorageError
from penstock.nsqd.durability import Durability

__all__ = ["Batch", "Publisher", "Waiter"]

# So much is stored before the turn ends: waiting for more would save nothing.
TURN_BYTES = 256 * 1024

# Waiting costs more than storing two batches instead of one, and less than storing three. So of so
# many publishes that have waited, three in five must have found company, or the next ones do not
# wait. Then it is tried anew.
_TRIED = 32
_AT_ONCE = 2016


class Waiter(Protocol):
    """Who is to be told what became of a batch."""

    def settled(self, batch: "Batch") -> None:
        """The batch is safe, or has failed."""


class Batch(Struct, eq=False):
    """Messages for one topic that are stored together. Whoever waits for that enters `waiting`, as
    long as it is neither safe nor has failed."""

    bodies: list[bytes]
    is_safe: bool = False
    failure: StorageError | None = None
    waiting: list[Waiter] = field(default_factory=list)

    def synced(self, failure: StorageError | None) -> None:
        """The fsync that was waited for has ended."""
        self.failure = failure
        self.is_safe = failure is None
        for waiter in self.waiting:
            waiter.settled(self)


class Publisher:
    """See the module's docstring."""

    def __init__(self, durability: Durability, end_turn_soon: Callable[[], None]) -> None:
        """`end_turn_soon` sees to it that `store` and then `answer` are called at the end of the
        loop's turn."""
        self._durability = durability
        self._sync_every = durability.sync_every
        self._end_turn_soon = end_turn_soon
        self._batches: dict[Topic, Batch] = {}
        self._byte_size = 0  # of all that is in them
        self._settled: list[Batch] = []
        self._at_once_left = 0  # while there are some, no batch is being put together
        self._waited = 0
        self._joined = 0

    def publish(self, topic: Topic, bodies: list[bytes]) -> Batch | None:
        """Takes messages, and the list that they are in. Returns the batch to wait for, or None
        where they are safe already. Raises StorageError if they are not, and will not be."""
        if self._at_once_left:
            self._at_once_left -= 1
            if topic.publish(bodies) < self._sync_every:
                return None
            return self._maybe_syncing(topic, bodies)
        self._byte_size += len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        batches = self._batches
        batch = batches.get(topic)
        if batch is None:
            if not batches:
                self._end_turn_soon()
            batch = batches[topic] = Batch(bodies)
        else:
            batch.bodies.extend(bodies)
        if self._byte_size >= TURN_BYTES:
            self.store()
        return batch

    def publish_deferred(self, topic: Topic, bodies: list[bytes], defer_ns: int) -> Batch | None:
        """The same for messages that are not to be delivered before `defer_ns` have passed. They
        are stored at once."""
        self.store()  # what came before it
        if topic.publish(bodies, defer_ns) < self._sync_every:
            return None
        return self._maybe_syncing(topic, bodies)

    def store(self) -> None:
        """Stores what has been taken."""
        if self._batches:
            batches, self._batches, self._byte_size = self._batches, {}, 0
            for topic, batch in batches.items():
                self._store_batch(topic, batch)
                self._waited += len(batch.waiting)
                self._joined += len(batch.waiting) - 1
            if self._waited >= _TRIED:
                self._at_once_left = _AT_ONCE if 5 * self._joined < 3 * self._waited else 0
                self._waited = self._joined = 0

    def answer(self) -> None:
        """Tells those who wait for what has been stored. They may publish more then, and one that
        waits for several batches is to find them all settled: hence a step of its own."""
        if self._settled:
            settled, self._settled = self._settled, []
            for batch in settled:
                for waiter in batch.waiting:
                    waiter.settled(batch)

    def _store_batch(self, topic: Topic, batch: Batch) -> None:
        """Stores a batch, which is answered by the end of the turn or after an fsync."""
        try:
            unsynced_count = topic.publish(batch.bodies)
        except StorageError as failure:
            batch.failure = failure
            self._settled.append(batch)
        else:
            batch.is_safe = unsynced_count < self._sync_every or self._durability.is_safe(topic)
            if batch.is_safe:
                self._settled.append(batch)
            else:
                self._durability.sync(topic, batch.synced)
        batch.bodies.clear()  # which need not be kept until it is answered

    def _maybe_syncing(self, topic: Topic, bodies: list[bytes]) -> Batch | None:
        """The batch that is answered once it has been synced; None if nobody need wait for that."""
        if self._durability.is_safe(topic):
            return None
        batch = Batch(bodies)
        self._durability.sync(topic, batch.synced)
        return batch
