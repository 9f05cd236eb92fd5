"""A replicated topic: passes messages on when all followers in sync have them.

`publish` only appends to the log. When replication moves the log's high watermark, the topic passes
the messages below it on to the channels. Usually it still has their frames in memory, so that the
channels get them like messages just published; otherwise the channels read them from the log.

After a start the high watermark is the beginning of the log, and the channels wait: they get the
messages that an earlier run has stored as soon as the followers have confirmed them. Messages below
the pause point of a paused topic are the exception: an earlier run has passed them on, so they were
confirmed then.
"""

from collections import deque
from typing import NamedTuple

from penstock.broker.topic import Topic
from penstock.common.errors import StorageError
from penstock.protocol.frames import render_messages
from penstock.storage import Run, TopicLog, TopicStore

__all__ = ["KEPT_BYTES_MAX", "ReplicatedTopic"]

# Maximum bytes of frames that a topic keeps in memory until they are confirmed.
KEPT_BYTES_MAX = 8 << 20


class _KeptBatch(NamedTuple):
    """A batch that was appended and is not confirmed yet."""

    first_seq: int
    frames: list[bytes]
    due_ns: int
    byte_size: int

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.frames)


class ReplicatedTopic(Topic):
    """A persistent topic of a data path that is replicated."""

    def _resume(self, store: TopicStore) -> None:
        super()._resume(store)
        self._kept: deque[_KeptBatch] = deque()
        """Batches that are not confirmed yet, oldest first; not all, if they are too large."""
        self._kept_bytes = 0
        self._seen_watermark = store.log.high_watermark

    def publish(self, bodies: list[bytes], defer_ns: int = 0) -> int:
        """Stores a batch, to be delivered after `defer_ns` and after it is confirmed. Returns the
        number of messages published since an fsync was last requested. Raises StorageError if
        nothing was stored."""
        log = self.log
        first_seq, wall_ns = log.next_seq, self._wall_ns()
        due_ns = wall_ns + defer_ns if defer_ns else 0
        frames = render_messages(bodies, self._id_base + first_seq, wall_ns)
        byte_size = log.append(frames, wall_ns, due_ns)
        self._frame_bytes += byte_size
        if self._kept_bytes + byte_size <= KEPT_BYTES_MAX:
            self._kept.append(_KeptBatch(first_seq, frames, due_ns, byte_size))
            self._kept_bytes += byte_size
        return log.next_seq - log.sync_requested_seq

    def set_high_watermark(self, seq: int) -> None:
        """All followers in sync have the messages below `seq`: passes them on."""
        assert isinstance(self.log, TopicLog)
        self.log.set_high_watermark(seq)
        self.release_confirmed()

    def release_confirmed(self) -> None:
        """To be called after the log's high watermark has moved: passes the messages below it on
        to the channels, unless the topic has to hold them back."""
        end = self.log.high_watermark
        if end == self._seen_watermark or self.closed:
            return
        self._seen_watermark = end
        if self._receivers:
            self._release_kept(end)
        self._drop_kept(end)
        self._notify_change_listeners()

    def _release_kept(self, end: int) -> None:
        """Passes all messages below `end` on: from memory, or else from the log."""
        now_ns = self._now_ns()
        while self.released_seq < end:
            self._drop_kept(self.released_seq)
            if not self._kept or self._kept[0].first_seq >= end:
                self._release_from_log(end)
            elif self._kept[0].first_seq > self.released_seq:
                self._release_from_log(self._kept[0].first_seq)
            else:
                first_seq, frames, due_ns, _ = self._kept[0]
                # The high watermark may be within a batch.
                first, last = self.released_seq - first_seq, end - first_seq
                self._pass_on(self.released_seq, frames[first:last], due_ns, now_ns)

    def _pass_on(self, first_seq: int, frames: list[bytes], due_ns: int, now_ns: int) -> None:
        self.released_seq = first_seq + len(frames)
        for channel in self._receivers:
            try:
                channel.enqueue(first_seq, frames, due_ns, now_ns)
            except Exception as bug:  # noqa: BLE001 (reported; the other channels get the batch)
                self._scheduler.report_bug(f"passing on to {self.name}/{channel.name}", bug)
                channel.restart(now_ns, self.released_seq)

    def _held_in_memory(self, first_seq: int, end: int) -> list[Run]:
        try:
            return super()._held_in_memory(first_seq, end)
        except StorageError:
            # Only ephemeral channels lose these messages. The others read the log, with retries.
            return []

    def _drop_kept(self, end: int) -> None:
        """Frees the memory of the batches below `end`."""
        while self._kept and self._kept[0].next_seq <= end:
            self._kept_bytes -= self._kept.popleft().byte_size
