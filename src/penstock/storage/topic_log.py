"""The log of one topic, in segments. One thread owns it; only its fsyncs run in other threads.

`next_seq` is the sequence number of the next message. A range `[first, end)` does not include
`end`. Sequence numbers never repeat. Within a segment they have no gaps. Between segments there is
a gap if a segment was trimmed or damaged, or if numbers were skipped after a power loss. Before the
log uses numbers, it reserves them durably, so that they are not used again after a power loss.

When `append` returns, the messages survive the end of this process. Messages below `synced_seq`
survive a power loss, too.

With replication (an epoch above 0), only messages below `high_watermark` may be delivered and shown
to readers: those that all followers in sync have. The log stores and reads the others, too; its
callers ask for the high watermark. After a start it is `first_seq`, because it is not known which
of the stored messages the current followers have, until replication sets it.

If a write fails, the batch is not stored, and the next append tries again. If an fsync fails, the
system may treat the bytes as written, so that a later fsync proves nothing. Therefore the log takes
no append until the unsynced batches have been rewritten and fsynced. The next sync does so. It also
rewrites batches that a crashed run left unsynced, because the last fsync of that run may have
failed.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from penstock.common.errors import CorruptBatchError, LogClosedError, StorageError
from penstock.storage.batch import HEADER_BYTES
from penstock.storage.files import FilePool, storage_error
from penstock.storage.fsync import FsyncJob, LogFsync, fsync_now
from penstock.storage.index import DeferredBatch
from penstock.storage.layout import Issue
from penstock.storage.retention import LogSettings, Retention
from penstock.storage.segment import Run, Segment, SegmentExtent, SegmentInfo

__all__ = ["CHECKPOINT_SPACING_BYTES", "READ_BYTES", "ReserveSeqs", "TopicLog", "TrimmedError"]

ReserveSeqs = Callable[[int], None]
"""Records durably that all sequence numbers below the given one may be used. Raises OSError."""

# Default size of a read: large enough that reading costs little compared with splitting the frames.
READ_BYTES = 256 * 1024

# Maximum synced bytes that have to be scanned after a crash.
CHECKPOINT_SPACING_BYTES = 16 * 1024 * 1024

# The smallest frame: the four bytes of its size.
_FRAME_BYTES_MIN = 4

# Written by `probe`: one block of any common file system.
_PROBE = bytes(4096)


class TrimmedError(StorageError):
    """The data to read next was deleted meanwhile."""


class TopicLog:
    """The log of one topic."""

    def __init__(
        self,
        pool: FilePool,
        folder: str,
        settings: LogSettings,
        log_id: bytes,
        segments: list[Segment],
        next_seq: int,
        reserve_seqs: ReserveSeqs,
        epoch: int = 0,
    ) -> None:
        """Create a log from loaded segments. `next_seq` is the number of the next message.
        `reserve_seqs` is called before numbers are used. `epoch` is 0 without replication."""
        self.epoch = epoch
        """Stored with every batch."""
        self.on_append: Callable[[], None] | None = None
        """Called after each append."""
        self.on_segment_removed: Callable[[int], None] | None = None
        """Called with `first_seq` of each segment that was trimmed."""
        self.on_damage: Callable[[], None] | None = None
        """Called when a read has found damage."""
        self._confirmed_seq = (segments[0].first_seq if segments else next_seq) if epoch else None
        self._opened_seq = next_seq
        self._log_id_bytes = log_id
        self._reserve_seqs = reserve_seqs
        self.log_id = log_id.hex()
        """Identifies the log among all logs of all nodes; 32 hex digits. A topic that is deleted
        and created again has a log with another id."""
        self.next_seq = next_seq
        self.damage: list[Issue] = []
        """Damage that reads have found and skipped. The caller that reports it clears the list."""
        self.trimmed_bytes = 0
        """Size of the segments that `trim` has deleted since the start, also from the middle."""
        self._pool = pool
        self._folder = folder
        self._settings = settings
        self._retention = settings.retention
        self._roll_at = self._roll_size()
        self._segments = segments
        for segment in segments:
            # With replication another member has the messages: they must not be skipped.
            segment.skips_damage = not epoch
        last = segments[-1] if segments else None
        can_grow = last is not None and not last.is_format_1 and last.next_seq == next_seq
        # With replication, all batches of a segment have one epoch, and each start has a new one.
        self._active = last if can_grow and not epoch else None
        """The segment for appends, always the last one; None if the next append starts a new
        segment."""
        self._writable: Segment | None = None
        """Same as `_active`, or None if the next append needs preparation."""
        unsynced = self._unsynced_segments()
        self.synced_seq = unsynced[0].first_seq if unsynced else next_seq
        self.sync_requested_seq = self.synced_seq
        """Messages from here on were appended since the last request for a sync."""
        # The folder is fsynced before an index file is written, so segments with one are not new.
        self._new_file_count = len(unsynced)
        # The last fsync of the previous run may have failed: see the module's docstring.
        self._must_rewrite = bool(unsynced)
        self._is_syncing = False
        self._is_closed = False
        self._write_error: str | None = None
        self._sync_error: str | None = None

    @property
    def first_seq(self) -> int:
        """The oldest stored message; `next_seq` if there is none."""
        return self._segments[0].first_seq if self._segments else self.next_seq

    @property
    def high_watermark(self) -> int:
        """Messages below this number may be delivered and shown to readers: `next_seq` without
        replication."""
        return self.next_seq if self._confirmed_seq is None else self._confirmed_seq

    def set_high_watermark(self, seq: int) -> None:
        """Set the high watermark of a replicated log. It never moves back, nor above `next_seq`."""
        assert self._confirmed_seq is not None
        self._confirmed_seq = max(self._confirmed_seq, min(seq, self.next_seq))

    @property
    def latest_seq(self) -> int:
        """Where a reader or a channel starts that wants only new messages: the high watermark. As
        long as that has not reached the messages of earlier runs, these do not count as new."""
        if self._confirmed_seq is None:
            return self.next_seq
        return max(self._confirmed_seq, self._opened_seq)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether the high watermark has not reached the messages of earlier runs yet: shortly
        after a takeover."""
        return self._confirmed_seq is not None and self._confirmed_seq < self._opened_seq

    @property
    def byte_size(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.end for segment in self._segments)

    @property
    def segments(self) -> list[SegmentInfo]:
        """Descriptions of all segments, in order."""
        return [segment.info for segment in self._segments]

    @property
    def has_old_segments(self) -> bool:
        """Whether there are segments besides the last one, which is never trimmed."""
        return len(self._segments) > 1

    @property
    def error(self) -> str | None:
        """Error of the last write or fsync; None after a success."""
        return self._sync_error or self._write_error

    @property
    def retention(self) -> Retention:
        """How long finished messages are kept."""
        return self._retention

    @retention.setter
    def retention(self, retention: Retention | None) -> None:
        """Set the retention; None for the default of the data path."""
        self._retention = self._settings.retention if retention is None else retention
        self._roll_at = self._roll_size()

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed or discarded."""
        return self._is_closed

    # Messages

    def append(
        self, frames: list[bytes], timestamp_ns: int, due_ns: int = 0, attributes: bytes = b""
    ) -> int:
        """Store one batch with one write and return the size of the frames in bytes. If it raises
        StorageError, nothing was stored.

        A frame is opaque except for its first four bytes, the big-endian number of bytes that
        follow. `due_ns` is the wall time before which none of the messages may be delivered.
        `attributes` are those of the messages (`penstock.storage.attributes`).
        """
        joined = b"".join(frames)
        size = len(joined)
        segment = self._writable
        try:
            if segment is None or segment.end + size > self._roll_at:
                segment = self._make_writable(size)
            self.next_seq = segment.append(
                joined, len(frames), timestamp_ns, due_ns, self.epoch, attributes
            )
        except OSError as error:
            raise self._record_write_error(error) from error
        if self.on_append is not None:
            self.on_append()
        return size

    def read(self, seq: int, max_bytes: int = READ_BYTES) -> list[Run]:
        """Read messages from `seq` on: about `max_bytes`, but at least one batch.

        Consecutive batches with the same due time form one run. Missing sequence numbers are
        skipped, so the first run may begin above `seq`. Returns [] if nothing is stored from `seq`
        on. Raises StorageError.
        """
        for segment in self._segments_from(seq):
            try:
                runs = segment.read(seq, max_bytes)
            except OSError as error:
                raise storage_error("read", segment.handle.path, error) from error
            finally:
                self.collect_damage(segment)
            if runs:
                return runs
        return []

    def segments_info(self) -> list[SegmentExtent]:
        """The epoch and the extent of every segment, in order. Raises StorageError."""
        return [
            SegmentExtent(each.first_seq, self._epoch_of(each), each.end, each.next_seq)
            for each in self._segments
        ]

    def read_raw(self, first_seq: int, position: int, max_bytes: int) -> bytes:
        """Read bytes of the segment that begins at `first_seq`, as they are in its file: at most
        `max_bytes`, and none beyond the valid end.

        Raises StorageError; TrimmedError if there is no such segment any more.
        """
        at = bisect_right(self._segments, first_seq, key=_first_seq) - 1
        if at < 0 or self._segments[at].first_seq != first_seq:
            raise TrimmedError(f"{self._folder} has no segment {first_seq} any more")
        if self._is_closed:
            raise self._not_writable_error()
        segment = self._segments[at]
        try:
            return segment.read_raw(position, max_bytes)
        except OSError as error:
            raise storage_error("read", segment.handle.path, error) from error

    def next_segment_seq(self, first_seq: int) -> int | None:
        """The first number of the next segment after the one that begins at `first_seq`."""
        at = bisect_right(self._segments, first_seq, key=_first_seq)
        return self._segments[at].first_seq if at < len(self._segments) else None

    def is_end(self, first_seq: int, position: int) -> bool:
        """Whether a position of a segment is the end of the log."""
        last = self._segments[-1] if self._segments else None
        return last is not None and last.first_seq == first_seq and last.end == position

    def seq_at_time(self, timestamp_ns: int) -> int:
        """First message that was stored at or after this time; `next_seq` if there is none.

        Exact to the batch. If the clock was set back, later messages may have earlier timestamps.
        """
        for segment in self._segments:
            if segment.last_timestamp_ns >= timestamp_ns:
                try:
                    return segment.seq_at_time(timestamp_ns)
                except OSError as error:
                    raise storage_error("read", segment.handle.path, error) from error
                finally:
                    self.collect_damage(segment)
        return self.next_seq

    def seq_after(self, seq: int, count: int) -> int:
        """Sequence number after the next `count` messages from `seq` on, including future
        messages."""
        for segment in self._segments_from(seq):
            seq = max(seq, segment.first_seq)
            if count <= segment.next_seq - seq:
                return seq + count
            count -= segment.next_seq - seq
            seq = segment.next_seq
        return max(seq, self.next_seq) + count

    def maybe_segment_from(self, seq: int) -> Segment | None:
        """The segment with the first stored message from `seq` on."""
        return next(self._segments_from(seq), None)

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of `[first, end)` below `next_seq` that are not stored, in order.

        The caller must mark them as finished for a channel that is created or moved back; otherwise
        they count as its depth.
        """
        gaps = []
        end = min(end, self.next_seq)
        for segment in self._segments_from(first):
            if segment.first_seq >= end:
                break
            if first < segment.first_seq:
                gaps.append((first, segment.first_seq))
            first = segment.next_seq
        if first < end:
            gaps.append((first, end))
        return gaps

    def deferred_batches(self, first: int, end: int) -> Iterator[list[DeferredBatch]]:
        """Yield the batches of `[first, end)` with a due time, in order, in lists of bounded
        length.

        Each step does a bounded amount of work, and may yield an empty list. Raises StorageError.
        """
        for segment in list(self._segments_from(first)):
            if segment.first_seq >= end:
                return
            if segment.is_removed:
                continue
            try:
                yield from segment.deferred_batches(first, end)
            except OSError as error:
                raise storage_error("read", segment.handle.path, error) from error
            finally:
                self.collect_damage(segment)

    def trim(
        self, is_needed: Callable[[int, int], bool], wall_ns: int, end: int | None = None
    ) -> int:
        """Delete segments that are neither needed, according to `is_needed(first, end)`, nor
        retained.

        Any segment but the last may be deleted, also from the middle: one long-deferred message
        does not retain all later segments. All segments from `end` on are needed. Returns the
        number of bytes freed.
        """
        if self._needs_roll(wall_ns):
            try:
                self._roll()
            except OSError as error:
                raise storage_error("write to", self._folder, error) from error
        candidates = self._segments[:-1]
        if end is not None:
            candidates = candidates[: bisect_right(candidates, end, key=_next_seq)]
        if not candidates:
            return 0
        size, freed = self.byte_size, 0
        try:
            for segment in candidates:
                size_after = size - freed - segment.end
                if self._retention.keeps(segment.last_timestamp_ns, size_after, wall_ns):
                    break  # All later segments are retained, too.
                if not is_needed(segment.first_seq, segment.next_seq):
                    segment.remove()
                    freed += segment.end
        except OSError as error:
            raise storage_error("remove", segment.handle.path, error) from error
        finally:
            if freed:
                self.trimmed_bytes += freed
                self._drop_removed_segments()
        return freed

    def probe(self) -> None:
        """After a failed write, test whether writing works again; if so, clear `error`.

        Without it, a node that is known to be unhealthy, and is sent no more messages, would stay
        unhealthy.
        """
        if self._write_error is None or self._is_closed or self._sync_error is not None:
            return
        with contextlib.suppress(OSError):
            segment = self._segment_with_room(0)
            segment.probe(_PROBE)
            self._write_error = None

    # Syncing

    @property
    def needs_sync(self) -> bool:
        """Whether anything was written that no fsync has covered."""
        return bool(self._new_file_count or self._unsynced_segments())

    @property
    def needs_retry(self) -> bool:
        """Whether the last fsync failed."""
        return self._sync_error is not None and not self._is_closed

    def sync(self) -> None:
        """Fsync and wait for it (`GroupCommit` does not block). Raises StorageError."""
        fsync_now(self)

    def begin_sync(self) -> LogFsync:
        """Start an fsync of everything stored so far; one at a time. Raises StorageError."""
        assert not self._is_syncing
        if self._is_closed:
            raise self._not_writable_error()
        folders = [self._folder, self._folder.rpartition("/")[0]] if self._new_file_count else []
        job = LogFsync(
            self._pool.files,
            self._folder,
            self._unsynced_segments(),
            folders,
            new_file_count=self._new_file_count,
            next_seq=self.next_seq,
            is_rewrite=self._must_rewrite,
        )
        self._is_syncing = True
        self.sync_requested_seq = self.next_seq
        return job

    def end_sync(self, job: FsyncJob, error: StorageError | None) -> None:
        """Apply the result of an fsync."""
        assert isinstance(job, LogFsync)
        self._is_syncing = False
        job.release()
        if self._is_closed:
            return
        self._must_rewrite = error is not None
        if error is not None:
            self._sync_error = str(error)
            self._writable = None
            self.sync_requested_seq = self.synced_seq
            return
        self._sync_error = None
        self._new_file_count -= job.new_file_count
        self.synced_seq = job.next_seq
        for segment, end in job.parts:
            segment.synced_end = end
            # The segment may have grown while the fsync ran.
            if segment.is_synced:
                self._write_checkpoint(segment)

    def close(self) -> None:
        """Sync and close the log, and write missing index files, so that the next start need not
        read it. If it raises StorageError, the log is closed nevertheless. No sync may be in
        progress."""
        if self._is_closed:
            return
        assert not self._is_syncing
        try:
            if self.needs_sync:
                self.sync()
            for segment in self._segments:
                self._finalize(segment)
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the files without syncing."""
        self._is_closed = True
        self._writable = None
        for segment in self._segments:
            segment.handle.close()

    # Internals

    def _segments_from(self, seq: int) -> Iterator[Segment]:
        """The segments with messages from `seq` on."""
        if seq >= self.next_seq:
            return iter(())
        at = bisect_right(self._segments, seq, key=_first_seq)
        if at and self._segments[at - 1].next_seq > seq:
            at -= 1
        return islice(self._segments, at, None)

    def _make_writable(self, size: int) -> Segment:
        """Return the segment for the next `size` bytes of frames, after clearing earlier errors.
        Raises StorageError or OSError."""
        if self._is_closed or self._sync_error is not None:
            raise self._not_writable_error()
        # All numbers of a segment are reserved at once, so that an append need not check it.
        messages_max = (self._settings.max_bytes_per_file + size) // _FRAME_BYTES_MIN
        self._reserve_seqs(self.next_seq + messages_max)
        self._writable = segment = self._segment_with_room(size)
        self._write_error = None  # The next write sets it again if it fails.
        return segment

    def _segment_with_room(self, size: int) -> Segment:
        """Return the segment for the next `size` bytes of frames; it may be a new one."""
        active = self._active
        if active is not None and active.is_broken:
            active.truncate_to_end()
        if (
            active is None
            or active.is_broken
            or (not active.is_empty and active.end + size > self._roll_at)
        ):
            active = self._roll()
        return active

    def _roll(self) -> Segment:
        segment = Segment(self._pool, self._folder, self.next_seq, self._log_id_bytes)
        segment.skips_damage = not self.epoch
        segment.handle.create()
        self._new_file_count += 1
        full, self._active = self._active, segment
        self._writable = None
        self._segments.append(segment)
        if full is not None and full.is_synced:
            self._finalize(full)
        return segment

    def _drop_removed_segments(self) -> None:
        removed = [segment for segment in self._segments if segment.is_removed]
        self._segments = [segment for segment in self._segments if not segment.is_removed]
        if self._confirmed_seq is not None:
            # An earlier run has passed the removed messages on, so they are confirmed.
            self.set_high_watermark(self.first_seq)
        if self.on_segment_removed is not None:
            for segment in removed:
                self.on_segment_removed(segment.first_seq)

    def _epoch_of(self, segment: Segment) -> int:
        try:
            return segment.epoch
        except OSError as error:
            raise storage_error("read", segment.handle.path, error) from error

    def _write_checkpoint(self, segment: Segment) -> None:
        """Write the index file of a complete segment, and from time to time that of the active
        one, to limit the scan at the next start."""
        if segment is not self._active:
            self._finalize(segment)
        elif segment.end - segment.indexed_end >= CHECKPOINT_SPACING_BYTES:
            with contextlib.suppress(OSError):
                segment.write_index()

    def _finalize(self, segment: Segment) -> None:
        # The index file is a cache: without one, the next start reads the segment.
        with contextlib.suppress(OSError):
            if self.epoch and segment.has_damage:
                return
            if segment.indexed_end < segment.end and not segment.is_removed:
                segment.finalize()

    def _unsynced_segments(self) -> list[Segment]:
        return [segment for segment in self._segments if not segment.is_synced]

    def _needs_roll(self, wall_ns: int) -> bool:
        """Whether retention by time requires a new segment."""
        active = self._active
        return (
            active is not None
            and not active.is_empty
            and self._retention.is_segment_complete(active.first_timestamp_ns, wall_ns)
        )

    def _roll_size(self) -> int:
        """Segment size, without the next header, at which a new segment is started."""
        max_bytes = self._settings.max_bytes_per_file
        return self._retention.limit_segment_bytes(max_bytes) - HEADER_BYTES

    def collect_damage(self, segment: Segment) -> None:
        """Move the damage that a segment has recorded to `damage`."""
        if segment.damage:
            self.damage += segment.damage
            segment.damage.clear()
            if self.epoch:
                # A follower that opens this segment must read it, and fetch the damaged part again.
                with contextlib.suppress(OSError):
                    segment.remove_index()
            if self.on_damage is not None:
                self.on_damage()

    def check_segment(self, first_seq: int) -> Iterator[None]:
        """Read the segment that begins at `first_seq`, a part in each step. If it is damaged,
        `on_damage` is called. Raises StorageError."""
        segment = next((each for each in self._segments if each.first_seq == first_seq), None)
        if segment is None:
            return
        try:
            yield from segment.check()
        except CorruptBatchError:
            return
        except OSError as error:
            raise storage_error("read", segment.handle.path, error) from error
        finally:
            self.collect_damage(segment)

    def skip_damage(self) -> None:
        """From now on, let reads skip damaged bytes: no other member has the messages."""
        for segment in self._segments:
            segment.skips_damage = True

    def _record_write_error(self, error: OSError) -> StorageError:
        failure = storage_error("write to", self._folder, error)
        self._write_error = str(failure)
        self._writable = None
        return failure

    def _not_writable_error(self) -> StorageError:
        if self._is_closed:
            return LogClosedError(f"{self._folder} is closed")
        assert self._sync_error is not None
        return StorageError(self._sync_error)


def _first_seq(segment: Segment) -> int:
    return segment.first_seq


def _next_seq(segment: Segment) -> int:
    return segment.next_seq
