"""A topic: where messages get their place in the sequence, their frame, and their way to channels.

Everything below `released_seq` has been given to the channels; from there on messages wait in the
topic, because it has no channel yet or is paused. A new channel starts at `released_seq`: so the
first channel gets all that waited, and a later one only what comes after it.
"""

from collections.abc import Callable
from functools import partial

from penstock.broker.channel import Channel
from penstock.broker.latency import LatencyWindow
from penstock.broker.log_queue import LogQueue
from penstock.broker.memory_log import MemoryLog
from penstock.broker.memory_queue import EphemeralQueue
from penstock.broker.message_id import id_number
from penstock.broker.scheduler import Scheduler
from penstock.broker.settings import BrokerSettings
from penstock.common import names
from penstock.common.clock import Clock
from penstock.common.errors import LimitReachedError, StorageError
from penstock.protocol.frames import MESSAGE_HEADER_BYTES, render_messages
from penstock.storage import Retention, Run, TopicLog, TopicStore

__all__ = ["Topic"]


class Topic:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        store: TopicStore | MemoryLog,
        settings: BrokerSettings,
        scheduler: Scheduler,
        clock: Clock,
        sample: Callable[[], float],
        new_latency: Callable[[], LatencyWindow | None] = lambda: None,
    ) -> None:
        """`store` is a `MemoryLog` for a topic that lives in memory only. `new_latency` makes what
        a channel's latencies are counted in."""
        self.name = name
        self.ephemeral = names.is_ephemeral(name)
        self.paused = False
        self.awaits_channels = False
        self.channels: dict[str, Channel] = {}
        self.retention: Retention | None = None  # its own; None for that of all topics
        self.log: TopicLog | MemoryLog = store if isinstance(store, MemoryLog) else store.log
        self.store = None if isinstance(store, MemoryLog) else store
        self.closed = False
        self.on_grown: Callable[[], None] | None = None
        """Is called when a batch has been stored."""
        self._receivers: tuple[Channel, ...] = ()
        """Who is given what is published: nobody while the topic holds it back."""
        self._settings = settings
        self._scheduler = scheduler
        self._now_ns, self._wall_ns = clock.now_ns, clock.wall_ns
        self._sample = sample
        self._new_latency = new_latency
        self._id_base = id_number(settings.node_id, 0)
        self._frame_bytes = 0
        self._counted_from = self.log.next_seq
        self.released_seq = self.log.next_seq
        if self.store is not None:
            self._resume(self.store)

    def publish(self, bodies: list[bytes], defer_ns: int = 0) -> int:
        """Stores a batch and passes it on; with `defer_ns`, to be delivered when they have passed.
        Returns how many messages have come since a sync was last asked for. Raises StorageError,
        and then nothing is stored."""
        log = self.log
        first_seq, wall_ns = log.next_seq, self._wall_ns()
        due_ns = wall_ns + defer_ns if defer_ns else 0
        frames = render_messages(bodies, self._id_base + first_seq, wall_ns)
        self._frame_bytes += log.append(frames, wall_ns, due_ns)
        if receivers := self._receivers:
            self.released_seq = log.next_seq
            now_ns = self._now_ns()
            for channel in receivers:
                try:
                    channel.enqueue(first_seq, frames, due_ns, now_ns)
                except Exception as bug:  # noqa: BLE001 (reported; the batch is stored by now)
                    self._scheduler.report_bug(f"publishing to {self.name}/{channel.name}", bug)
                    channel.restart(now_ns, self.released_seq)
        elif self.ephemeral:
            assert isinstance(log, MemoryLog)
            log.keep(frames, due_ns)
        if self.on_grown is not None:
            self.on_grown()
        return log.next_seq - log.sync_requested_seq

    def channel(self, name: str, first_seq: int | None = None) -> Channel:
        """The channel of that name, made if there is none.

        A new one begins at `first_seq`; without that, with what the topic holds or will be given.
        """
        channel = self.channels.get(name)
        if channel is None:
            limit = self._settings.max_channels_per_topic
            if 0 < limit <= len(self.channels):
                raise LimitReachedError(f"too many channels of {self.name}, the limit is {limit}")
            channel = self._add_channel(name, first_seq)
            self._scheduler.wake(channel)  # it may have deferred messages to find
            self._release()
            self._persist_pause_point()
            self._topology_changed(channel)
        return channel

    def await_channels(self) -> None:
        """Holds back what is published until `start`: more channels are to be made first, and no
        message shall pass them by."""
        self.awaits_channels = True
        self._choose_receivers()

    def start(self) -> None:
        """All channels are there that were waited for."""
        self.awaits_channels = False
        if not self.closed:
            self._release()

    def delete_channel(self, name: str) -> None:
        """Forgets a channel and all that it had not finished."""
        channel = self.channels[name]
        channel.delete()
        del self.channels[name]
        self._choose_receivers()
        self._topology_changed(channel)
        self._persist_pause_point()

    def pause(self, paused: bool) -> None:
        """A paused topic keeps what is published; its channels go on with what they have."""
        was_paused, self.paused = self.paused, paused
        try:
            self._persist_pause_point()
        except StorageError:
            self.paused = was_paused
            raise
        self._release()

    def empty(self) -> None:
        """Drops what waits in the topic; the channels keep what they have."""
        first_seq, self.released_seq = self.released_seq, self.log.next_seq
        for channel in self.channels.values():
            channel.skip(first_seq, self.released_seq)
        if isinstance(self.log, MemoryLog):
            self.log.drop_kept()
        if self.store is not None:
            self.store.cursors.flush()  # what an operator has been told is done stays done
        self._persist_pause_point()

    def save_progress(self) -> None:
        """Journals what the channels have finished."""
        if self.store is not None and not self.closed:
            for channel in self.channels.values():
                channel.report_finished()
            self._persist_pause_point()  # unless that was refused, it has been written before
            self.store.cursors.flush()

    def retain(self, retention: Retention | None) -> None:
        """Sets how long the log keeps what no channel needs; None for what holds for all topics."""
        assert self.store is not None
        self.retention = retention
        self.store.log.retention = retention
        self._scheduler.unsaved(self)  # there may be something to trim

    def trim(self, wall_ns: int) -> None:
        """Deletes from the log what no channel needs any more and no retention keeps."""
        if self.store is None or self.closed:
            return
        log = self.store.log
        if not log.has_old_segments and not log.retention.is_set:
            return
        progress = sorted(self.store.cursors.progress.values(), key=lambda each: each.floor)
        end = min([each.finished_end for each in progress], default=self.released_seq)

        def is_needed(first_seq: int, next_seq: int) -> bool:
            # `progress` is sorted: the channel that is furthest behind is checked first.
            return any(not each.is_finished(first_seq, next_seq) for each in progress)

        log.trim(is_needed, wall_ns, min(end, self.released_seq))

    def close(self) -> None:
        """Leaves what the channels know to the cursors, and sends their subscribers away. Raises
        StorageError when that is done, if it could not be written how far channels in memory got.
        """
        self.closed = True
        for channel in self.channels.values():
            channel.close()
        self._persist_pause_point()

    def discard(self) -> None:
        """Sends all subscribers away; the topic is being deleted."""
        self.closed = True
        for channel in self.channels.values():
            channel.dismiss()

    @property
    def message_count(self) -> int:
        """How many messages were published."""
        return self.log.next_seq - self._counted_from

    @property
    def message_bytes(self) -> int:
        """How many bytes the bodies of all messages had."""
        return self._frame_bytes - MESSAGE_HEADER_BYTES * self.message_count

    @property
    def depth(self) -> int:
        """How many messages wait in the topic, not yet given to any channel."""
        if isinstance(self.log, MemoryLog):
            return self.log.held_count
        return self._count_from(self.released_seq)

    @property
    def backend_depth(self) -> int:
        """How many of them are beyond what a memory queue would hold."""
        return max(self.depth - self._settings.mem_queue_size, 0)

    @property
    def owed_seq(self) -> int:
        """Everything below this is the channels': given to them, or waiting only until the rest
        of them is there."""
        return self.released_seq if self.paused else self.log.next_seq

    def _resume(self, store: TopicStore) -> None:
        """Takes up where the cursors say that an earlier process left off."""
        cursors, log = store.cursors, store.log
        if cursors.pause_point is not None:
            self.released_seq = max(cursors.pause_point, log.first_seq)
            self.paused = bool(cursors.progress)  # nothing else holds messages back from a channel
        elif not cursors.progress:
            self.released_seq = log.first_seq
        for name in cursors.progress:
            self._add_channel(name)
        self._release()
        self._persist_pause_point()

    def _add_channel(self, name: str, first_seq: int | None = None) -> Channel:
        channel = Channel(
            name,
            partial(self._new_queue, first_seq),
            self._settings,
            self._scheduler,
            self._sample,
            self._new_latency(),
        )
        self.channels[name] = channel
        return channel

    def _new_queue(self, first_seq: int | None, channel: Channel) -> EphemeralQueue | LogQueue:
        def on_due(due_ns: int) -> None:
            self._scheduler.arm_at_wall(channel, due_ns)

        def on_progress() -> None:
            self._scheduler.unsaved(self)

        window_max = self._settings.mem_queue_size
        if self.store is None or channel.ephemeral:
            return EphemeralQueue(window_max, on_due, on_progress)
        return LogQueue(
            channel.name,
            self.store.log,
            self.store.cursors,
            self.released_seq,
            window_max,
            on_due,
            on_progress,
            self._wall_ns,
            first_seq=first_seq,
        )

    def _topology_changed(self, channel: Channel) -> None:
        persistent = not channel.ephemeral and not self.ephemeral
        self._scheduler.topology_changed(self, persistent=persistent)

    def _is_holding(self) -> bool:
        return self.paused or not self.channels or self.awaits_channels

    def _choose_receivers(self) -> None:
        self._receivers = () if self._is_holding() else tuple(self.channels.values())

    def _release(self) -> None:
        """Gives the channels what the topic held back, unless it goes on holding."""
        self._choose_receivers()
        if not self._receivers:
            return
        first_seq, held = self.released_seq, self._count_from(self.released_seq)
        self.released_seq = self.log.next_seq
        if self.released_seq > first_seq:
            runs = self._held_in_memory(first_seq)
            for channel in self._receivers:
                channel.release(runs, held, self.released_seq)
        if isinstance(self.log, MemoryLog):
            self.log.drop_kept()
        self._persist_pause_point()

    def _count_from(self, seq: int) -> int:
        """How many messages there are from `seq` on. Numbers that a power loss had skipped are not
        messages; in memory none is ever skipped."""
        count = self.log.next_seq - seq
        if count and isinstance(self.log, TopicLog):
            count -= sum(end - first for first, end in self.log.gaps(seq, self.log.next_seq))
        return count

    def _held_in_memory(self, first_seq: int) -> list[Run]:
        """What channels without a cursor can be given of what was held: a memory queue's worth."""
        if not self.ephemeral and not any(each.ephemeral for each in self.channels.values()):
            return []
        runs: list[Run] = []
        count, seq = 0, first_seq
        while count < self._settings.mem_queue_size and (more := self.log.read(seq)):
            runs.extend(more)
            seq = more[-1].first_seq + len(more[-1].frames)
            count += sum(len(run.frames) for run in more)
        return runs

    def _persist_pause_point(self) -> None:
        """Tells the journal from where on messages wait in the topic."""
        if self.store is None:
            return
        # What awaits channels is with those that are there already, should it not be for long. And
        # channels without a cursor leave nothing behind that would say what they were given.
        cursors = self.store.cursors
        held_from = self.released_seq if self.paused or not cursors.progress else None
        if cursors.pause_point != held_from:
            cursors.set_pause_point(held_from)
