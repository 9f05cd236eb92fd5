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
from penstock.common.errors import InternalError, LogClosedError, StorageError
from penstock.storage import GroupCommit, TopicLog

__all__ = ["BatchWaiter", "Publisher", "TurnBatch"]

# So much is stored before the turn ends: waiting for more would save nothing.
TURN_BYTES = 256 * 1024

# Waiting costs more than storing two batches instead of one, and less than storing three. So of so
# many publishes that have waited, three in five must have found company, or the next ones do not
# wait. Then it is tried anew.
_TRIED = 32
_AT_ONCE = 2016


class BatchWaiter(Protocol):
    """Who is to be told what became of a batch."""

    def on_batch_done(self, batch: "TurnBatch") -> None:
        """The batch is safe, or has failed."""


class TurnBatch(Struct, eq=False):
    """Messages for one topic that are stored together. Whoever waits for that enters `waiting`, as
    long as it is neither safe nor has failed."""

    bodies: list[bytes]
    is_safe: bool = False
    failure: StorageError | None = None
    waiters: list[BatchWaiter] = field(default_factory=list)

    def set_result(
        self, failure: StorageError | None, report_bug: Callable[[str, Exception], None]
    ) -> None:
        """Applies the result of the fsync that the batch needs."""
        self.failure = failure
        self.is_safe = failure is None
        self.notify_waiters(report_bug)

    def notify_waiters(self, report_bug: Callable[[str, Exception], None]) -> None:
        """Notifies all waiters of the batch that it is safe or has failed."""
        for waiter in self.waiters:
            try:
                waiter.on_batch_done(self)
            except Exception as bug:  # noqa: BLE001 (reported; the others are told)
                report_bug("answering a publish", bug)


class Publisher:
    """See the module's docstring."""

    def __init__(
        self,
        commit: GroupCommit,
        end_turn_soon: Callable[[], None],
        report_bug: Callable[[str, Exception], None],
    ) -> None:
        """`end_turn_soon` sees to it that `store` and then `answer` are called at the end of the
        loop's turn. `report_bug` is called with unexpected exceptions; each fails only its
        own batch."""
        self._commit = commit
        self._report_bug = report_bug
        self._sync_every = commit.sync_every
        self._end_turn_soon = end_turn_soon
        self._batches: dict[Topic, TurnBatch] = {}
        self._byte_size = 0  # of all that is in them
        self._done_batches: list[TurnBatch] = []
        self._at_once_left = 0  # while there are some, no batch is being put together
        self._waited = 0
        self._joined = 0

    def publish(self, topic: Topic, bodies: list[bytes]) -> TurnBatch | None:
        """Takes messages, and the list that they are in. Returns the batch to wait for, or None
        where they are safe already. Raises StorageError if they are not, and will not be."""
        if self._at_once_left:
            self._at_once_left -= 1
            if topic.publish(bodies) < self._sync_every:
                return None
            return self._maybe_syncing(topic)
        self._byte_size += len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        batches = self._batches
        batch = batches.get(topic)
        if batch is None:
            if not batches:
                self._end_turn_soon()
            batch = batches[topic] = TurnBatch(bodies)
        else:
            batch.bodies.extend(bodies)
        if self._byte_size >= TURN_BYTES:
            self.store()
        return batch

    def publish_deferred(
        self, topic: Topic, bodies: list[bytes], defer_ns: int
    ) -> TurnBatch | None:
        """The same for messages that are not to be delivered before `defer_ns` have passed. They
        are stored at once."""
        self.store()  # what came before it
        if topic.publish(bodies, defer_ns) < self._sync_every:
            return None
        return self._maybe_syncing(topic)

    def store(self) -> None:
        """Stores what has been taken."""
        if self._batches:
            batches, self._batches, self._byte_size = self._batches, {}, 0
            for topic, batch in batches.items():
                self._store_batch(topic, batch)
                self._waited += len(batch.waiters)
                self._joined += len(batch.waiters) - 1
            if self._waited >= _TRIED:
                if 5 * self._joined < 3 * self._waited:
                    self.skip_batching(_AT_ONCE)
                self._waited = self._joined = 0

    def skip_batching(self, count: int) -> None:
        """Stores each of the next `count` publishes at once, instead of at the end of the turn."""
        self._at_once_left = count

    def answer(self) -> None:
        """Tells those who wait for what has been stored. They may publish more then, and one that
        waits for several batches is to find them all settled: hence a step of its own."""
        if self._done_batches:
            settled, self._done_batches = self._done_batches, []
            for batch in settled:
                batch.notify_waiters(self._report_bug)

    def _store_batch(self, topic: Topic, batch: TurnBatch) -> None:
        """Stores a batch, which is answered by the end of the turn or after an fsync."""
        try:
            unsynced_count = topic.publish(batch.bodies)
            batch.is_safe = unsynced_count < self._sync_every or self._request_in_background(topic)
            if not batch.is_safe:
                self._sync(topic, batch)
        except StorageError as failure:
            batch.failure = failure
        except Exception as bug:  # noqa: BLE001 (reported; the other topics' batches are stored)
            self._report_bug(f"publishing to {topic.name}", bug)
            batch.failure = InternalError(f"publishing to {topic.name}", bug)
        if batch.is_safe or batch.failure is not None:
            self._done_batches.append(batch)
        batch.bodies.clear()  # Free the memory before the batch is answered.

    def _maybe_syncing(self, topic: Topic) -> TurnBatch | None:
        """The batch that is answered once it has been synced; None if nobody need wait for that."""
        if self._request_in_background(topic):
            return None
        batch = TurnBatch([])  # Without the bodies, to free their memory now.
        self._sync(topic, batch)
        return batch

    def _sync(self, topic: Topic, batch: TurnBatch) -> None:
        """Requests an fsync; the batch is answered after it."""

        def synced(failure: StorageError | None) -> None:
            if isinstance(failure, LogClosedError):
                failure = StorageError(f"topic {topic.name} was deleted")
            batch.set_result(failure, self._report_bug)

        assert isinstance(topic.log, TopicLog)
        self._commit.request(topic.log, synced)

    def _request_in_background(self, topic: Topic) -> bool:
        assert isinstance(topic.log, TopicLog)
        return self._commit.request_in_background(topic.log)
