"""Loading the segments of a topic, and putting right what a crash has left.

1. Remove what was never finished: files still called `.new`, index files without a segment.
2. Trust every segment whose index file speaks of all of it: it is not read.
3. Walk the others from where their index file stops, or from the start. After a crash that is the
   last segment, and the one before it if that had not been synced yet.
4. Cut off the beginning of a batch at the end: it was never acknowledged.
5. Move bytes that are no batch aside, into a `.bad` file beside the segment. What follows them
   becomes a segment of its own, so that within a segment numbers never have a gap.

A step that is interrupted is taken again at the next start. What is done is returned as findings.
"""

from dataclasses import replace
from itertools import zip_longest
from pathlib import PurePath
from typing import NamedTuple

from penstock.storage.batch import Batch
from penstock.storage.file_pool import FilePool
from penstock.storage.files import Files, append_to
from penstock.storage.index import Checkpoint
from penstock.storage.issue import Finding
from penstock.storage.layout import (
    BAD_SUFFIX,
    NEW_SUFFIX,
    index_name,
    maybe_index_seq,
    maybe_segment_seq,
)
from penstock.storage.scan import BadBytes, Window, walk
from penstock.storage.segment import Segment, read_checkpoint

__all__ = ["Loaded", "load_segments"]


class Loaded(NamedTuple):
    """The segments of a topic, in order and without empty ones."""

    segments: list[Segment]
    findings: list[Finding]
    next_seq: int
    """Every message that is known of has a lower number."""
    is_tail_lost: bool
    """Messages at the end were damaged, and how many is not known: their numbers were in use."""


def load_segments(pool: FilePool, folder: str) -> Loaded:
    """Loads what is in a topic's folder; raises OSError if it cannot be read or put right."""
    seqs = _clear_up(pool.files, folder)
    segments: list[Segment] = []
    findings: list[Finding] = []
    next_seq = 0
    is_tail_lost = False
    for first_seq, limit_seq in zip_longest(seqs, seqs[1:]):
        recovery = _Recovery(pool, folder, first_seq, limit_seq)
        recovery.run()
        segments += _without_empty([recovery.segment, *recovery.split_off])
        findings += recovery.findings
        next_seq = max(next_seq, first_seq, recovery.next_seq)
        is_tail_lost = recovery.is_tail_lost
    return Loaded(segments, findings, next_seq, is_tail_lost)


def _clear_up(files: Files, folder: str) -> list[int]:
    """Removes what was never finished; returns the segments' first sequence numbers, in order."""
    names = files.names(folder)
    seqs = [seq for name in names if (seq := maybe_segment_seq(name)) is not None]
    kept = {index_name(seq) for seq in seqs}
    for name in names:
        is_orphan = maybe_index_seq(name) is not None and name not in kept
        if is_orphan or name.endswith(NEW_SUFFIX):
            files.remove(f"{folder}/{name}")
    return seqs


def _without_empty(segments: list[Segment]) -> list[Segment]:
    for segment in segments:
        if segment.end == 0:
            segment.remove()
    return [segment for segment in segments if segment.end]


class _Recovery:
    """The loading of one segment, and of those that it may have to be split into."""

    def __init__(self, pool: FilePool, folder: str, first_seq: int, limit_seq: int | None) -> None:
        self.segment = Segment(pool, folder, first_seq)
        self.split_off: list[Segment] = []
        self.findings: list[Finding] = []
        self.next_seq = first_seq
        self.is_tail_lost = False
        self._pool = pool
        self._folder = folder
        self._limit_seq = limit_seq
        self._bad: list[tuple[BadBytes, int]] = []
        self._strays: list[list[Batch]] = []

    def run(self) -> None:
        segment = self.segment
        checkpoint = read_checkpoint(self._pool.files, self._folder, segment.first_seq)
        size = segment.handle.open().size()
        if checkpoint is not None and checkpoint.end <= size:
            segment.restore(checkpoint)
            self.next_seq = segment.next_seq
        if segment.end < size:
            self._sort(size)
            self._put_right()
        if checkpoint is not None and checkpoint.end > size:
            self._report_missing(size, checkpoint)

    def _sort(self, size: int) -> None:
        """Tells what belongs to the segment, what has to leave it, and what is no batch."""
        for found in walk(self.segment.handle.open(), self.segment.end, size):
            if isinstance(found, BadBytes):
                self._set_aside(found)
            elif found.batch.first_seq < self.next_seq:
                reason = "a batch repeats message numbers"
                self._set_aside(BadBytes.of(found.batch, reason, is_leftover=False))
            elif self._limit_seq is not None and found.batch.first_seq >= self._limit_seq:
                # A write that was reported as failed, or a stretch that was already split off.
                reason = "a batch has message numbers of the next segment"
                self._set_aside(BadBytes.of(found.batch, reason, is_leftover=True))
            else:
                self._accept(found.batch)

    def _set_aside(self, bad: BadBytes) -> None:
        self._bad.append((bad, self.next_seq))
        if bad.batch is not None and not bad.is_leftover:
            self.next_seq = max(self.next_seq, bad.batch.next_seq)
        self.is_tail_lost = bad.batch is None and not bad.is_leftover

    def _accept(self, batch: Batch) -> None:
        segment, strays = self.segment, self._strays
        if batch.position == segment.end and batch.first_seq == segment.next_seq:
            segment.take(batch)
        elif strays and (strays[-1][-1].end, self.next_seq) == (batch.position, batch.first_seq):
            strays[-1].append(batch)
        else:
            strays.append([batch])
        self.next_seq = batch.next_seq
        self.is_tail_lost = False

    def _put_right(self) -> None:
        damaged = [bad for bad, _ in self._bad if not bad.is_leftover]
        if damaged:
            self._keep_aside(damaged)
        # From the last to the first: a segment that is there always ends the one before it.
        for stretch in reversed(self._strays):
            self.split_off.insert(0, self._split_off(stretch))
        if self.split_off and self.split_off[0].first_seq == self.segment.first_seq:
            # What stood before it was no batch: it has the segment's name, and its place.
            self.segment.handle.close()
            self.segment = self.split_off.pop(0)
        elif self._bad or self._strays:
            self.segment.handle.open().truncate(self.segment.end)
        self.findings += [self._finding(bad, seq) for bad, seq in self._bad]

    def _keep_aside(self, damaged: list[BadBytes]) -> None:
        file = self.segment.handle.open()
        pieces = [file.read(bad.position, bad.end - bad.position) for bad in damaged]
        append_to(self._pool.files, self.segment.handle.path + BAD_SUFFIX, pieces)
        self._pool.files.sync_folder(self._folder)

    def _split_off(self, stretch: list[Batch]) -> Segment:
        segment = Segment(self._pool, self._folder, stretch[0].first_seq)
        path = segment.handle.path
        segment.handle.path = path + NEW_SUFFIX
        segment.handle.create()
        window = Window(self.segment.handle.open(), stretch[-1].end)
        for batch in stretch:
            frames = window.frames_of(batch)
            segment.append(frames, batch.message_count, batch.timestamp_ns, batch.due_ns)
        segment.handle.open().sync()
        segment.synced_end = segment.end
        self._pool.files.rename(segment.handle.path, path)
        self._pool.files.sync_folder(self._folder)
        segment.handle.path = path
        return segment

    def _finding(self, bad: BadBytes, first_seq: int) -> Finding:
        path = self.segment.handle.path
        if bad.is_leftover:
            return replace(bad.finding(path), problem=f"{bad.reason}; cut off")
        after = (stretch[0] for stretch in self._strays if stretch[0].position >= bad.end)
        following = next(after, None)
        end_seq = following.first_seq if following else self._limit_seq
        if end_seq is None and bad.batch is not None:
            end_seq = bad.batch.next_seq
        return replace(
            bad.finding(path),
            problem=f"{bad.reason}; moved to {PurePath(path).name}{BAD_SUFFIX}",
            first_seq=first_seq,
            end_seq=end_seq,
        )

    def _report_missing(self, size: int, checkpoint: Checkpoint) -> None:
        """The index file speaks of bytes that are not there any more."""
        self.findings.append(
            Finding(
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
