"""Publishing: the messages of one event-loop turn are stored together, one batch per topic.

Most producers send one message and wait for its reply, so one read from a socket brings one
message. With many producers, one turn of the loop brings many reads: the publisher stores all
messages of a topic with one write, and then answers them. If there are too few producers, or too
many topics, for batches to form, it stores and answers each publish at once.

From `publish` until the end of the turn a message is neither stored nor acknowledged. Code that
reads or changes a topic calls `store` first.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from penstock.broker.topic import Topic
from penstock.common.errors import InternalError, LogClosedError, StorageError
from penstock.storage import GroupCommit, TopicLog

__all__ = ["BatchWaiter", "Publisher", "TurnBatch"]

# Batches of this size are stored before the turn ends: larger writes save nothing.
TURN_BYTES = 256 * 1024

# A batch costs more than two separate writes and less than three. After this many publishes have
# waited for the end of a turn, three in five must have joined an existing batch; else batching is
# off for the next publishes, and is then tried again.
_TRIED = 32
_UNBATCHED = 2016


class BatchWaiter(Protocol):
    """Receives the result of a batch."""

    def on_batch_done(self, batch: "TurnBatch") -> None:
        """The batch is stored as `--sync-every` requires, or has failed."""


class TurnBatch(Struct, eq=False):
    """Messages for one topic that are stored together. To be notified, add a waiter while neither
    `is_safe` nor `failure` is set."""

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
        """Notifies all waiters that the batch is safe or has failed."""
        for waiter in self.waiters:
            try:
                waiter.on_batch_done(self)
            except Exception as bug:  # noqa: BLE001 (reported; the other waiters are notified)
                report_bug("answering a publish", bug)


class Publisher:
    """Stores publishes in batches, and requests the fsyncs that `--sync-every` requires."""

    def __init__(
        self,
        commit: GroupCommit,
        end_turn_soon: Callable[[], None],
        report_bug: Callable[[str, Exception], None],
    ) -> None:
        """`end_turn_soon` schedules calls of `store` and `answer` at the end of the loop's turn.
        `report_bug` is called with unexpected exceptions; each fails only its own batch."""
        self._commit = commit
        self._report_bug = report_bug
        self._sync_every = commit.sync_every
        self._end_turn_soon = end_turn_soon
        self._batches: dict[Topic, TurnBatch] = {}
        self._byte_size = 0
        self._done_batches: list[TurnBatch] = []
        self._unbatched_left = 0
        self._waited = 0
        self._joined = 0

    def publish(self, topic: Topic, bodies: list[bytes]) -> TurnBatch | None:
        """Publishes messages, and takes ownership of the list. Returns the batch to wait for, or
        None if they are stored and need no fsync. Raises StorageError if they are not stored."""
        if self._unbatched_left:
            self._unbatched_left -= 1
            if topic.publish(bodies) < self._sync_every:
                return None
            return self._sync_if_required(topic)
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
        """Publishes messages that are delivered after `defer_ns`. They are stored at once."""
        self.store()  # Keeps the order of publishes.
        if topic.publish(bodies, defer_ns) < self._sync_every:
            return None
        return self._sync_if_required(topic)

    def store(self) -> None:
        """Stores all messages published in this turn."""
        if self._batches:
            batches, self._batches, self._byte_size = self._batches, {}, 0
            for topic, batch in batches.items():
                self._store_batch(topic, batch)
                self._waited += len(batch.waiters)
                self._joined += len(batch.waiters) - 1
            if self._waited >= _TRIED:
                if 5 * self._joined < 3 * self._waited:
                    self.skip_batching(_UNBATCHED)
                self._waited = self._joined = 0

    def skip_batching(self, count: int) -> None:
        """Stores each of the next `count` publishes at once, instead of at the end of the turn."""
        self._unbatched_left = count

    def answer(self) -> None:
        """Notifies the waiters of stored batches. A step of its own, because waiters may publish,
        and a waiter of several batches must find all of them done."""
        if self._done_batches:
            done, self._done_batches = self._done_batches, []
            for batch in done:
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

    def _sync_if_required(self, topic: Topic) -> TurnBatch | None:
        """Requests an fsync. Returns a batch to wait for if replies have to wait for the fsync."""
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
