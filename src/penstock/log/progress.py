"""What one channel has finished of its topic. Pure: it knows no file and no log.

A sequence number below `floor` is finished; above it, one that is in the finished ranges. All
others are open. Invariants: `floor` itself is open, no finished range begins at or below it, and
`notes` holds open numbers only. So the memory it takes is bounded by what is open below the highest
number finished, however long the topic's history is.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.log.ranges import RangeSet, runs_of

__all__ = ["Note", "Progress"]


class Note(NamedTuple):
    """What must not be forgotten of an open message that has been handed out before."""

    attempts: int
    due_ns: int
    """Wall time before which it must not be delivered again; 0 is now."""


class Progress:
    """Which messages of a topic a channel is done with."""

    __slots__ = ("_finished", "floor", "notes")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        """Everything below is finished; it is itself the first open number."""
        self.notes: dict[int, Note] = {}
        """Of open messages only."""
        self._finished = RangeSet()

    @property
    def highest(self) -> int:
        """The lowest number above which nothing has been finished or noted yet."""
        above = [next for _, next in self._finished] or [self.floor]
        return max(above[-1], max(self.notes, default=-1) + 1)

    def finish(self, first: int, next: int) -> None:
        """Marks `[first, next)` finished; numbers that already are stay so."""
        if self.notes:
            self._forget_notes(first, next)
        if first > self.floor:
            self._finished.add(first, next)
        elif next > self.floor:
            self._raise_floor(next)

    def finish_many(self, seqs: Sequence[int]) -> None:
        """Marks these finished, in whatever order they come."""
        for first, next in runs_of(seqs):
            self.finish(first, next)

    def note(self, seq: int, note: Note) -> None:
        """Keeps `note` for `seq` unless that is finished."""
        if not self.is_finished(seq, seq + 1):
            self.notes[seq] = note

    def is_finished(self, first: int, next: int) -> bool:
        """Whether all of `[first, next)` is finished."""
        return next <= self.floor or self._finished.covers(max(first, self.floor), next)

    def open_ranges(self, first: int, next: int) -> list[tuple[int, int]]:
        """The parts of `[first, next)` that are not finished, in order."""
        return self._finished.gaps(max(first, self.floor), next)

    def finished_between(self, first: int, next: int) -> int:
        """How many of `[first, next)` are finished."""
        below_floor = max(0, min(next, self.floor) - first)
        return below_floor + self._finished.count(max(first, self.floor), next)

    @property
    def finished_above_floor(self) -> int:
        """How many are finished above the floor, known without counting."""
        return self._finished.total

    def finished_ranges(self) -> Iterator[tuple[int, int]]:
        """The finished ranges above the floor, in order."""
        return iter(self._finished)

    def _raise_floor(self, floor: int) -> None:
        self._finished.add(self.floor, floor)
        (_, self.floor), *_ = self._finished
        self._finished.drop_below(self.floor)

    def _forget_notes(self, first: int, next: int) -> None:
        notes = self.notes
        if len(notes) < next - first:
            for seq in [seq for seq in notes if first <= seq < next]:
                del notes[seq]
        else:
            for seq in range(first, next):
                notes.pop(seq, None)
