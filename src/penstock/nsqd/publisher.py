"""Publishes, put together into batches.

Most producers send one message at a time and wait for its answer, so that a read brings one message
only. But when there are many producers, one turn of the event loop brings many reads: all that it
brings for a topic is stored as one batch, with one write, and answered then.

Between `publish` and the end of the turn a message is not stored, and not acknowledged. Whoever
wants to see or to change a topic in the meantime calls `flush` first.
"""

from collections.abc import Callable
from typing import TypeAlias

from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import StorageError
from penstock.nsqd.durability import Durability

__all__ = ["Done", "Publisher"]

# A batch of this size is stored at once: waiting for more would save nothing.
BATCH_BYTES = 256 * 1024

Done: TypeAlias = Callable[[StorageError | None], None]
"""To be called once: messages are stored, and safe if need be, or cannot be."""


class _Batch:
    __slots__ = ("bodies", "byte_size", "waiting")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.byte_size = 0
        self.waiting: list[Done] = []

    def done(self, failure: StorageError | None) -> None:
        """Tells all who wait."""
        for done in self.waiting:
            done(failure)


class Publisher:
    """See the module's docstring."""

    def __init__(
        self,
        clock: Clock,
        durability: Durability,
        on_stored: Callable[[Topic], None],
        flush_soon: Callable[[], None],
    ) -> None:
        """`on_stored` is told which topic has more. `flush_soon` sees to it that `flush` is called
        at the end of the loop's turn."""
        self._clock = clock
        self._durability = durability
        self._on_stored = on_stored
        self._flush_soon = flush_soon
        self._batches: dict[Topic, _Batch] = {}

    def publish(self, topic: Topic, bodies: list[bytes], done: Done) -> None:
        """Takes messages, to be stored by the end of the turn."""
        batch = self._batches.get(topic)
        if batch is None:
            if not self._batches:
                self._flush_soon()
            batch = self._batches[topic] = _Batch()
        batch.bodies += bodies
        batch.byte_size += sum(map(len, bodies))
        batch.waiting.append(done)
        if batch.byte_size >= BATCH_BYTES:
            del self._batches[topic]
            self._store(topic, batch)

    def publish_deferred(
        self, topic: Topic, bodies: list[bytes], defer_ns: int, done: Done
    ) -> None:
        """Stores messages at once that are not to be delivered before `defer_ns` have passed."""
        self.flush()
        batch = _Batch()
        batch.bodies += bodies
        batch.waiting.append(done)
        self._store(topic, batch, defer_ns)

    def flush(self) -> None:
        """Stores what has been taken."""
        if self._batches:
            batches, self._batches = self._batches, {}
            for topic, batch in batches.items():
                self._store(topic, batch)

    def _store(self, topic: Topic, batch: _Batch, defer_ns: int = 0) -> None:
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        try:
            topic.publish(batch.bodies, now_ns, wall_ns, wall_ns + defer_ns if defer_ns else 0)
        except StorageError as failure:
            batch.done(failure)
        else:
            self._durability.appended(topic, batch.done)
            self._on_stored(topic)
