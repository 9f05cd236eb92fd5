"""A channel: one reading of a topic, shared out among its subscribers.

Each message of its queue is handed to one subscriber, and comes back unless that subscriber
finishes it in time. A channel decides who gets what and when; what there is to be had, and what
becomes of it after a restart, is the queue's concern.
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
from penstock.broker.subscriber import Subscriber
from penstock.broker.topology import Locality, locality
from penstock.common import names
from penstock.common.clock import SECOND_NS
from penstock.common.errors import ProtocolError
from penstock.common.go_text import verbatim
from penstock.protocol import frames as wire
from penstock.storage import Run

__all__ = ["RETRY_NS", "Channel", "NotInFlight"]

# How many messages one subscriber is given before the next one's turn.
TURN_FRAMES = 256

# Delay before a channel is retried after its log could not be read, or after another failure.
RETRY_NS = SECOND_NS


class NotInFlight(ProtocolError):
    """A subscriber answered a message that it does not have in flight. Not fatal."""

    def __init__(self, word: str, message_id: bytes, *, owned_by_another: bool) -> None:
        why = "client does not own message" if owned_by_another else "ID not in flight"
        detail = f"{word} {verbatim(message_id)} failed {why}"
        super().__init__(f"E_{word}_FAILED", detail, fatal=False)
        self.message_id = message_id


class Channel:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        make_queue: Callable[["Channel"], EphemeralQueue | LogQueue],
        settings: BrokerSettings,
        scheduler: Scheduler,
        sample: Callable[[], float],
        latency: LatencyWindow | None = None,
    ) -> None:
        """`sample` draws uniformly from [0, 1) for subscribers that want only a share. `latency`
        is told what is finished."""
        self.name = name
        self.ephemeral = names.is_ephemeral(name)
        self.paused = False
        self.committing = False  # moved by commits, and so without subscribers
        self.committed_at_ns = (
            0  # wall time of the last commit; 0 if there was none since the start
        )
        self.gone = False  # deleted or closed: it may be on the scheduler still
        self.subscribers: list[Subscriber] = []
        self.message_count = 0
        self._delivered_to_others = [0 for _ in Locality]  # who have left since
        self.requeue_count = 0
        self.timeout_count = 0
        self.latency = latency
        self.awake = False  # the scheduler's: to be pumped
        self.armed_ns = NEVER_NS  # the scheduler's: the deadline it will be called for
        self._settings = settings
        self._scheduler = scheduler
        self._sample = sample
        self._ready = _rounds(prefers_near=settings.location is not None)
        self._departed: list[Subscriber] = []  # gone, with messages that wait for their timeout
        self._last_seq = -1  # the highest number handed out in sequence
        self._queue = make_queue(self)

    # What the topic does.

    def enqueue(self, first_seq: int, frames: list[bytes], due_ns: int, now_ns: int) -> None:
        """A batch has just been published."""
        count = len(frames)
        self.message_count += count
        ready = self._nearest_ready()
        if ready and not due_ns and not self.paused:
            # A consumer that keeps up takes it at once, without a detour through the window.
            subscriber = ready[0]
            capacity = subscriber.capacity()
            if TURN_FRAMES >= count <= capacity and self._queue.try_direct_delivery(
                first_seq, count
            ):
                ready.popleft()
                if frames := self._hand_out(subscriber, frames, first_seq + count - 1, now_ns):
                    self._scheduler.deliver(subscriber.connection, frames)
                self._go_on(subscriber, ready, capacity - len(frames))
                return
        self._queue.enqueue(first_seq, frames, due_ns, TURN_FRAMES if ready else 0)
        if ready and not due_ns:
            self._scheduler.wake(self)

    def release(self, runs: list[Run], count: int, next_seq: int) -> None:
        """The topic lets go of `count` messages that it had held back, all below `next_seq`."""
        self.message_count += count
        self._queue.enqueue_released(runs, next_seq)
        self._scheduler.wake(self)

    def skip(self, first_seq: int, next_seq: int) -> None:
        """The topic has dropped what it held: the channel will never get it."""
        self._queue.skip(first_seq, next_seq)

    # What subscribers do.

    def add(self, subscriber: Subscriber) -> None:
        """Lets a subscriber share in the channel."""
        subscriber.locality = locality(self._settings.location, subscriber.location)
        self.subscribers.append(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """The subscriber has gone; what it had in flight comes back at once or by timeout."""
        self.subscribers.remove(subscriber)
        self._delivered_to_others[subscriber.locality] += subscriber.message_count
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
        """The subscriber may have become able to take more. One that is waiting was before: then
        either the channel is awake already, or there is nothing to hand out."""
        if not subscriber.is_ready and subscriber.capacity() > 0:
            subscriber.is_ready = True
            self._ready[subscriber.locality].append(subscriber)
            self._scheduler.wake(self)

    def finish(self, subscriber: Subscriber, ids: list[bytes]) -> list[NotInFlight]:
        """Closes messages for good. Returns a refusal for each that the subscriber does not have
        in flight."""
        refusals: list[NotInFlight] = []
        if self.latency is not None:
            self.latency.finished(subscriber.in_flight.frames_of(ids))
        late = subscriber.in_flight.finish_fresh(ids)
        if late:
            refusals = self._finish_timed(subscriber, late)
            # Counted, because one that is finished twice over is refused once.
            refused = Counter(refusal.message_id for refusal in refusals)
            ids = list((Counter(ids) - refused).elements())
        if ids:
            subscriber.finish_count += len(ids)
            self._queue.finish(ids)
            self.ready(subscriber)
        return refusals

    def requeue(self, subscriber: Subscriber, message_id: bytes, due_ns: int) -> None:
        """Takes a message back, to be delivered again at `due_ns` (wall time; 0 for at once)."""
        frame = subscriber.in_flight.pop(message_id)
        if frame is None:
            raise self._refusal("REQ", message_id, subscriber)
        subscriber.requeue_count += 1
        self.requeue_count += 1
        self._requeue([frame], due_ns)
        self.ready(subscriber)

    def touch(self, subscriber: Subscriber, message_id: bytes, now_ns: int) -> None:
        """Starts a message's timeout again."""
        deadline_ns = subscriber.in_flight.touch(
            message_id, now_ns, subscriber.msg_timeout_ns, self._settings.max_msg_timeout_ns
        )
        if deadline_ns is None:
            raise self._refusal("TOUCH", message_id, subscriber)
        self._scheduler.arm(self, deadline_ns)

    # What the engine does, through the broker.

    def pump(self, now_ns: int) -> None:
        """One round: each of the nearest that are ready is given what it may have, up to a turn's
        worth. Others have theirs when none of these can take more."""
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
                if frames := self._hand_out(subscriber, taken, last_seq, now_ns):
                    subscriber.connection.deliver(frames)
                    capacity -= len(frames)
            self._go_on(subscriber, ready, capacity)
        if queue.has_more and self._nearest_ready():
            self._scheduler.wake(self)

    def advance(self, now_ns: int, wall_ns: int) -> None:
        """Brings back what has timed out and what has come due."""
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
        """Asks to be called at the next deadline."""
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
        those offered to the channel. A channel without a cursor keeps its messages in memory.
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
        """Tells the cursor what has been finished since it was last told."""
        if isinstance(self._queue, LogQueue):
            self._queue.report_finished()

    # What an operator does.

    def pause(self, paused: bool) -> None:
        """A paused channel delivers nothing new; answers and timers go on."""
        self.paused = paused
        self._scheduler.wake(self)

    def empty(self, next_seq: int) -> None:
        """Drops everything below `next_seq`: queued, in flight, deferred."""
        self._queue.clear(next_seq)
        self._forget_handed_out()

    def seek(self, seq: int) -> None:
        """Delivers everything from `seq` on once more and nothing below it, whatever was finished,
        in flight or deferred before. Raises StorageError, and has moved nothing then."""
        self._log_queue().seek(seq)
        self._last_seq = -1
        self._forget_handed_out()
        self._scheduler.wake(self)

    def set_committing(self, committing: bool) -> None:
        """Whether the channel is moved by commits. It then has no use for messages in memory."""
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
        """Finishes everything below `seq`; what was finished before stays so. Returns the first
        number that is not finished. Raises StorageError."""
        assert not self.subscribers
        queue = self._log_queue()
        try:
            queue.commit(seq)
        finally:
            self._departed.clear()  # it is in the queue again, or finished
        return queue.floor

    def cancel(self, message_id: bytes, wall_ns: int) -> bool:
        """Finishes a message that is deferred. Returns whether there was such a one."""
        return self._queue.cancel(message_id, wall_ns)

    def requeue_now(self, message_id: bytes, wall_ns: int) -> bool:
        """Queues a message that a subscriber has, or that waits for a time, for its next attempt at
        once. Returns whether there was such a one."""
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
        """Forgets all that was not finished, and sends the subscribers away."""
        if isinstance(self._queue, LogQueue):
            self._queue.delete_cursor()
        self.dismiss()

    def close(self) -> None:
        """Leaves what is unfinished to the cursor, and sends the subscribers away."""
        if isinstance(self._queue, LogQueue):
            self._queue.report_finished()
            for subscriber in chain(self.subscribers, self._departed):
                self._queue.save_attempts(subscriber.in_flight.frames())
        self.dismiss()

    def dismiss(self) -> None:
        """Sends the subscribers away."""
        self.gone = True
        self.armed_ns = NEVER_NS
        for ready in self._ready:
            ready.clear()
        subscribers, self.subscribers = self.subscribers, []
        for subscriber in subscribers:
            subscriber.connection.channel_gone()

    # What there is to see.

    @property
    def delivered_counts(self) -> list[int]:
        """How many messages were delivered how far, redeliveries included."""
        counts = self._delivered_to_others.copy()
        for subscriber in self.subscribers:
            counts[subscriber.locality] += subscriber.message_count
        return counts

    @property
    def delivered_count(self) -> int:
        """How many messages were delivered, redeliveries included."""
        return sum(self.delivered_counts)

    @property
    def depth(self) -> int:
        """How many messages are queued: not those in flight or deferred."""
        return self._queue.depth

    @property
    def backend_depth(self) -> int:
        """How many of the queued messages are beyond what a memory queue would hold. All of them
        are in the log, and fewer than the rest in memory: this is what NSQ's figure tells."""
        if not isinstance(self._queue, LogQueue):
            return 0
        return max(self.depth - self._settings.mem_queue_size, 0)

    @property
    def deferred_count(self) -> int:
        """How many messages wait for a time."""
        return self._queue.deferred_count

    @property
    def in_flight_count(self) -> int:
        """How many messages are with a subscriber, one that has gone included."""
        return sum(len(each.in_flight) for each in chain(self.subscribers, self._departed))

    def peek(self, count: int) -> list[PendingMessage]:
        """The next messages to be delivered. Raises StorageError."""
        return self._queue.peek(count)

    def peek_deferred(self, count: int) -> list[PendingMessage]:
        """The next messages to come due. Raises StorageError."""
        return self._queue.peek_deferred(count)

    def peek_in_flight(self, count: int) -> list[tuple[Subscriber, bytes, int]]:
        """Messages that subscribers have, and the steady time until which they may answer them."""
        each_in_flight = (
            (subscriber, frame, deadline_ns)
            for subscriber in chain(self.subscribers, self._departed)
            for frame, deadline_ns in subscriber.in_flight.with_deadlines()
        )
        return list(islice(each_in_flight, count))

    # Within.

    def _log_queue(self) -> LogQueue:
        assert isinstance(self._queue, LogQueue), "a channel without a place in a log"
        return self._queue

    def _forget_handed_out(self) -> None:
        """No answer to what is in flight will count any more."""
        self._departed.clear()
        for subscriber in self.subscribers:
            subscriber.in_flight.pop_all()
            self.ready(subscriber)

    def _nearest_ready(self) -> deque[Subscriber]:
        """Whose turn it is; empty if nobody can take more."""
        zone, region, anywhere = self._ready
        return zone or region or anywhere

    def _go_on(self, subscriber: Subscriber, ready: deque[Subscriber], capacity: int) -> None:
        """The subscriber has had its turn; it has another one if it can take more."""
        if capacity > 0:
            ready.append(subscriber)
        else:
            subscriber.is_ready = False

    def _hand_out(
        self, subscriber: Subscriber, frames: list[bytes], last_seq: int, now_ns: int
    ) -> list[bytes]:
        """Puts frames in flight, the last of which has the number `last_seq`; returns those to be
        sent, which is as many as it wants."""
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
        """Those of the frames that a sampling subscriber is given; the others are finished."""
        kept: list[bytes] = []
        dropped: list[bytes] = []
        for frame in frames:
            (kept if self._sample() * 100 < percent else dropped).append(frame)
        if dropped:
            self._queue.finish(wire.message_ids(dropped))
        return kept

    def _finish_timed(self, subscriber: Subscriber, ids: list[bytes]) -> list[NotInFlight]:
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
        self, word: Literal["FIN", "REQ", "TOUCH"], message_id: bytes, subscriber: Subscriber
    ) -> NotInFlight:
        others = (
            each for each in chain(self.subscribers, self._departed) if each is not subscriber
        )
        owned = any(message_id in other.in_flight for other in others)
        return NotInFlight(word, message_id, owned_by_another=owned)


def _rounds(*, prefers_near: bool) -> list[deque[Subscriber]]:
    """For those that can take more, in turn: a round for each locality, or one and the same where
    nobody is preferred. Channels may be many, and even an empty deque takes 760 bytes."""
    if prefers_near:
        return [deque() for _ in Locality]
    everybody: deque[Subscriber] = deque()
    return [everybody for _ in Locality]
