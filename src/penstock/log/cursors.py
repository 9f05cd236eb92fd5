"""What the channels of one topic have finished, kept in a journal. One thread owns it.

Creating, removing or moving a channel is written at once; what a channel finishes is counted in
memory and appended to the journal by `flush`, all of it as one record with one write.

When the journal has outgrown what it says, a new generation of it is begun: another file, whose
first record is a snapshot. The old generation is removed once the new one is synced; until then it
is there to fall back on, so that nobody has to wait for a disk. A write that fails and cannot be
undone, and an fsync that fails, are put right in the same way: by a new generation.

A power loss can take back progress that was not synced. Messages are then delivered again; none is
lost.
"""

import contextlib
from collections.abc import Sequence

from penstock.errors import LogClosed, StorageError
from penstock.log.files import Files, append_to, storage_error, write_all
from penstock.log.finding import Finding
from penstock.log.journal import (
    BadRecord,
    Change,
    CursorState,
    Finish,
    Hold,
    Notes,
    Place,
    Record,
    Release,
    Remove,
    Reserve,
    encode_record,
    walk_journal,
)
from penstock.log.layout import CURSORS_BAD_NAME, cursors_name, maybe_generation
from penstock.log.pool import FilePool, Handle
from penstock.log.progress import Note, Progress
from penstock.log.ranges import RangeSet, runs_of
from penstock.log.sync import SyncJob, run_sync

__all__ = ["Cursors", "current_generation", "read_journals"]

# A journal below this size is not worth compacting: it is read in about a millisecond.
_COMPACT_BYTES = 64 * 1024
# How many times the size of its snapshot a journal may grow to.
_COMPACT_RATIO = 4


class Cursors:
    """The progress of every channel of a topic."""

    def __init__(self, pool: FilePool, folder: str) -> None:
        """Knows of nothing yet: `begin` or `load` is next."""
        self._pool = pool
        self._folder = folder
        self._state = CursorState()
        self._unflushed: dict[str, RangeSet] = {}
        self._unflushed_notes: dict[str, set[int]] = {}
        self._generation = 0
        self._handle: Handle | None = None
        """The current generation; None if there is none that can be appended to."""
        self._end = 0
        self._compact_at = 0
        self._stale: list[str] = []
        """What can be removed once the current generation is synced."""
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
    def held_from(self) -> int | None:
        """Messages from here on are not yet given to any channel, because there is none or the
        topic is paused; None if the channels follow the tail."""
        return self._state.held_from

    @property
    def known_end(self) -> int:
        """No message at or above this number has been spoken of, so none may be below it."""
        return self._state.known_end

    @property
    def has_journal(self) -> bool:
        """Whether `load` has found one, or `begin` made one."""
        return self._handle is not None

    @property
    def dirty(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._unflushed or self._unflushed_notes)

    # Written at once: each raises StorageError if that fails, and has changed nothing then

    def create(self, channel: str, floor: int) -> Progress:
        """Adds a channel for which everything below `floor` is finished."""
        assert channel not in self.progress
        self._change(Place(channel, floor))
        return self.progress[channel]

    def remove(self, channel: str) -> None:
        """Forgets a channel."""
        self._change(Remove(channel))
        self._forget_unflushed(channel)

    def reset(self, channel: str, floor: int) -> None:
        """Moves a channel: below `floor` all is finished, above it nothing, and no note is left."""
        self._change(Place(channel, floor))
        self._forget_unflushed(channel)

    def hold(self, seq: int | None) -> None:
        """Sets `held_from`."""
        if seq != self.held_from:
            self._change(Release() if seq is None else Hold(seq))

    def reserve(self, seq: int) -> None:
        """Has it remembered that no new message may get a number below `seq`."""
        self._change(Reserve(seq))

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
        for first, end in runs_of(seqs):
            self.finish(channel, first, end)

    def note(self, channel: str, seq: int, note: Note) -> None:
        """Keeps what must not be forgotten of an open message."""
        self.progress[channel].note(seq, note)
        self._unflushed_notes.setdefault(channel, set()).add(seq)

    def flush(self) -> None:
        """Writes what has been counted since the last flush. Raises StorageError if that fails; it
        is then still there for the next flush."""
        if self.dirty:
            self._write(self._unflushed_changes(), unapplied=[])
            self._unflushed.clear()
            self._unflushed_notes.clear()

    # Syncing

    @property
    def needs_sync(self) -> bool:
        """Whether there is anything written that no fsync has covered."""
        return not self._is_synced

    def sync(self) -> None:
        """Fsyncs here and now; `GroupCommit` does so without blocking. Raises StorageError."""
        run_sync(self)

    def begin_sync(self) -> "CursorsSync":
        """The fsyncs that make all that is written now safe; one at a time. Raises StorageError."""
        assert not self._is_syncing
        self._refuse_if_closed()
        if self._handle is None:
            self._write([], unapplied=[])
        assert self._handle is not None
        job = CursorsSync(self._pool.files, self._folder, self._handle, tuple(self._stale))
        self._is_syncing = self._is_synced = True
        return job

    def end_sync(self, job: SyncJob, error: StorageError | None) -> None:
        """Draws the conclusions from how a job of `begin_sync` ended."""
        assert isinstance(job, CursorsSync)
        self._is_syncing = False
        job.release()
        if self._is_closed:
            return
        self.needs_retry = error is not None
        if error is None:
            self._remove_stale(job.stale)
        else:
            self._is_synced = False
            self._leave_generation()

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
        if self._handle is not None:
            self._handle.close()

    # Beginning

    def begin(self, next_seq: int) -> None:
        """Starts the journal of a new topic, which holds what comes for the first channel."""
        self._state.apply(Reserve(next_seq))
        self._state.apply(Hold(next_seq))
        self._write([], unapplied=[])

    def load(self, *, is_synced: bool) -> list[Finding]:
        """Reads the newest generation that has a whole snapshot; raises OSError if it cannot.
        Unless `is_synced`, what is found may not be, and a new generation is begun.

        Damage is moved aside and the records after it still count. What was finished in a record
        that is lost will be delivered again. If not one record is found, `begin` is next.
        """
        journals = read_journals(self._pool.files, self._folder)
        if not journals:
            return []
        self._generation = max(journals)
        current = current_generation(journals)
        self._stale = [self._path(generation) for generation in journals if generation != current]
        records = [found for found in journals[current] if isinstance(found, Record)]
        bad = [found for found in journals[current] if isinstance(found, BadRecord)]
        for record in records:
            for change in record.changes:
                self._state.apply(change)
        if records and not bad and current == self._generation and is_synced:
            self._adopt(current, records)
            return []
        return self._replace(current, bad, has_records=bool(records))

    def _adopt(self, generation: int, records: list[Record]) -> None:
        self._handle = self._pool.handle(self._path(generation))
        self._end = records[-1].end
        self._compact_at = _compact_at(records[0].end)

    def _replace(
        self, generation: int, bad: list[BadRecord], *, has_records: bool
    ) -> list[Finding]:
        """Goes on from a generation that cannot be appended to."""
        path = self._path(generation)
        self._stale.append(path)
        findings = [record.finding(path) for record in bad]
        damaged = [record for record in bad if not record.is_leftover]
        if damaged:
            with contextlib.closing(self._pool.files.open(path, "read")) as file:
                pieces = [file.read(bad.position, bad.end - bad.position) for bad in damaged]
            append_to(self._pool.files, f"{self._folder}/{CURSORS_BAD_NAME}", pieces)
        if generation != self._generation:
            problem = f"its snapshot was not written to its end; {cursors_name(generation)} is used"
            findings.append(Finding(self._path(self._generation), problem, is_damage=False))
        if has_records:
            self._begin_generation([])
        return findings

    # Inside

    def _change(self, change: Change) -> None:
        self._write([change], unapplied=[change])
        self._state.apply(change)

    def _write(self, changes: list[Change], *, unapplied: list[Change]) -> None:
        """Writes one record: the changes or, in a new generation, a snapshot and those of them that
        are not in the state yet."""
        self._refuse_if_closed()
        record = encode_record(changes)
        try:
            if self._handle is None or self._end + len(record) > self._compact_at:
                self._begin_generation(unapplied)
            else:
                self._append(self._handle, record)
        except OSError as error:
            raise storage_error("write to", self._folder, error) from error
        self._is_synced = False

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise LogClosed(f"{self._folder} is closed")

    def _append(self, handle: Handle, record: bytes) -> None:
        file = handle.file or handle.open()
        try:
            self._end += write_all(file, self._end, record)
        except OSError:
            try:
                file.truncate(self._end)
            except OSError:
                self._leave_generation()
            raise

    def _begin_generation(self, unapplied: list[Change]) -> None:
        record = encode_record([*self._state.snapshot(), *unapplied])
        self._generation += 1
        handle = self._pool.handle(self._path(self._generation))
        try:
            write_all(handle.create(), 0, record)
        except OSError:
            self._undo_generation(handle)
            raise
        self._leave_generation()
        self._handle = handle
        self._end = len(record)
        self._compact_at = _compact_at(len(record))
        self._is_synced = False

    def _undo_generation(self, handle: Handle) -> None:
        """After a failed beginning. The old generation is good for more only while it is newest."""
        handle.close()
        try:
            with contextlib.suppress(FileNotFoundError):
                self._pool.files.remove(handle.path)
        except OSError:
            self._stale.append(handle.path)
            self._leave_generation()

    def _leave_generation(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._stale.append(self._handle.path)
            self._handle = None

    def _remove_stale(self, paths: Sequence[str]) -> None:
        for path in paths:
            # One that stays in the list is tried again after the next sync.
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    self._pool.files.remove(path)
                self._stale.remove(path)

    def _unflushed_changes(self) -> list[Change]:
        changes: list[Change] = [
            Finish(channel, list(ranges)) for channel, ranges in self._unflushed.items()
        ]
        for channel, seqs in self._unflushed_notes.items():
            notes = self.progress[channel].notes
            if still_open := [(seq, notes[seq]) for seq in seqs if seq in notes]:
                changes.append(Notes(channel, still_open))
        return changes

    def _forget_unflushed(self, channel: str) -> None:
        self._unflushed.pop(channel, None)
        self._unflushed_notes.pop(channel, None)

    def _path(self, generation: int) -> str:
        return f"{self._folder}/{cursors_name(generation)}"


class CursorsSync:
    """The fsyncs of one `begin_sync`. While it lasts, the journal stays open."""

    def __init__(self, files: Files, folder: str, handle: Handle, stale: tuple[str, ...]) -> None:
        self.stale = stale
        """Older generations that are not needed once this has run."""
        self.path = handle.path
        self._files = files
        self._folder = folder
        self._handle = handle
        try:
            handle.pin()
        except OSError as error:
            raise storage_error("open", handle.path, error) from error

    def run(self) -> None:
        """Fsyncs the journal, then the folders with its name and the topic's."""
        self._handle.open().sync()
        self._files.sync_folder(self._folder)
        self._files.sync_folder(self._folder.rpartition("/")[0])

    def release(self) -> None:
        """Lets go of the file."""
        self._handle.unpin()


def read_journals(files: Files, folder: str) -> dict[int, list[Record | BadRecord]]:
    """What every generation holds, the newest first."""
    found = (maybe_generation(name) for name in files.names(folder))
    journals = {}
    for generation in sorted(filter(None, found), reverse=True):
        with contextlib.closing(files.open(f"{folder}/{cursors_name(generation)}", "read")) as file:
            journals[generation] = list(walk_journal(file.read(0, file.size())))
    return journals


def current_generation(journals: dict[int, list[Record | BadRecord]]) -> int:
    """The newest generation that begins with a snapshot; the newest if none does."""
    for generation, records in journals.items():
        if records and isinstance(records[0], Record):
            return generation
    return max(journals)


def _compact_at(snapshot_bytes: int) -> int:
    return max(_COMPACT_BYTES, _COMPACT_RATIO * snapshot_bytes)
