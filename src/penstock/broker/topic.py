"""A topic: appends messages to its log, and passes them on to its channels.

All messages below `released_seq` have been passed on; the topic holds the later ones back, because
it has no channel yet or is paused. A new channel starts at `released_seq`: the first channel gets
all messages held back, a later one only new messages. Messages from the log's high watermark on are
not passed on, either: with replication (`penstock.broker.replicated_topic`) it is below the end of
the log.
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
    """One topic, persistent or ephemeral."""

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
        """`store` is a `MemoryLog` for an ephemeral topic. `new_latency` creates the latency window
        of a channel, or returns None."""
        self.name = name
        self.ephemeral = names.is_ephemeral(name)
        self.paused = False
        self.awaits_channels = False
        self.channels: dict[str, Channel] = {}
        self.retention: Retention | None = None
        """The topic's own retention; None for the default."""
        self.log: TopicLog | MemoryLog = store if isinstance(store, MemoryLog) else store.log
        self.store = None if isinstance(store, MemoryLog) else store
        self.closed = False
        self._change_listeners: list[Callable[[], None]] | None = None
        """None if there are none: then a publish costs one check."""
        self._receivers: tuple[Channel, ...] = ()
        """Channels that get new messages: none while the topic holds them back."""
        self._settings = settings
        self._scheduler = scheduler
        self._now_ns, self._wall_ns = clock.now_ns, clock.wall_ns
        self._sample = sample
        self._new_latency = new_latency
        self.set_node_id(settings.node_id)
        self._frame_bytes = 0
        self._counted_from = self.log.next_seq
        self._released_before = 0
        """Messages below this number, which an earlier run has passed on, do not count as released
        once more."""
        self.released_seq = self.log.high_watermark
        if self.store is not None:
            self._resume(self.store)

    def set_node_id(self, node_id: int) -> None:
        """Changes the node id of later messages."""
        self._id_base = id_number(node_id, 0)

    def publish(self, bodies: list[bytes], defer_ns: int = 0) -> int:
        """Stores a batch and passes it on, to be delivered after `defer_ns`. Returns the number of
        messages published since an fsync was last requested. Raises StorageError if nothing was
        stored."""
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
        if self._change_listeners is not None:
            self._notify_change_listeners()
        return log.next_seq - log.sync_requested_seq

    def call_on_next_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once: after the high watermark has moved (without replication this is
        after the next batch is stored), after messages are deleted from the log, or when the topic
        is deleted."""
        if self._change_listeners is None:
            self._change_listeners = []
        self._change_listeners.append(listener)

    def channel(self, name: str, first_seq: int | None = None) -> Channel:
        """Returns the channel of that name, and creates it if it does not exist.

        A new channel starts at `first_seq`; by default at the messages that the topic holds back,
        or at the next message published.
        """
        channel = self.channels.get(name)
        if channel is None:
            limit = self._settings.max_channels_per_topic
            if 0 < limit <= len(self.channels):
                raise LimitReachedError(f"too many channels of {self.name}, the limit is {limit}")
            channel = self._add_channel(name, first_seq)
            self._scheduler.wake(channel)  # To search for deferred messages.
            self._release()
            self._persist_pause_point()
            self._topology_changed(channel)
        return channel

    def await_channels(self) -> None:
        """Holds messages back until `start` is called. nsqd calls this while it requests the
        topic's channels from nsqlookupd, so that these channels get all messages."""
        self.awaits_channels = True
        self._choose_receivers()

    def start(self) -> None:
        """Ends `await_channels`. Raises StorageError."""
        self.awaits_channels = False
        if not self.closed:
            self._release()

    def delete_channel(self, name: str) -> None:
        """Deletes a channel with its unfinished messages. Raises StorageError."""
        channel = self.channels[name]
        channel.delete()
        del self.channels[name]
        self._choose_receivers()
        self._topology_changed(channel)
        self._persist_pause_point()

    def pause(self, paused: bool) -> None:
        """Pauses or unpauses the topic. A paused topic holds messages back; its channels continue
        with the messages they have. Raises StorageError."""
        was_paused, self.paused = self.paused, paused
        try:
            self._persist_pause_point()
        except StorageError:
            self.paused = was_paused
            raise
        self._release()

    def empty(self) -> None:
        """Drops the messages that the topic holds back; its channels keep theirs. Raises
        StorageError."""
        first_seq = self.released_seq
        self.released_seq = max(first_seq, self.log.high_watermark)
        for channel in self.channels.values():
            channel.skip(first_seq, self.released_seq)
        if isinstance(self.log, MemoryLog):
            self.log.drop_kept()
        if self.store is not None:
            self.store.cursors.flush()  # Before the operator's request is answered.
        self._persist_pause_point()

    def save_progress(self) -> None:
        """Journals the messages that the channels have finished. Raises StorageError."""
        if self.store is not None and not self.closed:
            for channel in self.channels.values():
                channel.report_finished()
            self._persist_pause_point()  # Retries, if it has failed before.
            self.store.cursors.flush()

    def retain(self, retention: Retention | None) -> None:
        """Sets the retention of messages that no channel needs; None for the default."""
        assert self.store is not None
        self.retention = retention
        self.store.log.retention = retention
        self._scheduler.unsaved(self)  # To trim the log.

    def trim(self, wall_ns: int) -> None:
        """Deletes segments that no channel needs and no retention keeps. Raises StorageError."""
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

        if log.trim(is_needed, wall_ns, min(end, self.released_seq)):
            self._notify_change_listeners()

    def close(self) -> None:
        """Writes the state of all channels to the cursors, and disconnects the subscribers. Raises
        StorageError after that, if the pause point could not be written."""
        self.closed = True
        for channel in self.channels.values():
            channel.close()
        self._persist_pause_point()

    def discard(self) -> None:
        """Disconnects all subscribers, because the topic is being deleted."""
        self.closed = True
        for channel in self.channels.values():
            channel.disconnect_subscribers()
        self._notify_change_listeners()

    @property
    def message_count(self) -> int:
        """Number of messages published since the start."""
        return self.log.next_seq - self._counted_from

    @property
    def message_bytes(self) -> int:
        """Size of the bodies of all messages published since the start."""
        return self._frame_bytes - MESSAGE_HEADER_BYTES * self.message_count

    @property
    def depth(self) -> int:
        """Number of messages that the topic holds back."""
        if isinstance(self.log, MemoryLog):
            return self.log.held_count
        return self._count(self.released_seq, self.log.high_watermark)

    @property
    def backend_depth(self) -> int:
        """Number of messages held back that exceed --mem-queue-size."""
        return max(self.depth - self._settings.mem_queue_size, 0)

    @property
    def owed_seq(self) -> int:
        """All messages below this belong to the channels: passed on, or held back only by
        `await_channels`."""
        if self.paused:
            return self.released_seq
        return max(self.released_seq, self.log.latest_seq)

    def _notify_change_listeners(self) -> None:
        listeners, self._change_listeners = self._change_listeners, None
        for listener in listeners or ():
            listener()

    def _resume(self, store: TopicStore) -> None:
        """Restores the channels and the pause point from the cursors."""
        cursors, log = store.cursors, store.log
        if cursors.pause_point is not None:
            self.released_seq = max(cursors.pause_point, log.first_seq)
            # With channels, only a pause holds messages back.
            self.paused = bool(cursors.progress)
        elif not cursors.progress:
            self.released_seq = log.first_seq
        else:
            self._released_before = log.next_seq
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
        if first_seq is None and not self._is_holding():
            first_seq = max(self.released_seq, self.log.latest_seq)
        if self.store is None or channel.ephemeral:
            return EphemeralQueue(window_max, on_due, on_progress, first_seq or 0)
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
        """Passes held messages on to the channels, unless the topic has to hold them back."""
        self._choose_receivers()
        if not self._receivers:
            return
        self._release_from_log(self.log.high_watermark)
        if isinstance(self.log, MemoryLog):
            self.log.drop_kept()
        self._persist_pause_point()

    def _release_from_log(self, end: int) -> None:
        """Passes messages below `end` on to the channels, which read them from the log."""
        first_seq = self.released_seq
        if end > first_seq:
            held = self._count(max(first_seq, self._released_before), end)
            runs = self._held_in_memory(first_seq, end)
            self.released_seq = end
            for channel in self._receivers:
                channel.release(runs, held, end)

    def _count(self, first_seq: int, end: int) -> int:
        """Number of messages in `[first_seq, end)`. Sequence numbers skipped after a power loss do
        not count."""
        count = max(end - first_seq, 0)
        if count and isinstance(self.log, TopicLog):
            count -= sum(end - first for first, end in self.log.gaps(first_seq, end))
        return count

    def _held_in_memory(self, first_seq: int, end: int) -> list[Run]:
        """Reads held messages below `end` for ephemeral channels: at most --mem-queue-size."""
        if not self.ephemeral and not any(each.ephemeral for each in self.channels.values()):
            return []
        runs: list[Run] = []
        count, seq = 0, first_seq
        while count < self._settings.mem_queue_size and (more := self.log.read(seq)):
            runs.extend(more)
            seq = more[-1].first_seq + len(more[-1].frames)
            count += sum(len(run.frames) for run in more)
            if seq >= end:
                break
        return [
            run if run.next_seq <= end else run._replace(frames=run.frames[: end - run.first_seq])
            for run in runs
            if run.first_seq < end
        ]

    def _persist_pause_point(self) -> None:
        """Journals the first message that the topic holds back, unless it is journaled already."""
        if self.store is None:
            return
        # While channels are awaited from nsqlookupd, existing channels own the pending messages if
        # nsqd crashes. Ephemeral channels have no cursor, so they count as no channel.
        cursors = self.store.cursors
        pause_point = self.released_seq if self.paused or not cursors.progress else None
        if cursors.pause_point != pause_point:
            cursors.set_pause_point(pause_point)
