"""What one channel has finished of its topic. Pure: it knows no file and no log.

A sequence number is finished if it is below `floor` or in one of the finished ranges above it; all
others are open. Invariants: `floor` itself is open, and `notes` holds open numbers only. So the
memory that this takes is bounded by what is open below the highest number finished, however long
the topic's history is.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.storage.ranges import RangeSet

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
        """Everything below is finished; this is the first number that is open."""
        self.notes: dict[int, Note] = {}
        """Of open messages only."""
        self._finished = RangeSet()

    def reset(self, floor: int) -> None:
        """Begins again: below `floor` all is finished, above it nothing, and no note is left."""
        self.floor = floor
        self.notes.clear()
        self._finished = RangeSet()

    def finish(self, first: int, end: int) -> None:
        """Marks `[first, end)` finished; numbers that already are stay so."""
        if self.notes:
            self._forget_notes(first, end)
        if first > self.floor:
            self._finished.add(first, end)
        elif end > self.floor:
            self._raise_floor(end)

    def note(self, seq: int, note: Note) -> None:
        """Keeps `note` for `seq`, unless that is finished."""
        if seq >= self.floor and not (self._finished and self._finished.covers(seq, seq + 1)):
            self.notes[seq] = note

    def is_finished(self, first: int, end: int) -> bool:
        """Whether all of `[first, end)` is finished."""
        return end <= self.floor or self._finished.covers(max(first, self.floor), end)

    def open_ranges(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of `[first, end)` that are not finished, in order."""
        return self._finished.gaps(max(first, self.floor), end)

    def finished_ranges(self) -> Iterator[tuple[int, int]]:
        """The finished ranges above the floor, in order."""
        return iter(self._finished)

    @property
    def finished_end(self) -> int:
        """One past the highest finished sequence number; at least the floor."""
        return max(self.floor, self._finished.end)

    @property
    def known_end(self) -> int:
        """Nothing at or above this number has been finished or noted."""
        return max(self.finished_end, max(self.notes, default=-1) + 1)

    def _raise_floor(self, floor: int) -> None:
        finished = self._finished
        if finished:
            finished.add(self.floor, floor)
            _, floor = next(iter(finished))
            finished.drop_below(floor)
        self.floor = floor

    def _forget_notes(self, first: int, end: int) -> None:
        notes = self.notes
        if len(notes) < end - first:
            for seq in [seq for seq in notes if first <= seq < end]:
                del notes[seq]
        else:
            for seq in range(first, end):
                notes.pop(seq, None)
