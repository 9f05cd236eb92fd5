"""The progress of the channels of one topic, kept in a journal. One thread owns it.

Creating, removing or moving a channel is written immediately. Finished messages are counted in
memory, and `flush` appends them to the journal as one record with one write. If an fsync fails, or
if a failed write cannot be undone, the whole state is written anew.

The journal is a file per generation. A generation begins with a snapshot and grows by records. When
it has outgrown its snapshot, or is damaged, a new generation is started in a new file. The old file
is removed after the first fsync of the new one. Nothing is changed in place, and no caller waits
for an fsync.

A power loss can undo progress that was not fsynced. Those messages are delivered again; none is
lost.
"""

import contextlib
from collections.abc import Callable, Sequence

from penstock.common.errors import LogClosedError, StorageError
from penstock.storage.cursor_journal import (
    VERSION,
    BadJournalRecord,
    ClearPausePoint,
    CursorState,
    FinishRanges,
    JournalChange,
    JournalRecord,
    RemoveCursor,
    ReserveSeqs,
    SetCursor,
    SetLogId,
    SetPausePoint,
    SetRetryStates,
    encode_record,
    scan_journal,
)
from penstock.storage.files import (
    FilePool,
    Files,
    Handle,
    append_and_sync,
    storage_error,
    write_all,
)
from penstock.storage.fsync import FsyncJob, JournalFsync, fsync_now
from penstock.storage.layout import CURSORS_BAD_NAME, Issue, cursors_name, maybe_generation
from penstock.storage.progress import Progress, RangeSet, RetryState, to_ranges
from penstock.storage.topic_log import TrimmedError

__all__ = ["Cursors", "JournalFiles", "current_generation", "read_journals"]

# A journal below this size is not compacted: reading it takes about a millisecond.
_COMPACT_BYTES = 64 * 1024
# Maximum size of a journal as a multiple of its snapshot.
_COMPACT_RATIO = 4


class Cursors:
    """The progress of every channel of a topic."""

    def __init__(self, pool: FilePool, folder: str, epoch: int = 0) -> None:
        """Call `create_journal` or `load` next. `epoch` is stored with every record; it is 0
        without replication."""
        self.on_write: Callable[[], None] | None = None
        """Called after each record and each new generation."""
        self._epoch = epoch
        self._folder = folder
        self._files = JournalFiles(pool, folder)
        self._state = CursorState()
        self._unflushed: dict[str, RangeSet] = {}
        self._unflushed_retry_states: dict[str, set[int]] = {}
        self._has_records = False
        self._record_number = 0
        self._is_synced = True
        self._is_syncing = False
        self._is_closed = False
        self.needs_retry = False
        """Whether the last fsync failed."""

    @property
    def progress(self) -> dict[str, Progress]:
        """By channel. The object of a channel stays the same as long as the channel exists."""
        return self._state.progress

    @property
    def pause_point(self) -> int | None:
        """Messages from here on are not given to any channel yet, because there is none or the
        topic is paused; None if the channels get all messages."""
        return self._state.pause_point

    @property
    def next_unused_seq(self) -> int:
        """One past the highest sequence number referenced; new messages start here or later."""
        return self._state.next_unused_seq

    @property
    def log_id(self) -> bytes | None:
        """Id of the topic's log; None if the journal is of format 1."""
        return self._state.log_id

    @property
    def has_journal(self) -> bool:
        """Whether `load` found a journal or `create_journal` created one."""
        return self._has_records or self._files.has_current

    @property
    def generation(self) -> int:
        """Number of the journal file that grows."""
        return self._files.generation

    @property
    def journal_end(self) -> int:
        """Size of the valid part of that file in bytes."""
        return self._files.end

    def read_raw(self, generation: int, position: int, max_bytes: int) -> bytes:
        """Read bytes of the journal file, as they are: at most `max_bytes`, and none beyond
        `journal_end`. Raises StorageError; TrimmedError if the generation is no longer used."""
        self._check_open()
        try:
            return self._files.read_raw(generation, position, max_bytes)
        except OSError as error:
            raise storage_error("read from", self._folder, error) from error

    @property
    def has_unflushed(self) -> bool:
        return bool(self._unflushed or self._unflushed_retry_states)

    # Written immediately. If one of these raises StorageError, nothing has changed.

    def create(self, channel: str, floor: int) -> Progress:
        """Add a channel that has finished all messages below `floor`."""
        assert channel not in self.progress
        self._change(SetCursor(channel, floor))
        return self.progress[channel]

    def remove(self, channel: str) -> None:
        """Remove a channel."""
        self._change(RemoveCursor(channel))
        self._forget_unflushed(channel)

    def reset(self, channel: str, floor: int) -> None:
        """Move a channel: all messages below `floor` are finished, all others open, without
        retry states."""
        self._change(SetCursor(channel, floor))
        self._forget_unflushed(channel)

    def set_pause_point(self, seq: int | None) -> None:
        if seq != self.pause_point:
            self._change(ClearPausePoint() if seq is None else SetPausePoint(seq))

    def reserve_below(self, seq: int) -> None:
        """Record that new messages must get numbers from `seq` on."""
        self._change(ReserveSeqs(seq))

    def set_log_id(self, log_id: bytes) -> None:
        """Record the id of the topic's log."""
        self._change(SetLogId(log_id))

    # Changed in memory, written by the next flush

    def finish(self, channel: str, first: int, end: int) -> None:
        """Mark `[first, end)` as finished by a channel."""
        self.progress[channel].finish(first, end)
        unflushed = self._unflushed.get(channel)
        if unflushed is None:
            unflushed = self._unflushed[channel] = RangeSet()
        unflushed.add(first, end)

    def finish_many(self, channel: str, seqs: Sequence[int]) -> None:
        """Mark messages as finished by a channel; `seqs` need not be sorted."""
        for first, end in to_ranges(seqs):
            self.finish(channel, first, end)

    def set_retry_state(self, channel: str, seq: int, state: RetryState) -> None:
        """Set attempts and due time of an open message."""
        self.progress[channel].set_retry_state(seq, state)
        self._unflushed_retry_states.setdefault(channel, set()).add(seq)

    def flush(self) -> None:
        """Write all changes since the last flush. If it raises StorageError, the next flush
        tries again."""
        if self.has_unflushed:
            self._write(self._unflushed_changes(), unapplied=[])
            self._unflushed.clear()
            self._unflushed_retry_states.clear()

    # Syncing

    @property
    def needs_sync(self) -> bool:
        """Whether anything was written that no fsync has covered."""
        return not self._is_synced

    def sync(self) -> None:
        """Fsync and wait for it (`GroupCommit` does not block). Raises StorageError."""
        fsync_now(self)

    def begin_sync(self) -> JournalFsync:
        """Start an fsync of everything written so far; one at a time. Raises StorageError."""
        assert not self._is_syncing
        self._check_open()
        if not self._files.has_current:
            self._write([], unapplied=[])
        job = self._files.begin_sync()
        self._is_syncing = self._is_synced = True
        return job

    def end_sync(self, job: FsyncJob, error: StorageError | None) -> None:
        """Apply the result of an fsync."""
        assert isinstance(job, JournalFsync)
        self._is_syncing = False
        job.release()
        if self._is_closed:
            return
        self.needs_retry = error is not None
        if error is None:
            self._files.end_sync(job)
        else:
            self._is_synced = False
            self._files.abandon_current()

    def close(self) -> None:
        """Flush, sync and close. If it raises StorageError, the journal is closed nevertheless.
        No sync may be in progress."""
        if self._is_closed:
            return
        assert not self._is_syncing
        try:
            self.flush()
            if self.needs_sync:
                self.sync()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the file without syncing."""
        self._is_closed = True
        self.needs_retry = False
        self._files.close()

    # Creating and loading

    def create_journal(self, next_seq: int, log_id: bytes) -> None:
        """Create the journal of a new topic. Its messages are kept for the first channel."""
        self._state.apply(SetLogId(log_id))
        self._state.apply(ReserveSeqs(next_seq))
        self._state.apply(SetPausePoint(next_seq))
        self._write([], unapplied=[])

    def load(self, *, is_synced: bool) -> list[Issue]:
        """Read the journal and return the issues found. Raises OSError.

        Progress in a damaged record is lost: its messages are delivered again. If there are issues,
        or if the last run did not fsync the journal (`is_synced` is false), the journal is written
        anew if possible. With replication this is always done: all records of a generation have one
        epoch, and each start has a new one. If there is no valid record, call `create_journal`
        next.
        """
        records, issues = self._files.load(may_append=is_synced and not self._epoch)
        for record in records:
            for change in record.changes:
                self._state.apply(change)
        self._has_records = bool(records)
        self._record_number = max([record.number for record in records], default=0)
        if records and not self._files.has_current:
            # If the disk is full, keep the old files. The next record or sync tries again.
            self._is_synced = False
            with contextlib.suppress(OSError):
                self._start_generation([])
        return issues

    # Internals

    def _change(self, change: JournalChange) -> None:
        self._write([change], unapplied=[change])
        self._state.apply(change)

    def _write(self, changes: list[JournalChange], *, unapplied: list[JournalChange]) -> None:
        """Write one record with the changes. If a new generation is due, write a snapshot and
        the `unapplied` changes instead."""
        self._check_open()
        record = encode_record(changes, self._record_number + 1, self._epoch)
        try:
            if self._files.has_room(record):
                self._files.append(record)
                self._record_number += 1
                self._is_synced = False
            else:
                self._start_generation(unapplied)
        except OSError as error:
            raise storage_error("write to", self._folder, error) from error
        if self.on_write is not None:
            self.on_write()

    def _start_generation(self, unapplied: list[JournalChange]) -> None:
        changes = [*self._state.snapshot(), *unapplied]
        record = encode_record(changes, self._record_number + 1, self._epoch)
        self._files.start_generation(record)
        self._record_number += 1
        self._is_synced = False

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"{self._folder} is closed")

    def _unflushed_changes(self) -> list[JournalChange]:
        changes: list[JournalChange] = [
            FinishRanges(channel, list(ranges)) for channel, ranges in self._unflushed.items()
        ]
        for channel, seqs in self._unflushed_retry_states.items():
            states = self.progress[channel].retry_states
            if still_open := [(seq, states[seq]) for seq in seqs if seq in states]:
                changes.append(SetRetryStates(channel, still_open))
        return changes

    def _forget_unflushed(self, channel: str) -> None:
        self._unflushed.pop(channel, None)
        self._unflushed_retry_states.pop(channel, None)


class JournalFiles:
    """The journal files in a topic's folder, one per generation."""

    def __init__(self, pool: FilePool, folder: str) -> None:
        self._pool = pool
        self._folder = folder
        self._newest = 0
        self._current: Handle | None = None
        self.generation = 0
        """The generation that records were last written to."""
        self.end = 0
        """End of its records."""
        self._compact_at = 0
        self._new_file_count = 0  # files created since the folders were last synced
        self._stale: list[str] = []
        """Files that are removed after the next fsync of the current generation."""

    @property
    def has_current(self) -> bool:
        """Whether there is a generation for appends."""
        return self._current is not None

    def load(self, *, may_append: bool) -> tuple[list[JournalRecord], list[Issue]]:
        """Read the newest generation with a complete snapshot; return its records and the issues
        found. Raises OSError.

        If it has no issues, `may_append` is true, and all its records have the current version, new
        records are appended to it; otherwise the next write starts a new generation. Damaged bytes
        are saved to another file; the records after them are valid.
        """
        journals = read_journals(self._pool.files, self._folder)
        if not journals:
            return [], []
        self._newest = max(journals)
        chosen = current_generation(journals)
        records = [found for found in journals[chosen] if isinstance(found, JournalRecord)]
        bad = [found for found in journals[chosen] if isinstance(found, BadJournalRecord)]
        self._stale = [self._path(generation) for generation in journals]
        is_current_format = all(record.version == VERSION for record in records)
        if records and not bad and chosen == self._newest and may_append and is_current_format:
            self._stale.remove(self._path(chosen))
            self._set_current(chosen, self._pool.handle(self._path(chosen)), records[0].end)
            self.end = records[-1].end
        self._save_damaged_bytes(chosen, [found for found in bad if not found.is_leftover])
        issues = [found.to_issue(self._path(chosen)) for found in bad]
        if chosen != self._newest:
            problem = f"its snapshot is incomplete; {cursors_name(chosen)} is used"
            issues.append(Issue(self._path(self._newest), problem, is_damage=False))
        return records, issues

    def has_room(self, record: bytes) -> bool:
        """Whether a record can be appended; otherwise a new generation is due."""
        return self._current is not None and self.end + len(record) <= self._compact_at

    def append(self, record: bytes) -> None:
        """Append a record with one write. If it raises OSError, nothing was added."""
        assert self._current is not None
        file = self._current.file or self._current.open()
        try:
            self.end += write_all(file, [record], self.end)
        except OSError:
            try:
                file.truncate(self.end)
            except OSError:
                self.abandon_current()
            raise

    def read_raw(self, generation: int, position: int, max_bytes: int) -> bytes:
        """Read bytes of the current generation, as they are. Raises OSError or TrimmedError."""
        if self._current is None or generation != self.generation:
            raise TrimmedError(f"{self._path(generation)} is no longer used")
        file = self._current.file or self._current.open()
        return file.read(position, max(min(max_bytes, self.end - position), 0))

    def start_generation(self, snapshot: bytes) -> None:
        """Start a new generation. If it raises OSError, the old one stays current if possible."""
        self._newest += 1
        handle = self._pool.handle(self._path(self._newest))
        try:
            write_all(handle.create(), [snapshot], 0)
        except OSError:
            self._discard_generation(handle)
            raise
        self.abandon_current()
        self._set_current(self._newest, handle, len(snapshot))
        self.end = len(snapshot)
        self._new_file_count += 1

    def abandon_current(self) -> None:
        """Stop writing to the current generation."""
        if self._current is not None:
            self._current.close()
            self._stale.append(self._current.path)
            self._current = None

    def begin_sync(self) -> JournalFsync:
        """Start an fsync of everything written so far. Raises StorageError."""
        assert self._current is not None
        return JournalFsync(
            self._pool.files,
            self._folder,
            self._current,
            new_file_count=self._new_file_count,
            stale=tuple(self._stale),
        )

    def end_sync(self, job: JournalFsync) -> None:
        """Remove obsolete files after a successful fsync."""
        self._new_file_count -= job.new_file_count
        for path in job.stale:
            # If a removal fails, it is retried after the next sync.
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    self._pool.files.remove(path)
                self._stale.remove(path)

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    def _set_current(self, generation: int, handle: Handle, snapshot_bytes: int) -> None:
        self._current = handle
        self.generation = generation
        self._compact_at = max(_COMPACT_BYTES, _COMPACT_RATIO * snapshot_bytes)

    def _discard_generation(self, handle: Handle) -> None:
        handle.close()
        try:
            with contextlib.suppress(FileNotFoundError):
                self._pool.files.remove(handle.path)
        except OSError:
            # The new file may be complete and would be loaded as the newest, so the old one must
            # not be used any more.
            self._stale.append(handle.path)
            self.abandon_current()

    def _save_damaged_bytes(self, generation: int, damaged: list[BadJournalRecord]) -> None:
        if damaged:
            with contextlib.closing(self._pool.files.open(self._path(generation), "read")) as file:
                pieces = [file.read(bad.position, bad.end - bad.position) for bad in damaged]
            append_and_sync(self._pool.files, f"{self._folder}/{CURSORS_BAD_NAME}", pieces)

    def _path(self, generation: int) -> str:
        return f"{self._folder}/{cursors_name(generation)}"


def read_journals(files: Files, folder: str) -> dict[int, list[JournalRecord | BadJournalRecord]]:
    """Read all generations, newest first."""
    found = (maybe_generation(name) for name in files.list_names(folder))
    journals = {}
    for generation in sorted(filter(None, found), reverse=True):
        with contextlib.closing(files.open(f"{folder}/{cursors_name(generation)}", "read")) as file:
            journals[generation] = list(scan_journal(file.read(0, file.size())))
    return journals


def current_generation(journals: dict[int, list[JournalRecord | BadJournalRecord]]) -> int:
    """The newest generation that begins with a snapshot; the newest one if none does."""
    for generation, records in journals.items():
        if records and isinstance(records[0], JournalRecord):
            return generation
    return max(journals)
