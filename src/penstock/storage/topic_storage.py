"""A topic on disk: its log and the cursors of its channels; how they are loaded and recovered.

Sequence numbers must not be used twice, and a channel must not wait for a message that is not
stored. Therefore, when a topic is loaded, its next number is above all that the log or the cursors
mention, and gaps in the log are marked as finished for every channel. After a power loss, messages
that were delivered may be lost without a trace: the next number is then one that was never
reserved.

Recovery of the segments:

1. Remove unfinished files (`.new`). Remove an index file without a segment, too, and report it: it
   proves that the segment was stored.
2. If the index file covers the whole segment, do not read the segment.
3. Scan other segments from the end of the part that the index file covers. After a crash these are
   the last segment and, if it was not synced yet, the one before it.
4. Truncate an incomplete batch at the end: it was never acknowledged.
5. Move damaged bytes to a `.bad` file beside the segment. The batches after them become a new
   segment, so that sequence numbers within a segment have no gaps.

An interrupted recovery is repeated at the next start. Every repair is returned as an `Issue`.
"""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from itertools import zip_longest
from pathlib import PurePath
from typing import NamedTuple

from penstock.common.errors import StorageError
from penstock.storage.batch import (
    SEGMENT_HEADER_BYTES,
    BadBytes,
    BatchHeader,
    ScanBuffer,
    maybe_segment_header,
    scan_batches,
)
from penstock.storage.cursors import Cursors
from penstock.storage.files import FilePool, Files, append_and_sync
from penstock.storage.fsync import FsyncTarget, fsync_in_parallel
from penstock.storage.index import Checkpoint
from penstock.storage.layout import (
    BAD_SUFFIX,
    LOG_ID_BYTES,
    NEW_SUFFIX,
    Issue,
    maybe_index_seq,
    maybe_segment_seq,
    segment_name,
)
from penstock.storage.observer import StoreObserver
from penstock.storage.retention import LogSettings
from penstock.storage.segment import Segment
from penstock.storage.topic_log import ReserveSeqs, TopicLog

__all__ = [
    "SKIPPED_SEQS",
    "LastShutdown",
    "LoadedSegments",
    "TopicStore",
    "close_stores",
    "create_store",
    "initial_seq",
    "load_segments",
    "load_store",
    "maybe_log_id",
    "missing_segment_issue",
]

# Sequence numbers skipped after a power loss in a topic of format 1, which did not reserve its
# numbers: more messages than nsqd can store between two fsyncs.
SKIPPED_SEQS = 1 << 30


class LastShutdown(Enum):
    """How the last run that had the data path open ended."""

    CLEAN = auto()  # All data is synced.
    CRASH = auto()  # All data is present, but some may not be synced.
    POWER_LOSS = auto()  # Unsynced data may be lost.


class LoadedSegments(NamedTuple):
    """The non-empty segments of a topic, in order."""

    segments: list[Segment]
    issues: list[Issue]
    next_seq: int
    """Above the sequence numbers of all known messages."""
    is_tail_lost: bool
    """An unknown number of messages at the end is damaged, so their sequence numbers are
    unknown."""


class TopicStore:
    """A topic's log and the cursors of its channels."""

    def __init__(self, name: str, log: TopicLog, cursors: Cursors) -> None:
        self.name = name
        self.log = log
        self.cursors = cursors
        self.is_closed = False
        self.is_fully_synced = True
        """False if closing could not sync everything."""

    def observe(self, observer: StoreObserver) -> None:
        """Report every later write to `observer`."""
        self.log.on_append = partial(observer.appended, self)
        self.log.on_segment_removed = partial(observer.segment_removed, self)
        self.log.on_damage = partial(observer.damage_found, self)
        self.cursors.on_write = partial(observer.journal_written, self)

    def close(self) -> None:
        """Close both, so that the next start reads no messages. If it raises StorageError
        because one could not be synced, both are closed nevertheless."""
        self.is_closed = True
        self.is_fully_synced = False
        try:
            self.cursors.close()
        finally:
            self.log.close()
        self.is_fully_synced = True

    def discard(self) -> None:
        """Close both without syncing; for a topic that is about to be deleted."""
        self.is_closed = True
        self.cursors.discard()
        self.log.discard()


def close_stores(stores: Sequence[TopicStore]) -> list[StorageError]:
    """Close many topics, with their fsyncs in parallel, and return the errors. An unexpected
    exception is raised after all others are closed.

    No sync may be in progress.
    """
    if len(stores) > 1:
        _try_to_sync(stores)
    # `close` retries the fsyncs that failed, and raises if they fail again.
    failures: list[StorageError] = []
    bugs: list[Exception] = []
    for store in stores:
        try:
            store.close()
        except StorageError as failure:
            failures.append(failure)
        except Exception as bug:  # noqa: BLE001 (raised below)
            bugs.append(bug)
    if bugs:
        raise bugs[0]
    return failures


def _try_to_sync(stores: Sequence[TopicStore]) -> None:
    for store in stores:
        with suppress(Exception):
            store.cursors.flush()
    parts: list[FsyncTarget] = [part for store in stores for part in (store.log, store.cursors)]
    fsync_in_parallel([part for part in parts if part.needs_sync])


def create_store(
    pool: FilePool,
    name: str,
    folder: str,
    settings: LogSettings,
    next_seq: int,
    reserve_seqs: ReserveSeqs,
    epoch: int = 0,
) -> TopicStore:
    """Create a topic in an empty folder. Its first message gets the number `next_seq`."""
    cursors = Cursors(pool, folder, epoch)
    log_id = pool.files.random_bytes(LOG_ID_BYTES)
    cursors.create_journal(next_seq, log_id)
    log = TopicLog(pool, folder, settings, log_id, [], next_seq, reserve_seqs, epoch)
    return TopicStore(name, log, cursors)


def load_store(
    pool: FilePool,
    name: str,
    folder: str,
    settings: LogSettings,
    unreserved_seq: int,
    first_seq: int,
    reserve_seqs: ReserveSeqs,
    last_shutdown: LastShutdown,
    epoch: int = 0,
) -> tuple[TopicStore, list[Issue]]:
    """Load a topic; also return the issues that were repaired. Raises OSError or StorageError.

    All numbers from `unreserved_seq` on have never been reserved. After a power loss the next
    message gets this number, or a higher one: messages that were delivered may be lost, and
    consumers may have stored their numbers.

    `first_seq` is the first number of a topic whose creation was interrupted.
    """
    lost_power = last_shutdown is LastShutdown.POWER_LOSS
    cursors = Cursors(pool, folder, epoch)
    journal_issues = cursors.load(is_synced=last_shutdown is LastShutdown.CLEAN)
    known_id = cursors.log_id or maybe_log_id(pool.files, folder)
    log_id = known_id or pool.files.random_bytes(LOG_ID_BYTES)
    loaded = load_segments(pool, folder, log_id, lost_power=lost_power)
    issues = loaded.issues + journal_issues
    has_id = known_id is not None
    is_new = not (has_id or cursors.has_journal or loaded.segments)
    if not has_id and not is_new:
        # Format 1 did not. Before the id is written: a start that finds it does not skip so many.
        reserve_seqs(max(loaded.next_seq, cursors.next_unused_seq))
    if not cursors.has_journal:
        issues += _create_missing_journal(
            folder, cursors, log_id, loaded, first_seq, lost_power=lost_power
        )
    next_seq = max(loaded.next_seq, cursors.next_unused_seq)
    if (lost_power or loaded.is_tail_lost) and not is_new:
        is_reserved = has_id and unreserved_seq > 0
        end = unreserved_seq if is_reserved else max(first_seq, next_seq + SKIPPED_SEQS)
        issues += _skip_seqs(folder, cursors, next_seq, max(end, next_seq))
        next_seq = max(next_seq, cursors.next_unused_seq)
        if not is_reserved:
            # The choice depends on the clock, so it must survive another power loss.
            cursors.sync()
    if cursors.log_id is None:
        # Readers may store the id.
        cursors.set_log_id(log_id)
        cursors.sync()
    stored_end = loaded.segments[-1].next_seq if loaded.segments else 0
    if next_seq > max(stored_end, cursors.next_unused_seq):
        # Recovery removed an empty segment whose name was the only record of these numbers.
        cursors.reserve_below(next_seq)
    log = TopicLog(pool, folder, settings, log_id, loaded.segments, next_seq, reserve_seqs, epoch)
    if not cursors.progress and any(issue.is_damage for issue in journal_issues):
        # The channels are lost and will be created again: let them get all messages.
        cursors.set_pause_point(log.first_seq)
    for channel, progress in cursors.progress.items():
        for first, end in log.gaps(progress.floor, next_seq):
            cursors.finish(channel, first, end)
    return TopicStore(name, log, cursors), issues


def _create_missing_journal(
    folder: str,
    cursors: Cursors,
    log_id: bytes,
    loaded: LoadedSegments,
    first_seq: int,
    *,
    lost_power: bool,
) -> list[Issue]:
    """If there are no segments, the topic was just being created. Otherwise the journal was
    lost."""
    if not loaded.segments:
        cursors.create_journal(max(loaded.next_seq, first_seq), log_id)
        return []
    cursors.create_journal(loaded.segments[0].first_seq, log_id)
    problem = "the journal of the channels is missing; all messages are kept for new channels"
    return [Issue(folder, problem, is_damage=not lost_power)]


def _skip_seqs(folder: str, cursors: Cursors, first: int, end: int) -> list[Issue]:
    if end == first:
        return []
    cursors.reserve_below(end)
    problem = "sequence numbers are skipped because their messages may have been lost"
    return [Issue(folder, problem, is_damage=False, first_seq=first, end_seq=end)]


def maybe_log_id(files: Files, folder: str) -> bytes | None:
    """The id of the log according to the headers of its segments; None if all are of format 1 or
    damaged."""
    for name in files.list_names(folder):
        if maybe_segment_seq(name) is not None:
            with closing(files.open(f"{folder}/{name}", "read")) as file:
                header = maybe_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
            if header is not None:
                return header.log_id
    return None


def initial_seq(wall_ns: int) -> int:
    """First sequence number of a topic created at this time, in microseconds, if it was never
    reserved. So the ids of messages of different topics and nodes usually differ."""
    return wall_ns // 1000


def load_segments(
    pool: FilePool, folder: str, log_id: bytes, *, lost_power: bool
) -> LoadedSegments:
    """Load and repair the segments in a topic's folder. Raises OSError or StorageError."""
    names = pool.files.list_names(folder)
    seqs = [seq for name in names if (seq := maybe_segment_seq(name)) is not None]
    segments: list[Segment] = []
    issues, next_seq = _remove_unfinished_files(pool, folder, log_id, lost_power=lost_power)
    is_tail_lost = False
    for first_seq, limit_seq in zip_longest(seqs, seqs[1:]):
        recovery = _SegmentRecovery(pool, folder, first_seq, limit_seq, log_id)
        recovery.run()
        segments += _remove_empty([recovery.segment, *recovery.split_off])
        issues += recovery.issues
        next_seq = max(next_seq, first_seq, recovery.next_seq)
        is_tail_lost = recovery.is_tail_lost
    return LoadedSegments(segments, issues, next_seq, is_tail_lost)


def _remove_unfinished_files(
    pool: FilePool, folder: str, log_id: bytes, *, lost_power: bool
) -> tuple[list[Issue], int]:
    """Remove unfinished files, and index files without a segment. Returns the issues, and the
    sequence number after the last message of the missing segments; 0 if none is missing."""
    issues: list[Issue] = []
    next_seq = 0
    names = pool.files.list_names(folder)
    for name in names:
        path = f"{folder}/{name}"
        if name.endswith(NEW_SUFFIX):
            pool.files.remove(path)
        elif (first_seq := maybe_index_seq(name)) is not None and (
            segment_name(first_seq) not in names
        ):
            checkpoint = Segment(pool, folder, first_seq, log_id).read_checkpoint()
            if checkpoint is not None:
                # A power loss can undo the removal of the index file alone.
                missing = missing_segment_issue(
                    folder, first_seq, checkpoint, is_damage=not lost_power
                )
                issues.append(missing)
                next_seq = max(next_seq, checkpoint.next_seq)
            pool.files.remove(path)
    return issues, next_seq


def missing_segment_issue(
    folder: str, first_seq: int, checkpoint: Checkpoint, *, is_damage: bool
) -> Issue:
    """Report that a segment is missing whose index file exists."""
    return Issue(
        f"{folder}/{segment_name(first_seq)}",
        "the segment is missing, but its index file exists",
        is_damage=is_damage,
        first_seq=first_seq,
        end_seq=checkpoint.next_seq,
    )


def _remove_empty(segments: list[Segment]) -> list[Segment]:
    for segment in segments:
        if segment.is_empty:
            segment.remove()
    return [segment for segment in segments if not segment.is_empty]


class _SegmentRecovery:
    """Loads one segment, and splits it if it is damaged."""

    def __init__(
        self, pool: FilePool, folder: str, first_seq: int, limit_seq: int | None, log_id: bytes
    ) -> None:
        self.segment = Segment(pool, folder, first_seq, log_id)
        self._log_id = log_id
        self.split_off: list[Segment] = []
        self.issues: list[Issue] = []
        self.next_seq = first_seq
        self.is_tail_lost = False
        self._pool = pool
        self._folder = folder
        self._limit_seq = limit_seq
        self._bad: list[tuple[BadBytes, int]] = []
        self._detached: list[list[BatchHeader]] = []

    def run(self) -> None:
        segment = self.segment
        size = segment.handle.open().size()
        is_start_valid = segment.read_header()
        checkpoint = self._maybe_checkpoint()
        if is_start_valid and checkpoint is not None and checkpoint.end <= size:
            segment.restore(checkpoint)
            self.next_seq = segment.next_seq
        if segment.end < size:
            self._classify_batches(size)
            self._repair()
        if checkpoint is not None and checkpoint.end > size:
            self._report_missing(size, checkpoint)

    def _maybe_checkpoint(self) -> Checkpoint | None:
        """The checkpoint in the index file, unless it is impossible: an index file of format 1 does
        not say to which segment it belongs, and one that a split left describes too much."""
        checkpoint = self.segment.read_checkpoint()
        if checkpoint is None or checkpoint.next_seq <= self.segment.first_seq:
            return None
        is_beyond = self._limit_seq is not None and checkpoint.next_seq > self._limit_seq
        return None if is_beyond else checkpoint

    def _classify_batches(self, size: int) -> None:
        """Find the batches that stay, the batches that must move to a new segment, and bad
        bytes."""
        file = self.segment.handle.open()
        for found in scan_batches(file, self.segment.end, size, self.segment.seed):
            if isinstance(found, BadBytes):
                self._reject(found)
            elif found.header.first_seq < self.next_seq:
                reason = "a batch repeats sequence numbers"
                self._reject(BadBytes.from_batch(found.header, reason, is_leftover=False))
            elif self._limit_seq is not None and found.header.first_seq >= self._limit_seq:
                # A write that was reported as failed, or a batch that was already split off.
                reason = "a batch has sequence numbers of the next segment"
                self._reject(BadBytes.from_batch(found.header, reason, is_leftover=True))
            else:
                self._accept(found.header)

    def _reject(self, bad: BadBytes) -> None:
        self._bad.append((bad, self.next_seq))
        if bad.batch is not None and not bad.is_leftover:
            self.next_seq = max(self.next_seq, bad.batch.next_seq)
        self.is_tail_lost = bad.batch is None and not bad.is_leftover

    def _accept(self, batch: BatchHeader) -> None:
        segment, detached = self.segment, self._detached
        if batch.position == segment.end and batch.first_seq == segment.next_seq:
            segment.add_scanned(batch)
        elif detached and (detached[-1][-1].end, self.next_seq) == (
            batch.position,
            batch.first_seq,
        ):
            detached[-1].append(batch)
        else:
            detached.append([batch])
        self.next_seq = batch.next_seq
        self.is_tail_lost = False

    def _repair(self) -> None:
        damaged = [bad for bad, _ in self._bad if not bad.is_leftover]
        if damaged:
            self._save_damaged_bytes(damaged)
        # From last to first, so that at an interruption each new segment limits the one before it.
        for batches in reversed(self._detached):
            self.split_off.insert(0, self._split_off(batches))
        if self.split_off and self.split_off[0].first_seq == self.segment.first_seq:
            # There was no valid batch before it, so it replaces the segment of the same name.
            self.segment.handle.close()
            self.segment = self.split_off.pop(0)
        elif self._bad or self._detached:
            self.segment.handle.open().truncate(self.segment.end)
        self.issues += [self._to_issue(bad, seq) for bad, seq in self._bad]

    def _save_damaged_bytes(self, damaged: list[BadBytes]) -> None:
        file = self.segment.handle.open()
        pieces = [file.read(bad.position, bad.end - bad.position) for bad in damaged]
        append_and_sync(self._pool.files, self.segment.handle.path + BAD_SUFFIX, pieces)
        self._pool.files.sync_folder(self._folder)

    def _split_off(self, batches: list[BatchHeader]) -> Segment:
        segment = Segment(self._pool, self._folder, batches[0].first_seq, self._log_id)
        path = segment.handle.path
        segment.handle.path = path + NEW_SUFFIX
        segment.handle.create()
        buffer = ScanBuffer(self.segment.handle.open(), batches[-1].end, self.segment.seed)
        for batch in batches:
            _, frames, attributes = buffer.read_batch(batch)
            segment.append(
                frames,
                batch.message_count,
                batch.timestamp_ns,
                batch.due_ns,
                batch.epoch,
                attributes,
            )
        segment.handle.open().sync()
        segment.synced_end = segment.end
        self._pool.files.rename(segment.handle.path, path)
        self._pool.files.sync_folder(self._folder)
        segment.handle.path = path
        return segment

    def _to_issue(self, bad: BadBytes, first_seq: int) -> Issue:
        path = self.segment.handle.path
        if bad.is_leftover:
            return replace(bad.to_issue(path), problem=f"{bad.reason}; truncated")
        after = (batches[0] for batches in self._detached if batches[0].position >= bad.end)
        following = next(after, None)
        end_seq = following.first_seq if following else self._limit_seq
        if end_seq is None and bad.batch is not None:
            end_seq = bad.batch.next_seq
        return replace(
            bad.to_issue(path),
            problem=f"{bad.reason}; moved to {PurePath(path).name}{BAD_SUFFIX}",
            first_seq=first_seq,
            end_seq=end_seq,
        )

    def _report_missing(self, size: int, checkpoint: Checkpoint) -> None:
        """Report that the segment is shorter than its index file says."""
        self.issues.append(
            Issue(
                self.segment.handle.path,
                "the end is missing although it was synced",
                is_damage=True,
                first_byte=size,
                end_byte=checkpoint.end,
                first_seq=self.next_seq,
                end_seq=checkpoint.next_seq,
            )
        )
        self.next_seq = max(self.next_seq, checkpoint.next_seq)
