"""Deliberate bugs, which the simulation must find.

Each replaces one function by a wrong one while schedules run. The product does not contain them.
"""

from collections.abc import Callable
from typing import Any, cast

from tests.planted_bugs import Mutation
from tests.simulation.campaign import first_failure
from tests.simulation.run import run
from tests.simulation.schedule import schedule_of

import penstock.common.errors
import penstock.storage.topic_storage
from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.deferred import Deferred
from penstock.broker.log_queue import LogQueue
from penstock.broker.memory_log import MemoryLog
from penstock.broker.memory_queue import MemoryQueue
from penstock.broker.message_id import seq_of
from penstock.broker.publishing import Replies, TurnBatch
from penstock.broker.subscriber import InFlight, Subscriber
from penstock.broker.topic import Topic
from penstock.nsqd.session import Session
from penstock.protocol import frames as wire
from penstock.storage.cursors import Cursors
from penstock.storage.fsync import GroupCommit
from penstock.storage.retention import Retention
from penstock.storage.topic_log import TopicLog

__all__ = ["MUTATIONS", "SEEDS_MAX", "Mutation", "seeds_until_found"]

# Each bug must be found within this number of schedules.
SEEDS_MAX = 600


def seeds_until_found(mutation: Mutation) -> int | None:
    """The first seed whose schedule violates the model with this bug, or None.

    Unexpected exceptions do not count: they come from mistakes in the bug itself.
    """
    with mutation.active():
        seed = first_failure(range(SEEDS_MAX))
        if seed is not None:
            outcome = run(schedule_of(seed))
            assert not outcome.is_crash, outcome.violation
    return seed


def _does_nothing(_right: Any) -> Any:
    return lambda *_args, **_kwargs: None


def _returns(value: object) -> Callable[[Any], Any]:
    return lambda _right: lambda *_args: value


def _plus(number: int) -> Callable[[Any], Any]:
    return lambda right: lambda self: right(self) + number


def _ack_before_write(_right: Any) -> Any:
    def send_when_stored(self: Replies, _batch: TurnBatch, _word: str, data: bytes) -> None:
        self.send(data)

    return send_when_stored


def _write_that_fails_is_no_failure(right: Any) -> Any:
    def append(self: TopicLog, frames: list[bytes], *args: Any) -> int:
        try:
            return cast("int", right(self, frames, *args))
        except penstock.common.errors.StorageError:
            self.next_seq += len(frames)
            return sum(map(len, frames))

    return append


def _ack_before_sync(right: Any) -> Any:
    def request_in_background(self: GroupCommit, log: TopicLog) -> bool:
        if not right(self, log):
            self.request(log, lambda _failure: None)
        return True

    return request_in_background


def _requeue_is_lost(right: Any) -> Any:
    def requeue(self: Channel, frames: list[bytes], due_ns: int = 0) -> None:
        right(self, frames[1:] if len(frames) > 1 else frames, due_ns)

    return requeue


def _attempt_is_forgotten(_right: Any) -> Any:
    def requeue(self: MemoryQueue, frames: list[bytes], due_ns: int) -> None:
        if due_ns:
            for frame in frames:
                self.defer(due_ns, seq_of(wire.message_id(frame)), [frame])
        else:
            self.window.extend(frames)

    return requeue


def _delay_is_ignored(right: Any) -> Any:
    return lambda self, subscriber, message_id, _due_ns: right(self, subscriber, message_id, 0)


def _stays_on_disconnect(_right: Any) -> Any:
    def remove(self: Channel, subscriber: Subscriber) -> None:
        self.subscribers.remove(subscriber)
        if subscriber.is_ready:
            self._ready[subscriber.locality].remove(subscriber)

    return remove


def _one_too_many(right: Any) -> Any:
    return lambda self: right(self) + (self.rdy > 0 and not self.blocked)


def _ignores_the_pause(right: Any) -> Any:
    def pump(self: Channel, now_ns: int) -> None:
        paused, self.paused = self.paused, False
        try:
            right(self, now_ns)
        finally:
            self.paused = paused

    return pump


def _touch_does_not_extend(right: Any) -> Any:
    def touch(self: InFlight, message_id: bytes, now_ns: int, *limits: int) -> Any:
        deadlines = dict(self.with_deadlines())
        if message_id not in self:
            return right(self, message_id, now_ns, *limits)
        return next(iter(deadlines.values()))

    return touch


def _empty_keeps_deferred(_right: Any) -> Any:
    def clear(self: MemoryQueue) -> None:
        self.window.clear()
        self.due.clear()

    return clear


def _refill_is_swapped(right: Any) -> Any:
    def read(self: TopicLog, seq: int, *size: int) -> Any:
        runs = right(self, seq, *size)
        return [run._replace(frames=run.frames[::-1]) if not run.due_ns else run for run in runs]

    return read


def _seek_is_off_by_one(right: Any) -> Any:
    return lambda self, seq: right(self, seq + 1 if seq < self._released_seq else seq)


def _commits_one_more(right: Any) -> Any:
    return lambda self, seq: right(self, min(seq + 1, self._log.next_seq))


def _trims_what_is_needed(_right: Any) -> Any:
    def trim(self: Topic, wall_ns: int) -> None:
        if self.store is not None and not self.closed:
            self.store.log.trim(lambda _first, _end: False, wall_ns, self.released_seq)

    return trim


def _forgets_that_it_holds(_right: Any) -> Any:
    def resume(self: Topic, store: Any) -> None:
        for name in store.cursors.progress:
            self._add_channel(name)

    return resume


def _given_twice(right: Any) -> Any:
    def release(self: Topic) -> None:
        first_seq, was_holding = self.released_seq, self.depth
        right(self)
        if was_holding and not self._is_holding() and self.store is not None:
            for channel in self.channels.values():
                if isinstance(channel._queue, LogQueue):
                    channel._queue._read_seq = min(channel._queue._read_seq, first_seq)
                    frames = [f for run in self.log.read(first_seq) for f in run.frames]
                    channel._queue._window.extend(frames[:1])

    return release


def _deferred_is_due_at_once_after_restart(right: Any) -> Any:
    def defer_unread(self: LogQueue, runs: list[tuple[int, int, int]]) -> None:
        right(self, [(0, first_seq, length) for _, first_seq, length in runs])

    return defer_unread


def _deferred_is_dropped_after_restart(_right: Any) -> Any:
    def defer_unread(self: LogQueue, runs: list[tuple[int, int, int]]) -> None:
        self._skipped.update((first_seq, first_seq + length) for _, first_seq, length in runs)

    return defer_unread


def _deferred_is_read_again(_right: Any) -> Any:
    def defer_unread(self: LogQueue, runs: list[tuple[int, int, int]]) -> None:
        self._deferred.add_stored(runs)

    return defer_unread


def _deferred_waits_for_the_backlog(right: Any) -> Any:
    def enqueue(self: LogQueue, first_seq: int, frames: list[bytes], *args: int) -> None:
        tracks, self._tracks_deferred = self._tracks_deferred, self._read_seq == first_seq
        right(self, first_seq, frames, *args)
        self._tracks_deferred = tracks

    return enqueue


def _finish_is_not_journalled(right: Any) -> Any:
    def finish(self: Cursors, channel: str, first: int, end: int) -> None:
        self.progress[channel].finish(first, end)
        if first % 2:
            right(self, channel, first, end)

    return finish


def _finish_reaches_too_far(right: Any) -> Any:
    return lambda self, channel, first, end: right(self, channel, first, end + (end - first > 1))


def _refused_write_is_not_undone(right: Any) -> Any:
    def publish(self: Topic, bodies: list[bytes], defer_ns: int = 0) -> int:
        try:
            return int(right(self, bodies, defer_ns))
        except penstock.common.errors.StorageError:
            self._counted_from -= 1
            raise

    return publish


def _sampling_loses_what_it_keeps(_right: Any) -> Any:
    def sampled(self: Channel, frames: list[bytes], percent: int) -> list[bytes]:
        kept = [frame for frame in frames if self._sample() * 100 < percent]
        self._queue.finish(wire.message_ids(frames))
        return kept

    return sampled


def _reads_one_too_few(right: Any) -> Any:
    def split(self: Deferred) -> Any:
        run = right(self)
        return run if run.frames is None else run._replace(frames=run.frames[1:])

    return split


def _drops_what_finds_no_room(right: Any) -> Any:
    def enqueue_due(self: LogQueue, wall_ns: int) -> None:
        right(self, wall_ns)
        while self._deferred.due_count:
            self._deferred.pop_due()

    return enqueue_due


def _never_times_out(right: Any) -> Any:
    return lambda self, message_id, frame, now_ns, _deadline_ns: right(
        self, message_id, frame, now_ns, 1 << 62
    )


def _early(nanoseconds: int) -> Callable[[Any], Any]:
    return lambda right: lambda self, wall_ns: right(self, wall_ns + nanoseconds)


def _closes_without_notes(_right: Any) -> Any:
    def close(self: Channel) -> None:
        self.report_finished()
        self.disconnect_subscribers()

    return close


def _fin_of_others(right: Any) -> Any:
    def finish(self: Channel, subscriber: Subscriber, ids: list[bytes]) -> Any:
        refusals = right(self, subscriber, ids)
        return refusals[1:]

    return finish


def _channel_stays_subscribed(right: Any) -> Any:
    def disconnect_subscribers(self: Channel) -> None:
        subscribers = list(self.subscribers)
        right(self)
        self.subscribers = subscribers

    return disconnect_subscribers


MUTATIONS = (
    Mutation(
        "a publish is acknowledged before it is written",
        Replies,
        "send_when_stored",
        _ack_before_write,
    ),
    Mutation(
        "a failed write counts as successful", TopicLog, "append", _write_that_fails_is_no_failure
    ),
    Mutation(
        "with sync-every 1, a publish is acknowledged before its fsync",
        GroupCommit,
        "request_in_background",
        _ack_before_sync,
    ),
    Mutation("one of several requeued messages is lost", Channel, "_requeue", _requeue_is_lost),
    Mutation("an attempt is not counted", MemoryQueue, "requeue", _attempt_is_forgotten),
    Mutation("REQ ignores its delay", Channel, "requeue", _delay_is_ignored),
    Mutation("a consumer is sent one more than its RDY", Subscriber, "capacity", _one_too_many),
    Mutation(
        "a disconnect loses the messages in flight",
        Channel,
        "remove",
        _stays_on_disconnect,
    ),
    Mutation("a paused channel delivers", Channel, "pump", _ignores_the_pause),
    Mutation(
        "a paused topic gives messages to its channels",
        Topic,
        "_is_holding",
        lambda _: lambda self: not self.channels,
    ),
    Mutation("TOUCH does not extend the timeout", InFlight, "touch", _touch_does_not_extend),
    Mutation("messages never time out", InFlight, "pop_expired", _returns([])),
    Mutation(
        "redelivered messages do not time out",
        InFlight,
        "add_timed",
        _never_times_out,
    ),
    Mutation("depth is too high by one", MemoryQueue, "depth", _plus(1)),
    Mutation("depth omits messages in the log", LogQueue, "log_depth", _returns(0)),
    Mutation("deferred_count is too high by one", MemoryQueue, "deferred_count", _plus(1)),
    Mutation(
        "in_flight_count omits messages of disconnected consumers",
        Channel,
        "in_flight_count",
        lambda _: lambda self: sum(len(each.in_flight) for each in self.subscribers),
    ),
    Mutation(
        "emptying a channel keeps deferred messages", MemoryQueue, "clear", _empty_keeps_deferred
    ),
    Mutation(
        "messages from the log are delivered in the wrong order",
        TopicLog,
        "read",
        _refill_is_swapped,
    ),
    Mutation("a seek is off by one", LogQueue, "seek", _seek_is_off_by_one),
    Mutation("a commit finishes one message too many", LogQueue, "commit", _commits_one_more),
    Mutation("the log trims messages that channels need", Topic, "trim", _trims_what_is_needed),
    Mutation(
        "the log trims messages that retention keeps",
        Retention,
        "keeps",
        _returns(False),
    ),
    Mutation(
        "a restart loses the messages that a topic holds", Topic, "_resume", _forgets_that_it_holds
    ),
    Mutation("a topic gives held messages to its channels twice", Topic, "_release", _given_twice),
    Mutation(
        "after a restart, deferred messages are delivered at once",
        LogQueue,
        "_defer_unread",
        _deferred_is_due_at_once_after_restart,
    ),
    Mutation(
        "after a restart, deferred messages are dropped",
        LogQueue,
        "_defer_unread",
        _deferred_is_dropped_after_restart,
    ),
    Mutation(
        "after a restart, deferred messages are delivered twice",
        LogQueue,
        "_defer_unread",
        _deferred_is_read_again,
    ),
    Mutation(
        "a deferred message behind a backlog counts as queued",
        LogQueue,
        "enqueue",
        _deferred_waits_for_the_backlog,
    ),
    Mutation("every other FIN is not journalled", Cursors, "finish", _finish_is_not_journalled),
    Mutation(
        "no FIN is journalled",
        LogQueue,
        "report_finished",
        lambda _: lambda self: self._unreported.clear(),
    ),
    Mutation(
        "a batch of FINs finishes one message too many", Cursors, "finish", _finish_reaches_too_far
    ),
    Mutation("attempts are not journalled", Cursors, "set_retry_state", _does_nothing),
    Mutation(
        "a clean stop loses the attempts of messages in flight",
        Channel,
        "close",
        _closes_without_notes,
    ),
    Mutation("a refused publish is counted", Topic, "publish", _refused_write_is_not_undone),
    Mutation(
        "messages of a sampling consumer are finished at delivery",
        Channel,
        "_sampled",
        _sampling_loses_what_it_keeps,
    ),
    Mutation(
        "the first of several messages due at once is lost",
        Deferred,
        "first_due",
        _reads_one_too_few,
    ),
    Mutation(
        "messages due at once that exceed the memory queue are lost",
        LogQueue,
        "enqueue_due",
        _drops_what_finds_no_room,
    ),
    Mutation(
        "deferred messages are delivered a second early",
        Deferred,
        "mark_due",
        _early(1_000_000_000),
    ),
    Mutation("a step of the wall clock is ignored", Broker, "_follow_wall_clock", _does_nothing),
    Mutation("FIN of a message that is not in flight succeeds", Channel, "finish", _fin_of_others),
    Mutation(
        "consumers of a deleted channel stay connected",
        Channel,
        "disconnect_subscribers",
        _does_nothing,
    ),
    Mutation(
        "CLS does not stop deliveries",
        Session,
        "_on_cls",
        _returns(wire.CLOSE_WAIT),
    ),
    Mutation(
        "an ephemeral topic keeps no messages for its first channel",
        MemoryLog,
        "keep",
        _does_nothing,
    ),
    Mutation(
        "after a power loss, sequence numbers are reused",
        penstock.storage.topic_storage,
        "_skip_seqs",
        _returns([]),
    ),
)
