"""A channel: distributes the messages of a topic among its subscribers.

Each message of its queue is delivered to one subscriber, and requeued unless that subscriber
finishes it in time. The channel decides which subscriber gets which message; its queue stores the
messages and their state.
"""

from collections import Counter, deque
from collections.abc import Callable
from itertools import chain, islice
from typing import Literal

from penstock.broker.latency import LatencyWindow
from penstock.broker.log_queue import LogQueue
from penstock.broker.memory_queue import EphemeralQueue, PendingMessage
from penstock.broker.message_id import seq_of
from penstock.broker.scheduler import NEVER_NS, Scheduler
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import Locality, Subscriber, locality
from penstock.common import names
from penstock.common.clock import SECOND_NS
from penstock.common.errors import ProtocolError
from penstock.common.go_text import verbatim
from penstock.protocol import frames as wire
from penstock.storage import Run

__all__ = ["RETRY_NS", "Channel", "NotInFlightError"]

# Maximum messages delivered to a subscriber before the next one has its turn.
TURN_FRAMES = 256

# Delay before a channel is retried after its log could not be read, or after another failure.
RETRY_NS = SECOND_NS


class NotInFlightError(ProtocolError):
    """A FIN, REQ or TOUCH of a message that the subscriber does not have in flight. Not fatal."""

    def __init__(self, command: str, message_id: bytes, *, owned_by_another: bool) -> None:
        why = "client does not own message" if owned_by_another else "ID not in flight"
        detail = f"{command} {verbatim(message_id)} failed {why}"
        super().__init__(f"E_{command}_FAILED", detail, fatal=False)
        self.message_id = message_id


class Channel:
    """One channel, persistent or ephemeral."""

    def __init__(
        self,
        name: str,
        make_queue: Callable[["Channel"], EphemeralQueue | LogQueue],
        settings: BrokerSettings,
        scheduler: Scheduler,
        sample: Callable[[], float],
        latency: LatencyWindow | None = None,
    ) -> None:
        """`sample` draws uniformly from [0, 1), for subscribers that want only a share of the
        messages. `latency` counts the latencies of finished messages."""
        self.name = name
        self.ephemeral = names.is_ephemeral(name)
        self.paused = False
        self.committing = False
        """Whether commits move the cursor; such a channel has no subscribers."""
        self.committed_at_ns = 0
        """Wall time of the last commit since the start; 0 if there was none."""
        self.gone = False
        """Whether the channel was deleted or closed. It may still be scheduled."""
        self.subscribers: list[Subscriber] = []
        self.message_count = 0
        self._delivered_before = [0 for _ in Locality]  # to subscribers that have left
        self.requeue_count = 0
        self.timeout_count = 0
        self.latency = latency
        self.awake = False  # Set by the scheduler: whether `pump` is scheduled.
        self.armed_ns = NEVER_NS  # Set by the scheduler: the next call of `advance`.
        self._settings = settings
        self._scheduler = scheduler
        self._sample = sample
        self._ready = _new_ready_queues(prefers_near=settings.location is not None)
        self._departed: list[Subscriber] = []
        """Subscribers that have left, and whose messages in flight wait for their timeout."""
        self._last_seq = -1
        """Highest sequence number delivered in sequence."""
        self._queue = make_queue(self)

    # Called by the topic.

    def enqueue(self, first_seq: int, frames: list[bytes], due_ns: int, now_ns: int) -> None:
        """Adds a batch just published: delivers it directly, or queues it."""
        count = len(frames)
        self.message_count += count
        ready = self._nearest_ready()
        if ready and not due_ns and not self.paused:
            # Direct delivery saves the window, for a subscriber that keeps up.
            subscriber = ready[0]
            capacity = subscriber.capacity()
            if TURN_FRAMES >= count <= capacity and self._queue.try_direct_delivery(
                first_seq, count
            ):
                ready.popleft()
                if frames := self._put_in_flight(subscriber, frames, first_seq + count - 1, now_ns):
                    self._scheduler.deliver(subscriber.connection, frames)
                self._end_turn(subscriber, ready, capacity - len(frames))
                return
        self._queue.enqueue(first_seq, frames, due_ns, TURN_FRAMES if ready else 0)
        if ready and not due_ns:
            self._scheduler.wake(self)

    def release(self, runs: list[Run], count: int, next_seq: int) -> None:
        """Adds `count` messages that the topic has held back, all of them below `next_seq`."""
        self.message_count += count
        self._queue.enqueue_released(runs, next_seq)
        self._scheduler.wake(self)

    def skip(self, first_seq: int, next_seq: int) -> None:
        """Skips messages that the topic dropped while it held them back."""
        self._queue.skip(first_seq, next_seq)

    # Subscribers.

    def add(self, subscriber: Subscriber) -> None:
        """Adds a subscriber."""
        subscriber.locality = locality(self._settings.location, subscriber.location)
        self.subscribers.append(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Removes a subscriber. Its messages in flight are requeued, at once or by timeout."""
        self.subscribers.remove(subscriber)
        self._delivered_before[subscriber.locality] += subscriber.message_count
        if subscriber.is_ready:
            self._ready[subscriber.locality].remove(subscriber)
            subscriber.is_ready = False
        if not subscriber.in_flight:
            return
        if not self._settings.requeue_on_disconnect:
            self._departed.append(subscriber)
            return
        frames = subscriber.in_flight.pop_all()
        self.timeout_count += len(frames)  # nsq compat: NSQ lets these messages time out
        self._requeue(frames)

    def ready(self, subscriber: Subscriber) -> None:
        """To be called when a subscriber may have become able to take messages. If so, wakes the
        channel. Has no effect on a subscriber that was able before."""
        if not subscriber.is_ready and subscriber.capacity() > 0:
            subscriber.is_ready = True
            self._ready[subscriber.locality].append(subscriber)
            self._scheduler.wake(self)

    def finish(self, subscriber: Subscriber, ids: list[bytes]) -> list[NotInFlightError]:
        """Finishes messages. Returns an error for each that is not in flight to the subscriber."""
        refusals: list[NotInFlightError] = []
        if self.latency is not None:
            self.latency.finished(subscriber.in_flight.frames_of(ids))
        late = subscriber.in_flight.finish_fresh(ids)
        if late:
            refusals = self._finish_timed(subscriber, late)
            # Counted, because a message that is finished twice is refused once.
            refused = Counter(refusal.message_id for refusal in refusals)
            ids = list((Counter(ids) - refused).elements())
        if ids:
            subscriber.finish_count += len(ids)
            self._queue.finish(ids)
            self.ready(subscriber)
        return refusals

    def requeue(self, subscriber: Subscriber, message_id: bytes, due_ns: int) -> None:
        """Requeues a message, to be delivered again at `due_ns` (wall time; 0 for at once). Raises
        NotInFlightError."""
        frame = subscriber.in_flight.pop(message_id)
        if frame is None:
            raise self._refusal("REQ", message_id, subscriber)
        subscriber.requeue_count += 1
        self.requeue_count += 1
        self._requeue([frame], due_ns)
        self.ready(subscriber)

    def touch(self, subscriber: Subscriber, message_id: bytes, now_ns: int) -> None:
        """Restarts a message's timeout. Raises NotInFlightError."""
        deadline_ns = subscriber.in_flight.touch(
            message_id, now_ns, subscriber.msg_timeout_ns, self._settings.max_msg_timeout_ns
        )
        if deadline_ns is None:
            raise self._refusal("TOUCH", message_id, subscriber)
        self._scheduler.arm(self, deadline_ns)

    # Called by the broker.

    def pump(self, now_ns: int) -> None:
        """Delivers one round: to each of the nearest ready subscribers, at most TURN_FRAMES
        messages. Farther subscribers get messages only if no nearer one can take more."""
        if self.gone:
            return
        ready, queue = self._nearest_ready(), self._queue
        if queue.find_deferred():
            self._scheduler.wake(self)
        if self.paused or not ready:
            return
        for _ in range(len(ready)):
            if not queue.load():
                break
            subscriber = ready.popleft()
            capacity = subscriber.capacity()
            if capacity > 0:
                taken = queue.take(min(capacity, TURN_FRAMES))
                last_seq = seq_of(wire.message_id(taken[-1]))
                if frames := self._put_in_flight(subscriber, taken, last_seq, now_ns):
                    subscriber.connection.deliver(frames)
                    capacity -= len(frames)
            self._end_turn(subscriber, ready, capacity)
        if queue.has_more and self._nearest_ready():
            self._scheduler.wake(self)

    def advance(self, now_ns: int, wall_ns: int) -> None:
        """Requeues messages that have timed out, and queues those that are due."""
        for subscriber in chain(self.subscribers, self._departed):
            expired = subscriber.in_flight.pop_expired(now_ns)
            if expired:
                self.timeout_count += len(expired)
                self._requeue(expired)
        for subscriber in self.subscribers:
            self.ready(subscriber)
        self._departed = [gone for gone in self._departed if gone.in_flight]
        self._scheduler.wake(self)
        self._queue.enqueue_due(wall_ns)
        self.arm()

    def arm(self) -> None:
        """Schedules the next call of `advance`."""
        for subscriber in chain(self.subscribers, self._departed):
            if (deadline_ns := subscriber.in_flight.next_deadline_ns()) is not None:
                self._scheduler.arm(self, deadline_ns)
        if (due_ns := self._queue.next_due_ns()) is not None:
            self._scheduler.arm_at_wall(self, due_ns)

    def restart(self, now_ns: int, released_seq: int = 0) -> None:
        """Restarts the channel from its cursor after RETRY_NS, as after a crash. For use after an
        unexpected exception, when the state in memory may be wrong. Messages in flight are
        delivered again.

        `released_seq` is the end of the messages that the topic has released, if that is beyond
        those enqueued. An ephemeral channel keeps its messages in memory.
        """
        self._scheduler.arm(self, now_ns + RETRY_NS)
        for ready in self._ready:
            ready.clear()
        for subscriber in self.subscribers:
            subscriber.is_ready = False
        if isinstance(self._queue, LogQueue):
            for subscriber in chain(self.subscribers, self._departed):
                self._queue.save_attempts(subscriber.in_flight.pop_all())
            self._departed.clear()
            self._queue.restart(released_seq)
            self._last_seq = -1

    def report_finished(self) -> None:
        """Journals the messages finished since the last call."""
        if isinstance(self._queue, LogQueue):
            self._queue.report_finished()

    # Called for operators.

    def pause(self, paused: bool) -> None:
        """Pauses or unpauses delivery; FIN, REQ, TOUCH and timeouts work as before."""
        self.paused = paused
        self._scheduler.wake(self)

    def empty(self, next_seq: int) -> None:
        """Finishes all messages below `next_seq`: queued, in flight or deferred."""
        self._queue.clear(next_seq)
        self._drop_in_flight()

    def seek(self, seq: int) -> None:
        """Moves the cursor: all messages from `seq` on are delivered again, and none below it.
        Raises StorageError if the cursor was not moved."""
        self._log_queue().seek(seq)
        self._last_seq = -1
        self._drop_in_flight()
        self._scheduler.wake(self)

    def set_committing(self, committing: bool) -> None:
        """Sets whether commits move the cursor. Such a channel keeps no messages in memory."""
        assert not (committing and self.subscribers)
        if committing == self.committing:
            return
        self.committing = committing
        self._queue.window_max = 0 if committing else self._settings.mem_queue_size
        if isinstance(self._queue, LogQueue):
            self._departed.clear()  # Their messages are read from the log again.
            self._queue.track_deferred(not committing)
            self._scheduler.wake(self)

    def commit(self, seq: int) -> int:
        """Finishes all messages below `seq`. Returns the first sequence number that is not
        finished. Raises StorageError."""
        assert not self.subscribers
        queue = self._log_queue()
        try:
            queue.commit(seq)
        finally:
            self._departed.clear()  # Their messages are queued again, or finished.
        return queue.floor

    def cancel(self, message_id: bytes, wall_ns: int) -> bool:
        """Finishes a deferred message. Returns False if there is no such message."""
        return self._queue.cancel(message_id, wall_ns)

    def requeue_now(self, message_id: bytes, wall_ns: int) -> bool:
        """Requeues a message at once that is in flight or deferred. Returns False if there is no
        such message. Raises StorageError."""
        for subscriber in chain(self.subscribers, self._departed):
            if (frame := subscriber.in_flight.pop(message_id)) is not None:
                self.requeue_count += 1
                self._requeue([frame])
                if subscriber in self.subscribers:
                    self.ready(subscriber)
                return True
        self._scheduler.wake(self)
        return self._queue.requeue_now(message_id, wall_ns)

    def delete(self) -> None:
        """Deletes the cursor, and disconnects the subscribers. Raises StorageError."""
        if isinstance(self._queue, LogQueue):
            self._queue.delete_cursor()
        self.disconnect_subscribers()

    def close(self) -> None:
        """Journals finished messages and attempts, and disconnects the subscribers."""
        if isinstance(self._queue, LogQueue):
            self._queue.report_finished()
            for subscriber in chain(self.subscribers, self._departed):
                self._queue.save_attempts(subscriber.in_flight.frames())
        self.disconnect_subscribers()

    def disconnect_subscribers(self) -> None:
        """Disconnects the subscribers."""
        self.gone = True
        self.armed_ns = NEVER_NS
        for ready in self._ready:
            ready.clear()
        subscribers, self.subscribers = self.subscribers, []
        for subscriber in subscribers:
            subscriber.connection.channel_gone()

    # Figures.

    @property
    def delivered_counts(self) -> list[int]:
        """Number of deliveries by locality, redeliveries included."""
        counts = self._delivered_before.copy()
        for subscriber in self.subscribers:
            counts[subscriber.locality] += subscriber.message_count
        return counts

    @property
    def delivered_count(self) -> int:
        """Number of deliveries, redeliveries included."""
        return sum(self.delivered_counts)

    @property
    def depth(self) -> int:
        """Number of queued messages, without those in flight or deferred."""
        return self._queue.depth

    @property
    def backend_depth(self) -> int:
        """Number of queued messages that exceed --mem-queue-size: NSQ would have them on disk."""
        if not isinstance(self._queue, LogQueue):
            return 0
        return max(self.depth - self._settings.mem_queue_size, 0)

    @property
    def deferred_count(self) -> int:
        """Number of deferred messages that are not due yet."""
        return self._queue.deferred_count

    @property
    def in_flight_count(self) -> int:
        """Number of messages in flight, including those of subscribers that have left."""
        return sum(len(each.in_flight) for each in chain(self.subscribers, self._departed))

    def peek(self, count: int) -> list[PendingMessage]:
        """The next messages to be delivered, at most `count`. Raises StorageError."""
        return self._queue.peek(count)

    def peek_deferred(self, count: int) -> list[PendingMessage]:
        """The next messages to become due, at most `count`. Raises StorageError."""
        return self._queue.peek_deferred(count)

    def peek_in_flight(self, count: int) -> list[tuple[Subscriber, bytes, int]]:
        """Messages in flight, at most `count`: subscriber, frame and deadline (steady time)."""
        each_in_flight = (
            (subscriber, frame, deadline_ns)
            for subscriber in chain(self.subscribers, self._departed)
            for frame, deadline_ns in subscriber.in_flight.with_deadlines()
        )
        return list(islice(each_in_flight, count))

    # Internals.

    def _log_queue(self) -> LogQueue:
        assert isinstance(self._queue, LogQueue), "an ephemeral channel has no cursor"
        return self._queue

    def _drop_in_flight(self) -> None:
        """Drops all messages in flight; a later FIN of them is refused."""
        self._departed.clear()
        for subscriber in self.subscribers:
            subscriber.in_flight.pop_all()
            self.ready(subscriber)

    def _nearest_ready(self) -> deque[Subscriber]:
        """Queue of the nearest subscribers that can take messages; empty if none can."""
        zone, region, anywhere = self._ready
        return zone or region or anywhere

    def _end_turn(self, subscriber: Subscriber, ready: deque[Subscriber], capacity: int) -> None:
        """Ends a subscriber's turn; it gets another one if it can take more."""
        if capacity > 0:
            ready.append(subscriber)
        else:
            subscriber.is_ready = False

    def _put_in_flight(
        self, subscriber: Subscriber, frames: list[bytes], last_seq: int, now_ns: int
    ) -> list[bytes]:
        """Puts frames in flight; `last_seq` is the sequence number of the last one. Returns the
        frames to send: fewer, if the subscriber samples."""
        if subscriber.sample_rate:
            frames = self._sampled(frames, subscriber.sample_rate)
            if not frames:
                return frames
        deadline_ns = now_ns + subscriber.msg_timeout_ns
        if self._queue.in_sequence:
            self._last_seq = last_seq
            subscriber.in_flight.add_fresh(frames, last_seq, deadline_ns)
        else:
            self._add_by_sequence(subscriber, frames, now_ns, deadline_ns)
            self._queue.update_in_sequence()
        subscriber.message_count += len(frames)
        if deadline_ns < self.armed_ns:
            self._scheduler.arm(self, deadline_ns)
        return frames

    def _add_by_sequence(
        self, subscriber: Subscriber, frames: list[bytes], now_ns: int, deadline_ns: int
    ) -> None:
        """Adds a batch that mixes first deliveries with redeliveries, or with deferred messages
        that are delivered before lower sequence numbers."""
        in_sequence: list[bytes] = []
        read_seq = self._queue.read_seq
        for frame in frames:
            message_id = wire.message_id(frame)
            if self._last_seq < (seq := seq_of(message_id)) < read_seq:
                self._last_seq = seq
                in_sequence.append(frame)
            else:
                subscriber.in_flight.add_timed(message_id, frame, now_ns, deadline_ns)
        if in_sequence:
            subscriber.in_flight.add_fresh(in_sequence, self._last_seq, deadline_ns)

    def _sampled(self, frames: list[bytes], percent: int) -> list[bytes]:
        """Returns the frames for a sampling subscriber, and finishes the others."""
        kept: list[bytes] = []
        dropped: list[bytes] = []
        for frame in frames:
            (kept if self._sample() * 100 < percent else dropped).append(frame)
        if dropped:
            self._queue.finish(wire.message_ids(dropped))
        return kept

    def _finish_timed(self, subscriber: Subscriber, ids: list[bytes]) -> list[NotInFlightError]:
        late = subscriber.in_flight.timed
        return [
            self._refusal("FIN", message_id, subscriber)
            for message_id in ids
            if late.pop(message_id, None) is None
        ]

    def _requeue(self, frames: list[bytes], due_ns: int = 0) -> None:
        self._queue.requeue(frames, due_ns)
        self._scheduler.wake(self)

    def _refusal(
        self, command: Literal["FIN", "REQ", "TOUCH"], message_id: bytes, subscriber: Subscriber
    ) -> NotInFlightError:
        others = (
            each for each in chain(self.subscribers, self._departed) if each is not subscriber
        )
        owned = any(message_id in other.in_flight for other in others)
        return NotInFlightError(command, message_id, owned_by_another=owned)


def _new_ready_queues(*, prefers_near: bool) -> list[deque[Subscriber]]:
    """Queues of ready subscribers, one per locality. If no locality is preferred, all three are the
    same object: an empty deque takes 760 bytes, and there may be many channels."""
    if prefers_near:
        return [deque() for _ in Locality]
    everybody: deque[Subscriber] = deque()
    return [everybody for _ in Locality]
