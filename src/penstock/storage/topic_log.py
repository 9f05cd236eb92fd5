"""The messages of one topic, in segments. One thread owns a log; only its fsyncs leave that thread.

A sequence number in this interface always means "next to read": `next_seq` is the number that the
next message gets, and a range `[first, end)` does not include `end`. Numbers never repeat. Within a
segment they have no gap; between segments there is one where a segment was trimmed or damaged, or
where numbers were skipped because a power loss may have taken their messages.

What `append` has returned for is in the operating system's hands and survives the end of this
process. What is below `synced_seq` survives a power loss too.

When a write fails, the batch is not stored and the next append tries again. When an fsync fails,
the system may believe from then on that those bytes are on disk, and another fsync means nothing.
So no append is taken until what it should have covered has been written and fsynced once more. The
next sync does that, and so it does for what a run that crashed left unsynced, whose last fsync may
have failed.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from penstock.common.errors import LogClosedError, StorageError
from penstock.storage.batch import HEADER_BYTES
from penstock.storage.files import FilePool, storage_error
from penstock.storage.fsync import FsyncJob, LogFsync, fsync_now
from penstock.storage.index import DeferredBatch
from penstock.storage.layout import Issue
from penstock.storage.retention import LogSettings, Retention
from penstock.storage.segment import Run, Segment, SegmentInfo

__all__ = ["CHECKPOINT_SPACING_BYTES", "READ_BYTES", "TopicLog"]

# Enough that a read costs little beside splitting what it brought, and little enough to hold.
READ_BYTES = 256 * 1024

# After a crash, at most so much of what was synced has to be read.
CHECKPOINT_SPACING_BYTES = 16 * 1024 * 1024

# Files are deleted whole. So that little is kept beyond its retention, a file takes no more than a
# quarter of what is kept; but not less than this, or there would be too many files.
_ROLL_SHARE = 4
_ROLL_BYTES_MIN = 1024 * 1024
_ROLL_TIME_MIN_NS = 60 * 1_000_000_000

# What `probe` writes and cuts off again: a block of any common file system.
_PROBE = bytes(4096)


class TopicLog:
    """The messages of one topic."""

    def __init__(
        self,
        pool: FilePool,
        folder: str,
        settings: LogSettings,
        segments: list[Segment],
        next_seq: int,
    ) -> None:
        """Takes loaded segments, and the number that the next message shall have."""
        self.next_seq = next_seq
        self.damage: list[Issue] = []
        """What reading came across and stepped over; whoever reports it empties the list."""
        self._pool = pool
        self._folder = folder
        self._settings = settings
        self._retention = settings.retention
        self._roll_at = self._roll_position()
        self._segments = segments
        is_dense = bool(segments) and segments[-1].next_seq == next_seq
        self._active = segments[-1] if is_dense else None
        """The segment that is appended to: the last one, or None if that must be a new one."""
        self._writable: Segment | None = None
        """The same, or None while something has to be seen to before the next append."""
        unsynced = self._unsynced_segments()
        self.synced_seq = unsynced[0].first_seq if unsynced else next_seq
        self.sync_requested_seq = self.synced_seq
        """What comes from here on was appended since a sync was last asked for."""
        # Names are synced before an index file is written, so where all have one no name is new.
        self._new_names = len(unsynced)
        # What the last run could not sync looks as if it were: see the module's docstring.
        self._must_rewrite = bool(unsynced)
        self._is_syncing = False
        self._is_closed = False
        self._write_error: str | None = None
        self._sync_error: str | None = None

    @property
    def first_seq(self) -> int:
        """The oldest message kept; `next_seq` when there is none."""
        return self._segments[0].first_seq if self._segments else self.next_seq

    @property
    def byte_size(self) -> int:
        """How many bytes all segments have."""
        return sum(segment.end for segment in self._segments)

    @property
    def segments(self) -> list[SegmentInfo]:
        """Every segment, in order."""
        return [segment.info for segment in self._segments]

    @property
    def has_old_segments(self) -> bool:
        """Whether there are segments besides the last, which is never trimmed."""
        return len(self._segments) > 1

    @property
    def error(self) -> str | None:
        """Why the last write or the last fsync failed; None again once one has succeeded."""
        return self._sync_error or self._write_error

    @property
    def retention(self) -> Retention:
        """How long what is no longer needed is kept."""
        return self._retention

    @retention.setter
    def retention(self, retention: Retention | None) -> None:
        """None for that of the data path."""
        self._retention = self._settings.retention if retention is None else retention
        self._roll_at = self._roll_position()

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed or discarded."""
        return self._is_closed

    # Messages

    def append(self, frames: list[bytes], timestamp_ns: int, due_ns: int = 0) -> int:
        """Stores one batch with one write, or raises StorageError and has stored nothing. Returns
        how many bytes the frames have.

        A frame is opaque but for its first four bytes, the big-endian number of bytes that follow.
        `due_ns` is the wall time before which none of the messages may be delivered.
        """
        joined = b"".join(frames)
        size = len(joined)
        segment = self._writable
        try:
            if segment is None or segment.end + size > self._roll_at:
                segment = self._make_writable(size)
            self.next_seq = segment.append(joined, len(frames), timestamp_ns, due_ns)
        except OSError as error:
            raise self._write_failed(error) from error
        return size

    def read(self, seq: int, max_bytes: int = READ_BYTES) -> list[Run]:
        """What is stored from `seq` on: about `max_bytes` of it, but at least one batch.

        Batches that follow on each other and are due at the same time come as one run. Numbers
        that are not stored are stepped over, so the first run may begin above `seq`. [] when
        nothing is stored from `seq` on. Raises StorageError if the disk cannot be read.
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

    def seq_at_time(self, timestamp_ns: int) -> int:
        """The first message that was stored at or after this time; `next_seq` when there is none.

        Exact to the batch while the clock goes forward; if it was set back, the first message that
        matches is meant, though later ones may be older.
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
        """Where the next `count` messages from `seq` on end, those not yet stored included."""
        for segment in self._segments_from(seq):
            seq = max(seq, segment.first_seq)
            if count <= segment.next_seq - seq:
                return seq + count
            count -= segment.next_seq - seq
            seq = segment.next_seq
        return max(seq, self.next_seq) + count

    def maybe_segment_from(self, seq: int) -> Segment | None:
        """The segment that holds the first message stored from `seq` on."""
        return next(self._segments_from(seq), None)

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of `[first, end)` below `next_seq` that are not stored, in order.

        Nobody will ever finish them: a channel that is created, or moved back, should have them
        finished for it, or they count as its depth.
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
        """The batches of `[first, end)` that have a due time, in order, in lists of bounded length.

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
        """Deletes the segments that `is_needed(first, end)` denies and retention does not keep.

        Any segment but the last may go, also from the middle: one long-deferred
        message does not retain all later segments. All segments from `end` on are needed. Returns
        the number of bytes freed.
        """
        if self._is_overdue(wall_ns):
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
                if self._is_retained(segment, size - freed, wall_ns):
                    break  # and so are all later ones
                if not is_needed(segment.first_seq, segment.next_seq):
                    segment.remove()
                    freed += segment.end
        except OSError as error:
            raise storage_error("remove", segment.handle.path, error) from error
        finally:
            if freed:
                self._segments = [each for each in self._segments if not each.is_removed]
        return freed

    def probe(self) -> None:
        """Tries whether writing works again after it failed, and clears `error` if so.

        The log does not repeat a failed append, and a node that is known to be ill may be sent no
        more of them: without this it would stay ill.
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
        """Whether there is anything that no fsync has covered."""
        return bool(self._new_names or self._unsynced_segments())

    @property
    def needs_retry(self) -> bool:
        """Whether the last sync failed."""
        return self._sync_error is not None and not self._is_closed

    def sync(self) -> None:
        """Fsyncs here and now; `GroupCommit` does so without blocking. Raises StorageError."""
        fsync_now(self)

    def begin_sync(self) -> LogFsync:
        """The fsyncs that make all that is stored now safe; one at a time. Raises StorageError."""
        assert not self._is_syncing
        if self._is_closed:
            raise self._refusal()
        folders = [self._folder, self._folder.rpartition("/")[0]] if self._new_names else []
        job = LogFsync(
            self._pool.files,
            self._folder,
            self._unsynced_segments(),
            folders,
            new_names=self._new_names,
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
        self._new_names -= job.new_names
        self.synced_seq = job.next_seq
        for segment, end in job.parts:
            segment.synced_end = end
            # It may have grown, and been left for a new one, while the fsync ran.
            if segment.is_synced:
                self._spare_reading(segment)

    def close(self) -> None:
        """Syncs, and leaves the log so that the next start need not read it. Raises StorageError if
        that fails; closed it is all the same. No sync may be under way."""
        if self._is_closed:
            return
        assert not self._is_syncing
        try:
            if self.needs_sync:
                self.sync()
            if self._active is not None:
                self._settle(self._active)
        finally:
            self.discard()

    def discard(self) -> None:
        """Closes the files and leaves everything as it is."""
        self._is_closed = True
        self._writable = None
        for segment in self._segments:
            segment.handle.close()

    # Inside

    def _segments_from(self, seq: int) -> Iterator[Segment]:
        """The segments that hold messages from `seq` on."""
        if seq >= self.next_seq:
            return iter(())
        at = bisect_right(self._segments, seq, key=_first_seq)
        if at and self._segments[at - 1].next_seq > seq:
            at -= 1
        return islice(self._segments, at, None)

    def _make_writable(self, size: int) -> Segment:
        """The segment that the next `size` bytes of frames go to, once what stood in the way of
        them is dealt with. Raises StorageError or OSError if it cannot be."""
        if self._is_closed or self._sync_error is not None:
            raise self._refusal()
        self._writable = segment = self._segment_with_room(size)
        self._write_error = None  # of which the write that comes now will tell, if it is still so
        return segment

    def _segment_with_room(self, size: int) -> Segment:
        """The segment that the next `size` bytes of frames go to; may be a new one."""
        active = self._active
        if active is not None and active.is_broken:
            active.cut_rest()
        if active is None or active.is_broken or (active.end and active.end + size > self._roll_at):
            active = self._roll()
        return active

    def _roll(self) -> Segment:
        segment = Segment(self._pool, self._folder, self.next_seq)
        segment.handle.create()
        self._new_names += 1
        full, self._active = self._active, segment
        self._writable = None
        self._segments.append(segment)
        if full is not None and full.is_synced:
            self._settle(full)
        return segment

    def _spare_reading(self, segment: Segment) -> None:
        """Sees to it that the next start need not read a segment that is complete, nor much of the
        one that still grows."""
        if segment is not self._active:
            self._settle(segment)
        elif segment.end - segment.indexed_end >= CHECKPOINT_SPACING_BYTES:
            with contextlib.suppress(OSError):
                segment.write_index()

    def _settle(self, segment: Segment) -> None:
        # The index file is a cache: without one, the next start reads the segment.
        with contextlib.suppress(OSError):
            if segment.indexed_end < segment.end and not segment.is_removed:
                segment.settle()

    def _unsynced_segments(self) -> list[Segment]:
        return [segment for segment in self._segments if not segment.is_synced]

    def _is_retained(self, segment: Segment, log_size: int, wall_ns: int) -> bool:
        time_ns, size_bytes = self._retention
        if time_ns is None and size_bytes is None:
            return False
        is_young = time_ns is None or segment.last_timestamp_ns + time_ns > wall_ns
        is_within = size_bytes is None or log_size - segment.end < size_bytes
        return is_young and is_within

    def _is_overdue(self, wall_ns: int) -> bool:
        """Whether the last segment has been appended to for so long that it keeps what it began
        with for longer than was asked for."""
        active, time_ns = self._active, self._retention.time_ns
        if active is None or not active.end or time_ns is None:
            return False
        share_ns = max(time_ns // _ROLL_SHARE, _ROLL_TIME_MIN_NS)
        return active.first_timestamp_ns + share_ns <= wall_ns

    def _roll_position(self) -> int:
        """The size at which a new segment is begun."""
        size_max, kept = self._settings.max_bytes_per_file, self._retention.size_bytes
        if kept is not None:
            size_max = min(size_max, max(kept // _ROLL_SHARE, _ROLL_BYTES_MIN))
        return size_max - HEADER_BYTES

    def collect_damage(self, segment: Segment) -> None:
        """Takes over what a segment came across."""
        if segment.damage:
            self.damage += segment.damage
            segment.damage.clear()

    def _write_failed(self, error: OSError) -> StorageError:
        failure = storage_error("write to", self._folder, error)
        self._write_error = str(failure)
        self._writable = None
        return failure

    def _refusal(self) -> StorageError:
        if self._is_closed:
            return LogClosedError(f"{self._folder} is closed")
        assert self._sync_error is not None
        return StorageError(self._sync_error)


def _first_seq(segment: Segment) -> int:
    return segment.first_seq


def _next_seq(segment: Segment) -> int:
    return segment.next_seq
