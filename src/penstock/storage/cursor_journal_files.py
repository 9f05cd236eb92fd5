"""The files of a topic's journal: generations, of which one is current.

A generation begins with a snapshot and grows by records. When it has outgrown its snapshot, or
cannot be relied on any more, another is begun, in a file of its own. The old one is removed once
the new one is synced; until then it is there to fall back on. So nothing has to be changed in
place, and nobody has to wait for a disk.

This knows files and records, but not what the records say.
"""

import contextlib

from penstock.storage.cursor_journal import BadRecord, Record, walk_journal
from penstock.storage.file_pool import FilePool, Handle
from penstock.storage.files import Files, append_to, write_all
from penstock.storage.fsync import JournalFsync
from penstock.storage.issue import Finding
from penstock.storage.layout import CURSORS_BAD_NAME, cursors_name, maybe_generation

__all__ = ["JournalFiles", "current_generation", "read_journals"]

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
        self._new_names = 0  # files created since the folders were last synced
        self._stale: list[str] = []
        """Files that are not needed once the current generation is synced."""

    @property
    def has_current(self) -> bool:
        """Whether there is a generation that can be appended to."""
        return self._current is not None

    def load(self, *, is_synced: bool) -> tuple[list[Record], list[Finding]]:
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
        records = [found for found in journals[chosen] if isinstance(found, Record)]
        bad = [found for found in journals[chosen] if isinstance(found, BadRecord)]
        self._stale = [self._path(generation) for generation in journals]
        if records and not bad and chosen == self._newest and is_synced:
            self._stale.remove(self._path(chosen))
            self._set_current(self._pool.handle(self._path(chosen)), records[0].end)
            self._end = records[-1].end
        self._keep_aside(chosen, [found for found in bad if not found.is_leftover])
        findings = [found.finding(self._path(chosen)) for found in bad]
        if chosen != self._newest:
            problem = f"its snapshot was not written to its end; {cursors_name(chosen)} is used"
            findings.append(Finding(self._path(self._newest), problem, is_damage=False))
        return records, findings

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
                self.leave_current()
            raise

    def begin(self, snapshot: bytes) -> None:
        """Begins a generation. Raises OSError; the old one is then current still, if it can be."""
        self._newest += 1
        handle = self._pool.handle(self._path(self._newest))
        try:
            write_all(handle.create(), [snapshot], 0)
        except OSError:
            self._undo_beginning(handle)
            raise
        self.leave_current()
        self._set_current(handle, len(snapshot))
        self._end = len(snapshot)
        self._new_names += 1

    def leave_current(self) -> None:
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
            new_names=self._new_names,
            stale=tuple(self._stale),
        )

    def end_sync(self, job: JournalFsync) -> None:
        """Removes the files that are obsolete after a successful sync."""
        self._new_names -= job.new_names
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

    def _undo_beginning(self, handle: Handle) -> None:
        handle.close()
        try:
            with contextlib.suppress(FileNotFoundError):
                self._pool.files.remove(handle.path)
        except OSError:
            # It may be whole, and would count as the newest: the old one is good for no more.
            self._stale.append(handle.path)
            self.leave_current()

    def _keep_aside(self, generation: int, damaged: list[BadRecord]) -> None:
        if damaged:
            with contextlib.closing(self._pool.files.open(self._path(generation), "read")) as file:
                pieces = [file.read(bad.position, bad.end - bad.position) for bad in damaged]
            append_to(self._pool.files, f"{self._folder}/{CURSORS_BAD_NAME}", pieces)

    def _path(self, generation: int) -> str:
        return f"{self._folder}/{cursors_name(generation)}"


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
