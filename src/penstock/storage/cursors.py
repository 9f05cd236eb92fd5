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
from collections.abc import Sequence

from penstock.common.errors import LogClosedError, StorageError
from penstock.storage.cursor_journal import (
    BadJournalRecord,
    ClearPausePoint,
    CursorState,
    FinishRanges,
    JournalChange,
    JournalRecord,
    RemoveCursor,
    ReserveSeqs,
    SetCursor,
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

__all__ = ["Cursors", "JournalFiles", "current_generation", "read_journals"]


class Cursors:
    """The progress of every channel of a topic."""

    def __init__(self, pool: FilePool, folder: str) -> None:
        """Knows of nothing yet: `create_journal` or `load` is next."""
        self._folder = folder
        self._files = JournalFiles(pool, folder)
        self._state = CursorState()
        self._unflushed: dict[str, RangeSet] = {}
        self._unflushed_retry_states: dict[str, set[int]] = {}
        self._has_records = False
        self._is_synced = True
        self._is_syncing = False
        self._is_closed = False
        self.needs_retry = False
        """Whether the last sync failed."""

    @property
    def progress(self) -> dict[str, Progress]:
        """By channel. A channel's object stays the same for as long as the channel is there."""
        return self._state.progress

    @property
    def pause_point(self) -> int | None:
        """Messages from here on are not yet given to any channel, because there is none or the
        topic is paused; None if the channels follow the tail."""
        return self._state.pause_point

    @property
    def next_unused_seq(self) -> int:
        """No message at or above this number has been spoken of, so none may be below it."""
        return self._state.next_unused_seq

    @property
    def has_journal(self) -> bool:
        """Whether `load` has found one, or `create_journal` made one."""
        return self._has_records or self._files.has_current

    @property
    def has_unflushed(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._unflushed or self._unflushed_retry_states)

    # Written at once: each raises StorageError if that fails, and has changed nothing then

    def create(self, channel: str, floor: int) -> Progress:
        """Adds a channel for which everything below `floor` is finished."""
        assert channel not in self.progress
        self._change(SetCursor(channel, floor))
        return self.progress[channel]

    def remove(self, channel: str) -> None:
        """Forgets a channel."""
        self._change(RemoveCursor(channel))
        self._forget_unflushed(channel)

    def reset(self, channel: str, floor: int) -> None:
        """Moves a channel: below `floor` all is finished, above it nothing, and no note is left."""
        self._change(SetCursor(channel, floor))
        self._forget_unflushed(channel)

    def set_pause_point(self, seq: int | None) -> None:
        """Sets `pause_point`."""
        if seq != self.pause_point:
            self._change(ClearPausePoint() if seq is None else SetPausePoint(seq))

    def reserve_below(self, seq: int) -> None:
        """Has it remembered that no new message may get a number below `seq`."""
        self._change(ReserveSeqs(seq))

    # Counted now, written by the next flush

    def finish(self, channel: str, first: int, end: int) -> None:
        """Finishes `[first, end)` for a channel."""
        self.progress[channel].finish(first, end)
        unflushed = self._unflushed.get(channel)
        if unflushed is None:
            unflushed = self._unflushed[channel] = RangeSet()
        unflushed.add(first, end)

    def finish_many(self, channel: str, seqs: Sequence[int]) -> None:
        """Finishes these for a channel, in whatever order they come."""
        for first, end in to_ranges(seqs):
            self.finish(channel, first, end)

    def set_retry_state(self, channel: str, seq: int, state: RetryState) -> None:
        """Keeps what must not be forgotten of an open message."""
        self.progress[channel].set_retry_state(seq, state)
        self._unflushed_retry_states.setdefault(channel, set()).add(seq)

    def flush(self) -> None:
        """Writes what has been counted since the last flush. Raises StorageError if that fails; it
        is then still there for the next flush."""
        if self.has_unflushed:
            self._write(self._unflushed_changes(), unapplied=[])
            self._unflushed.clear()
            self._unflushed_retry_states.clear()

    # Syncing

    @property
    def needs_sync(self) -> bool:
        """Whether there is anything written that no fsync has covered."""
        return not self._is_synced

    def sync(self) -> None:
        """Fsyncs here and now; `GroupCommit` does so without blocking. Raises StorageError."""
        fsync_now(self)

    def begin_sync(self) -> JournalFsync:
        """The fsyncs that make all that is written now safe; one at a time. Raises StorageError."""
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
        """Flushes and syncs. Raises StorageError if that fails; closed it is all the same. No sync
        may be under way."""
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
        """Closes the file and leaves everything as it is."""
        self._is_closed = True
        self.needs_retry = False
        self._files.close()

    # Beginning

    def create_journal(self, next_seq: int) -> None:
        """Starts the journal of a new topic, which holds what comes for the first channel."""
        self._state.apply(ReserveSeqs(next_seq))
        self._state.apply(SetPausePoint(next_seq))
        self._write([], unapplied=[])

    def load(self, *, is_synced: bool) -> list[Issue]:
        """Reads the journal; returns what is wrong with it. Raises OSError.

        What was finished in a record that is lost will be delivered again. If something is wrong,
        or not all of it `is_synced`, it is written anew, if it can be. If not one record is found,
        `create_journal` is next.
        """
        records, issues = self._files.load(is_synced=is_synced)
        for record in records:
            for change in record.changes:
                self._state.apply(change)
        self._has_records = bool(records)
        if records and not self._files.has_current:
            # Where there is no space for it now, the old files have to do: what comes next, a
            # record or a sync, tries again.
            self._is_synced = False
            with contextlib.suppress(OSError):
                self._start_generation([])
        return issues

    # Inside

    def _change(self, change: JournalChange) -> None:
        self._write([change], unapplied=[change])
        self._state.apply(change)

    def _write(self, changes: list[JournalChange], *, unapplied: list[JournalChange]) -> None:
        """Writes one record: the changes or, in a new generation, a snapshot and those of them that
        are not in the state yet."""
        self._check_open()
        record = encode_record(changes)
        try:
            if self._files.has_room(record):
                self._files.append(record)
                self._is_synced = False
            else:
                self._start_generation(unapplied)
        except OSError as error:
            raise storage_error("write to", self._folder, error) from error

    def _start_generation(self, unapplied: list[JournalChange]) -> None:
        self._files.start_generation(encode_record([*self._state.snapshot(), *unapplied]))
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


# A journal below this size is not worth compacting: it is read in about a millisecond.
_COMPACT_BYTES = 64 * 1024
# How many times the size of its snapshot a journal may grow to.
_COMPACT_RATIO = 4


class JournalFiles:
    """The generations in a topic's folder."""

    def __init__(self, pool: FilePool, folder: str) -> None:
        self._pool = pool
        self._folder = folder
        self._newest = 0
        self._current: Handle | None = None
        self._end = 0
        self._compact_at = 0
        self._new_file_count = 0  # files created since the folders were last synced
        self._stale: list[str] = []
        """Files that are not needed once the current generation is synced."""

    @property
    def has_current(self) -> bool:
        """Whether there is a generation that can be appended to."""
        return self._current is not None

    def load(self, *, is_synced: bool) -> tuple[list[JournalRecord], list[Issue]]:
        """The records of the newest generation that has a whole snapshot, and what is wrong.
        Raises OSError.

        That generation stays current if nothing is wrong and all of it `is_synced`. Damaged bytes
        are moved aside; the records after them count.
        """
        journals = read_journals(self._pool.files, self._folder)
        if not journals:
            return [], []
        self._newest = max(journals)
        chosen = current_generation(journals)
        records = [found for found in journals[chosen] if isinstance(found, JournalRecord)]
        bad = [found for found in journals[chosen] if isinstance(found, BadJournalRecord)]
        self._stale = [self._path(generation) for generation in journals]
        if records and not bad and chosen == self._newest and is_synced:
            self._stale.remove(self._path(chosen))
            self._set_current(self._pool.handle(self._path(chosen)), records[0].end)
            self._end = records[-1].end
        self._save_damaged_bytes(chosen, [found for found in bad if not found.is_leftover])
        issues = [found.to_issue(self._path(chosen)) for found in bad]
        if chosen != self._newest:
            problem = f"its snapshot was not written to its end; {cursors_name(chosen)} is used"
            issues.append(Issue(self._path(self._newest), problem, is_damage=False))
        return records, issues

    def has_room(self, record: bytes) -> bool:
        """Whether a record should be appended, rather than a snapshot be written."""
        return self._current is not None and self._end + len(record) <= self._compact_at

    def append(self, record: bytes) -> None:
        """Adds a record with one write. If that fails it raises OSError and has added nothing."""
        assert self._current is not None
        file = self._current.file or self._current.open()
        try:
            self._end += write_all(file, [record], self._end)
        except OSError:
            try:
                file.truncate(self._end)
            except OSError:
                self.abandon_current()
            raise

    def start_generation(self, snapshot: bytes) -> None:
        """Begins a generation. Raises OSError; the old one is then current still, if it can be."""
        self._newest += 1
        handle = self._pool.handle(self._path(self._newest))
        try:
            write_all(handle.create(), [snapshot], 0)
        except OSError:
            self._discard_generation(handle)
            raise
        self.abandon_current()
        self._set_current(handle, len(snapshot))
        self._end = len(snapshot)
        self._new_file_count += 1

    def abandon_current(self) -> None:
        """Nothing more is written to the current generation."""
        if self._current is not None:
            self._current.close()
            self._stale.append(self._current.path)
            self._current = None

    def begin_sync(self) -> JournalFsync:
        """The fsyncs for all that has been written. Raises StorageError."""
        assert self._current is not None
        return JournalFsync(
            self._pool.files,
            self._folder,
            self._current,
            new_file_count=self._new_file_count,
            stale=tuple(self._stale),
        )

    def end_sync(self, job: JournalFsync) -> None:
        """Removes the files that are obsolete after a successful sync."""
        self._new_file_count -= job.new_file_count
        for path in job.stale:
            # One that stays in the list is tried again after the next sync.
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    self._pool.files.remove(path)
                self._stale.remove(path)

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    def _set_current(self, handle: Handle, snapshot_bytes: int) -> None:
        self._current = handle
        self._compact_at = max(_COMPACT_BYTES, _COMPACT_RATIO * snapshot_bytes)

    def _discard_generation(self, handle: Handle) -> None:
        handle.close()
        try:
            with contextlib.suppress(FileNotFoundError):
                self._pool.files.remove(handle.path)
        except OSError:
            # It may be whole, and would count as the newest: the old one is good for no more.
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
    """What every generation holds, the newest first."""
    found = (maybe_generation(name) for name in files.names(folder))
    journals = {}
    for generation in sorted(filter(None, found), reverse=True):
        with contextlib.closing(files.open(f"{folder}/{cursors_name(generation)}", "read")) as file:
            journals[generation] = list(scan_journal(file.read(0, file.size())))
    return journals


def current_generation(journals: dict[int, list[JournalRecord | BadJournalRecord]]) -> int:
    """The newest generation that begins with a snapshot; the newest if none does."""
    for generation, records in journals.items():
        if records and isinstance(records[0], JournalRecord):
            return generation
    return max(journals)
