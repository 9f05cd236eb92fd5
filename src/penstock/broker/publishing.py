"""Publishing: the messages of one event-loop turn are stored together, one batch per topic.

Most producers send one message and wait for its reply, so one read from a socket brings one
message. With many producers, one turn of the loop brings many reads: the publisher stores all
messages of a topic with one write, and the engine then answers them. If there are too few
producers, or too many topics, for batches to form, the publisher stores each publish at once.

From `publish` until the end of the turn a message is neither stored nor acknowledged. Code that
reads or changes a topic calls `store` first. `Replies` keeps the replies of a connection in order
while some of them wait for a batch.

With replication, a batch of a persistent topic is answered after `PublishConfirmation` has
confirmed it. All publishes except deferred ones then go through the batch of the turn.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from msgspec import Struct, field

from penstock.broker.topic import Topic
from penstock.common.errors import InternalError, LogClosedError, StorageError
from penstock.storage import GroupCommit, TopicLog

__all__ = ["BatchWaiter", "PublishConfirmation", "Publisher", "Replies", "TurnBatch"]

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


class PublishConfirmation(Protocol):
    """Replication, as the publisher sees it: decides whether messages may be stored, and when they
    are confirmed."""

    def check_writable(self) -> None:
        """Raises NotInSyncError, or another StorageError, if no messages may be stored now."""

    def when_confirmed(
        self, topic: Topic, next_seq: int, done: Callable[[StorageError | None], None]
    ) -> None:
        """Calls `done` once in the loop's thread, after this method has returned: when all messages
        of the topic below `next_seq` are confirmed, or with the error if they cannot be. With
        `--sync-every=1` they are confirmed only if they are below the log's `synced_seq`, too."""

    def synced(self, topic: Topic) -> None:
        """With `--sync-every=1`: an fsync has moved `synced_seq` of the topic's log."""


class Publisher:
    """Stores publishes in batches, and requests the fsyncs that `--sync-every` requires."""

    def __init__(
        self,
        commit: GroupCommit,
        end_turn_soon: Callable[[], None],
        report_bug: Callable[[str, Exception], None],
        confirmation: PublishConfirmation | None = None,
    ) -> None:
        """`end_turn_soon` is called when there is something to store, or batches to answer: the
        engine then calls `store` and `take_done` at the end of the loop's turn. `report_bug` is
        called with unexpected exceptions; each fails only its own batch. `confirmation` is None
        without replication."""
        self._commit = commit
        self._confirmation = confirmation
        self._report_bug = report_bug
        # With replication every publish goes through `_sync`, which has the replies wait.
        self._sync_every = commit.sync_every if confirmation is None else 0
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
            return self._sync_at_once(topic)
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
        if self._confirmation is not None and not topic.ephemeral:
            self._confirmation.check_writable()
        if topic.publish(bodies, defer_ns) < self._sync_every:
            return None
        return self._sync_at_once(topic)

    def store(self) -> None:
        """Stores all messages published in this turn. Their replies follow at its end, or after an
        fsync."""
        if not self._batches:
            return
        batches, self._batches, self._byte_size = self._batches, {}, 0
        confirmation = self._confirmation
        for topic, batch in batches.items():
            try:
                if confirmation is not None and not topic.ephemeral:
                    confirmation.check_writable()
                if topic.publish(batch.bodies) < self._sync_every:
                    batch.is_safe = True
                else:
                    self._sync(topic, batch)
            except StorageError as failure:
                batch.failure = failure
            except Exception as bug:  # noqa: BLE001 (reported; the other batches are stored)
                self._report_bug(f"publishing to {topic.name}", bug)
                batch.failure = InternalError(f"publishing to {topic.name}", bug)
            if batch.is_safe or batch.failure is not None:
                self._done_batches.append(batch)
            batch.bodies.clear()  # Free the memory before the batch is answered.
            self._waited += len(batch.waiters)
            self._joined += len(batch.waiters) - 1
        if self._waited >= _TRIED:
            if 5 * self._joined < 3 * self._waited:
                self.skip_batching(_UNBATCHED)
            self._waited = self._joined = 0

    def take_done(self) -> list[TurnBatch]:
        """Removes and returns the batches to answer. Answering is a step of its own, because
        waiters may publish, and a waiter of several batches must find all of them done."""
        done, self._done_batches = self._done_batches, []
        return done

    def skip_batching(self, count: int) -> None:
        """Stores each of the next `count` publishes at once, instead of at the end of the turn.
        With replication this has no effect."""
        if self._confirmation is None:
            self._unbatched_left = count

    def _sync_at_once(self, topic: Topic) -> TurnBatch | None:
        """Requests an fsync of messages that were stored at once. Returns a batch to wait for if
        their replies have to wait for the fsync."""
        batch = TurnBatch([])  # Without the bodies, to free their memory now.
        self._sync(topic, batch)
        return None if batch.is_safe else batch

    def _sync(self, topic: Topic, batch: TurnBatch) -> None:
        """Requests an fsync. With `--sync-every=1` the batch is done after it, else at once; with
        replication, after its confirmation."""
        if self._confirmation is not None:
            self._await_confirmation(self._confirmation, topic, batch)
            return

        def synced(failure: StorageError | None) -> None:
            self._set_done(topic, batch, failure)

        assert isinstance(topic.log, TopicLog)
        batch.is_safe = self._commit.request_in_background(topic.log)
        if not batch.is_safe:
            self._commit.request(topic.log, synced)

    def _await_confirmation(
        self, confirmation: PublishConfirmation, topic: Topic, batch: TurnBatch
    ) -> None:
        """Requests the fsync that `--sync-every` requires, and the confirmation of a batch."""
        log = topic.log
        if not isinstance(log, TopicLog):  # An ephemeral topic is not replicated.
            batch.is_safe = True
            return

        def synced(failure: StorageError | None) -> None:
            if failure is None:
                confirmation.synced(topic)
            else:
                self._set_done(topic, batch, failure)

        def confirmed(failure: StorageError | None) -> None:
            self._set_done(topic, batch, failure)

        is_sync_due = log.next_seq - log.sync_requested_seq >= self._commit.sync_every
        confirmation.when_confirmed(topic, log.next_seq, confirmed)
        if is_sync_due and not self._commit.request_in_background(log):
            self._commit.request(log, synced)

    def _set_done(self, topic: Topic, batch: TurnBatch, failure: StorageError | None) -> None:
        """Has a batch answered at the end of the turn."""
        if batch.is_safe or batch.failure is not None:
            return  # Its fsync has failed before the confirmation.
        if isinstance(failure, LogClosedError):
            failure = StorageError(f"topic {topic.name} was deleted")
        batch.failure = failure
        batch.is_safe = failure is None
        self._done_batches.append(batch)
        self._end_turn_soon()


PendingReply: TypeAlias = tuple[TurnBatch | None, str, bytes, Callable[[], object] | None]
"""The batch to wait for, the command to name if it fails, the bytes to write, and a function to
call after them."""


class Replies:
    """Replies of one connection, in the order of its commands: a reply may have to wait until a
    published message is stored, and later replies then wait behind it."""

    __slots__ = ("_corked", "_on_failure", "_send_later", "_write", "_write_now", "pending", "send")

    def __init__(
        self, write: Callable[[bytes], None], on_failure: Callable[[str, StorageError], None]
    ) -> None:
        """`on_failure` is called with the command that failed, and the error."""
        self._write = self._write_now = write
        self._corked: list[bytes] = []
        self._on_failure = on_failure
        self.pending: deque[PendingReply] = deque()
        """Replies that wait for a message to be stored, and those behind them."""
        self._send_later = self._append_pending  # Bound once: saves a method object per reply.
        self.send = write
        """Writes a reply. While nothing is pending this is the transport's own `write`, which saves
        a call per reply."""

    def set_writer(self, write: Callable[[bytes], None]) -> None:
        """Replaces the function that writes to the transport."""
        if self._write is self._write_now:  # Nothing is corked.
            self._write = write
        self._write_now = write
        self._choose_send()

    def cork(self) -> None:
        """Collects replies until `uncork`, for one write."""
        self._write = self._corked.append
        self._choose_send()

    def uncork(self) -> None:
        """Writes the collected replies, and later ones at once."""
        self._write = self._write_now
        self._choose_send()
        self._write_corked()

    def send_when_stored(self, batch: TurnBatch, command: str, data: bytes) -> None:
        """Writes a reply once the batch is safe. If the batch fails, `on_failure` is called with
        `command` instead."""
        self.pending.append((batch, command, data, None))
        batch.waiters.append(self)
        self.send = self._send_later

    def call_when_sent(self, action: Callable[[], object]) -> None:
        """Calls a function after all replies so far have been written."""
        if self.pending:
            self.pending.append((None, "", b"", action))
        else:
            self._write_corked()
            action()

    def on_batch_done(self, batch: TurnBatch) -> None:
        """Writes the replies that waited for this batch."""
        pending = self.pending
        if len(pending) == 1 and batch.is_safe and pending[0][0] is batch:  # The usual case.
            data = pending.popleft()[2]
            self.send = write = self._write
            write(data)
        elif pending:
            self._send_ready()

    def _choose_send(self) -> None:
        self.send = self._send_later if self.pending else self._write

    def _append_pending(self, data: bytes) -> None:
        self.pending.append((None, "", data, None))

    def _send_ready(self) -> None:
        """Writes the pending replies up to the first whose batch is not safe, with one write."""
        pending = self.pending
        ready: list[bytes] = []
        while pending:
            batch, command, data, action = pending[0]
            if batch is not None and not batch.is_safe:
                break
            pending.popleft()
            ready.append(data)
            if action is not None:
                self._write_all(ready)
                self._write_corked()
                self._choose_send()
                action()
        self._write_all(ready)
        failure = batch.failure if pending and batch is not None else None
        if failure is not None:
            pending.clear()  # The connection ends with the error.
        self._choose_send()
        if failure is not None:
            self._on_failure(command, failure)

    def _write_all(self, replies: list[bytes]) -> None:
        if data := b"".join(replies):
            self._write(data)
            replies.clear()

    def _write_corked(self) -> None:
        if self._corked:
            data = b"".join(self._corked)
            self._corked.clear()
            self._write_now(data)
