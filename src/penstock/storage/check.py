"""Check of a data path, byte by byte, without changing it.

The check verifies all checksums and frame sizes, that sequence numbers have no gaps within a
segment and do not overlap between segments, that the index files match their segments, and that the
journal is valid. Leftovers of an ordinary crash, which the next start repairs, are issues but not
damage.
"""

import contextlib
import os
from itertools import zip_longest

from penstock.common.errors import CorruptBatchError, DataPathError
from penstock.storage.attributes import decode_attributes
from penstock.storage.batch import (
    SEGMENT_HEADER_BYTES,
    BadBytes,
    StoredBatch,
    find_seed,
    maybe_segment_header,
    scan_batches,
    split_frames,
)
from penstock.storage.cursor_journal import BadJournalRecord, CursorState, JournalRecord
from penstock.storage.cursors import current_generation, read_journals
from penstock.storage.data_dir import REAL_FILES, lock_data_path, verify_data_path
from penstock.storage.files import File, FilePool, Files, storage_error
from penstock.storage.index import (
    Checkpoint,
    DeferredIndex,
    SparseIndex,
    index_seed,
    maybe_checkpoint,
    maybe_deferred,
    maybe_index,
)
from penstock.storage.layout import (
    BAD_SUFFIX,
    FORMAT_NAME,
    LOG_ID_BYTES,
    NEW_SUFFIX,
    TOPICS_NAME,
    Issue,
    cursors_name,
    index_name,
    maybe_index_seq,
    maybe_removal_number,
    maybe_segment_seq,
    segment_name,
)
from penstock.storage.segment import Segment
from penstock.storage.topic_storage import maybe_log_id, missing_segment_issue

__all__ = ["check_data_path", "stored_log_id"]


def check_data_path(path: str | os.PathLike[str], files: Files = REAL_FILES) -> list[Issue]:
    """Return the issues of a data path. Raises StorageError if the folder is not a data path, is
    in use, or cannot be read."""
    path = os.fspath(path)
    with contextlib.closing(lock_data_path(path, files, shared=True)):
        if verify_data_path(path, files) is None:
            raise DataPathError(f"{path} is not a data path: it has no {FORMAT_NAME}")
        topics_path = f"{path}/{TOPICS_NAME}"
        issues = []
        try:
            for folder in (
                files.list_names(topics_path) if TOPICS_NAME in files.list_names(path) else []
            ):
                issues += _check_topic(files, f"{topics_path}/{folder}")
        except OSError as error:
            raise storage_error("read", path, error) from error
        return issues


def _check_topic(files: Files, folder: str) -> list[Issue]:
    if maybe_removal_number(folder.rpartition("/")[2]) is not None:
        return [_crash_leftover(folder, "the removal of this topic was interrupted")]
    found = files.list_names(folder)
    issues = [
        _crash_leftover(f"{folder}/{name}", "unfinished file")
        for name in found
        if name.endswith(NEW_SUFFIX)
    ]
    issues += [
        _crash_leftover(f"{folder}/{name}", "damaged bytes were moved here")
        for name in found
        if name.endswith(BAD_SUFFIX)
    ]
    seqs = [seq for name in found if (seq := maybe_segment_seq(name)) is not None]
    journals = read_journals(files, folder)
    log_id = stored_log_id(files, folder) or bytes(LOG_ID_BYTES)
    issues += _check_orphans(files, folder, found, log_id)
    for first_seq, limit_seq in zip_longest(seqs, seqs[1:]):
        issues += _SegmentCheck(files, folder, first_seq, limit_seq, log_id).run()
    return issues + _check_journal(journals, folder, has_segments=bool(seqs))


def _check_orphans(files: Files, folder: str, found: list[str], log_id: bytes) -> list[Issue]:
    """Find index files without a segment."""
    issues = []
    for name in found:
        first_seq = maybe_index_seq(name)
        if first_seq is not None and segment_name(first_seq) not in found:
            segment = Segment(FilePool(files, 1), folder, first_seq, log_id)
            checkpoint = segment.read_checkpoint()
            issues.append(
                _crash_leftover(f"{folder}/{name}", "index file without a segment")
                if checkpoint is None
                else missing_segment_issue(folder, first_seq, checkpoint, is_damage=True)
            )
    return issues


def stored_log_id(files: Files, folder: str) -> bytes | None:
    """The id of the log in a topic's folder; None if it is of format 1, or damaged everywhere."""
    journals = read_journals(files, folder)
    state = CursorState()
    for record in journals[current_generation(journals)] if journals else ():
        if isinstance(record, JournalRecord):
            for change in record.changes:
                state.apply(change)
    return state.log_id or maybe_log_id(files, folder)


_Journals = dict[int, list[JournalRecord | BadJournalRecord]]


def _check_journal(journals: _Journals, folder: str, *, has_segments: bool) -> list[Issue]:
    if not journals:
        problem = "there is no journal of the channels"
        return [Issue(folder, problem, is_damage=has_segments)]
    current = current_generation(journals)
    path = f"{folder}/{cursors_name(current)}"
    return [
        record.to_issue(path)
        for record in journals[current]
        if isinstance(record, BadJournalRecord)
    ]


class _SegmentCheck:
    """Checks one segment and its index file."""

    def __init__(
        self, files: Files, folder: str, first_seq: int, limit_seq: int | None, log_id: bytes
    ) -> None:
        self._files = files
        self._path = f"{folder}/{segment_name(first_seq)}"
        self._index_path = f"{folder}/{index_name(first_seq)}"
        self._limit_seq = limit_seq
        self._issues: list[Issue] = []
        # Computes the expected content of the index file.
        self._segment = Segment(FilePool(files, 1), folder, first_seq, log_id)
        self._allows_gap = False

    def run(self) -> list[Issue]:
        with contextlib.closing(self._files.open(self._path, "read")) as file:
            size = file.size()
            self._check_header(file)
            stored = self._load_index()
            for found in scan_batches(file, 0, size, self._segment.seed):
                if isinstance(found, BadBytes):
                    self._issues.append(found.to_issue(self._path))
                    self._allows_gap = True
                else:
                    self._check_batch(found)
                if stored is not None and self._segment.end == stored[0].end:
                    self._compare(*stored)
                    stored = None
        if stored is not None:
            self._report_missing_end(stored[0], size)
        return self._issues

    def _check_header(self, file: File) -> None:
        header = maybe_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
        if header is None:
            self._segment.seed = find_seed(file, self._segment.log_id)
        elif header != (self._segment.log_id, self._segment.first_seq):
            problem = f"this is segment {header.first_seq} of log {header.log_id.hex()}"
            self._issues.append(Issue(self._path, problem, is_damage=True))

    def _check_batch(self, found: StoredBatch) -> None:
        batch = found.header
        problem = self._find_problem(found)
        if problem is not None:
            is_leftover = self._limit_seq is not None and batch.first_seq >= self._limit_seq
            bad = BadBytes.from_batch(batch, problem, is_leftover=is_leftover)
            self._issues.append(bad.to_issue(self._path))
        self._segment.add_scanned(batch)
        self._allows_gap = False

    def _find_problem(self, found: StoredBatch) -> str | None:
        batch = found.header
        expected = self._segment.next_seq
        if batch.first_seq < expected or (batch.first_seq > expected and not self._allows_gap):
            return f"sequence numbers do not continue after {expected - 1}"
        if self._limit_seq is not None and batch.next_seq > self._limit_seq:
            return "a batch has sequence numbers of the next segment"
        try:
            split_frames(batch, found.frames)
            decode_attributes(found.attributes, batch.message_count)
        except CorruptBatchError as error:
            return str(error)
        return None

    def _load_index(self) -> tuple[Checkpoint, SparseIndex, DeferredIndex] | None:
        try:
            with contextlib.closing(self._files.open(self._index_path, "read")) as file:
                data = file.read(0, file.size())
        except FileNotFoundError:
            return None
        seed = index_seed(self._segment.seed, self._segment.first_seq)
        checkpoint, index, deferred = (
            maybe_checkpoint(data, seed),
            maybe_index(data, seed),
            maybe_deferred(data, seed),
        )
        if checkpoint is None or index is None or deferred is None:
            problem = "the index file is not valid; it will be made again from the segment"
            self._issues.append(_crash_leftover(self._index_path, problem))
            return None
        return checkpoint, index, deferred

    def _compare(self, stored: Checkpoint, index: SparseIndex, deferred: DeferredIndex) -> None:
        segment = self._segment
        known = segment.checkpoint, segment.index.entries(), segment.deferred.encode()
        agrees = known == (stored, index.entries(), deferred.encode())
        if not agrees and not self._has_damage():
            problem = "the index file does not match its segment"
            self._issues.append(Issue(self._index_path, problem, is_damage=True))

    def _report_missing_end(self, checkpoint: Checkpoint, size: int) -> None:
        if size >= checkpoint.end and self._has_damage():
            return
        problem = "the segment is shorter than its index file says"
        self._issues.append(
            Issue(
                self._path,
                problem,
                is_damage=True,
                first_byte=min(size, checkpoint.end),
                end_byte=checkpoint.end,
                first_seq=min(self._segment.next_seq, checkpoint.next_seq),
                end_seq=checkpoint.next_seq,
            )
        )

    def _has_damage(self) -> bool:
        """Whether damage was reported that explains why the index file does not match."""
        return any(issue.is_damage for issue in self._issues)


def _crash_leftover(path: str, problem: str) -> Issue:
    return Issue(path, problem, is_damage=False)
