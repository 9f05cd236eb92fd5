"""Progress of one channel: which messages it has finished. Pure.

A sequence number is finished if it is below `floor` or in a finished range above it; all others
are open. Invariants: `floor` is open, and only open messages have a retry state. So the memory
needed is bounded by the open messages below the highest finished one, however long the topic's
history is.

`RangeSet` stores a set of numbers as ranges `[first, end)`, where `end` is not included. Invariant:
the ranges are sorted, not empty, and do not touch or overlap, so each set has one representation.
Adding a range takes a binary search and, if it joins no other range, moves the ranges above it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import NamedTuple

__all__ = ["Progress", "RangeSet", "RetryState", "to_ranges"]


class RangeSet:
    """Sorted, disjoint ranges. `total` is the number of numbers in the set."""

    __slots__ = ("_ends", "_firsts", "total")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self.total = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._ends, strict=True)

    def __len__(self) -> int:
        """Number of ranges, which determines the memory used."""
        return len(self._firsts)

    @property
    def end(self) -> int:
        """One past the highest number; 0 for the empty set."""
        return self._ends[-1] if self._ends else 0

    def add(self, first: int, end: int) -> None:
        """Add all numbers of `[first, end)`; some may already be in the set."""
        if first >= end:
            return
        # Ranges low to high - 1 touch or overlap the new one and are merged with it.
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        counted = 0
        if low < high:
            first = min(first, self._firsts[low])
            end = max(end, self._ends[high - 1])
            counted = self._count_in(low, high)
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]
        self.total += end - first - counted

    def update(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add many ranges, which may overlap each other and the set. Fastest if they are sorted
        and above the set."""
        added = sorted(ranges)
        if not added:
            return
        low = bisect_left(self._ends, added[0][0])
        self.total -= self._count_in(low, len(self._ends))
        firsts: list[int] = []
        ends: list[int] = []
        for first, end in merge(zip(self._firsts[low:], self._ends[low:], strict=True), added):
            if not ends or first > ends[-1]:
                if first < end:
                    firsts.append(first)
                    ends.append(end)
            elif end > ends[-1]:
                ends[-1] = end
        self._firsts[low:], self._ends[low:] = firsts, ends
        self.total += self._count_in(low, len(ends) + low)

    def drop_below(self, seq: int) -> None:
        """Remove all numbers below `seq`."""
        keep = bisect_right(self._ends, seq)
        self.total -= self._count_in(0, keep)
        del self._firsts[:keep], self._ends[:keep]
        if self._firsts and self._firsts[0] < seq:
            self.total -= seq - self._firsts[0]
            self._firsts[0] = seq

    def covers(self, first: int, end: int) -> bool:
        """Whether all numbers of `[first, end)` are in the set."""
        at = bisect_right(self._firsts, first) - 1
        return first >= end or (at >= 0 and self._ends[at] >= end)

    def count(self, first: int, end: int) -> int:
        """Number of numbers of `[first, end)` that are in the set."""
        if not self._firsts or (first <= self._firsts[0] and end >= self._ends[-1]):
            return self.total
        return sum(stop - start for start, stop in self._clipped(first, end))

    def next_missing(self, number: int) -> int:
        """The first number from `number` on that is not in the set."""
        at = bisect_right(self._firsts, number) - 1
        return max(number, self._ends[at]) if at >= 0 else number

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """The ranges of `[first, end)` that are not in the set, in order."""
        gaps = []
        for start, stop in self._clipped(first, end):
            if first < start:
                gaps.append((first, start))
            first = stop
        if first < end:
            gaps.append((first, end))
        return gaps

    def _clipped(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        if first >= end:
            return
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        for start, stop in zip(self._firsts[low:high], self._ends[low:high], strict=True):
            yield max(start, first), min(stop, end)

    def _count_in(self, low: int, high: int) -> int:
        return sum(self._ends[low:high]) - sum(self._firsts[low:high])


def to_ranges(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Convert numbers to ranges, in order. Fastest if the numbers are consecutive."""
    if not seqs:
        return []
    ordered = sorted(seqs)
    first, end = ordered[0], ordered[-1] + 1
    if len(ordered) == end - first and ordered == list(range(first, end)):
        return [(first, end)]
    runs = []
    end = first
    for seq in ordered:
        if seq > end:
            runs.append((first, end))
            first = seq
        end = seq + 1
    runs.append((first, end))
    return runs


class RetryState(NamedTuple):
    """Attempts and due time of an open message that was delivered before."""

    attempts: int
    due_ns: int
    """Wall time before which it must not be delivered again; 0 if it is not deferred."""


class Progress:
    """Which messages of a topic a channel has finished."""

    __slots__ = ("_finished", "floor", "retry_states")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        """The first open sequence number: all below are finished."""
        self.retry_states: dict[int, RetryState] = {}
        """Only open messages have one."""
        self._finished = RangeSet()

    def reset(self, floor: int) -> None:
        """Start again: all messages below `floor` are finished, all others open, without retry
        states."""
        self.floor = floor
        self.retry_states.clear()
        self._finished = RangeSet()

    def finish(self, first: int, end: int) -> None:
        """Mark `[first, end)` as finished; some numbers may already be finished."""
        if self.retry_states:
            self._remove_retry_states(first, end)
        if first > self.floor:
            self._finished.add(first, end)
        elif end > self.floor:
            self._raise_floor(end)

    def set_retry_state(self, seq: int, state: RetryState) -> None:
        """Set the retry state of a message, unless it is finished."""
        if seq >= self.floor and not (self._finished and self._finished.covers(seq, seq + 1)):
            self.retry_states[seq] = state

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
    def next_unused_seq(self) -> int:
        """One past the highest sequence number that is finished or has a retry state."""
        return max(self.finished_end, max(self.retry_states, default=-1) + 1)

    def _raise_floor(self, floor: int) -> None:
        finished = self._finished
        if finished:
            finished.add(self.floor, floor)
            _, floor = next(iter(finished))
            finished.drop_below(floor)
        self.floor = floor

    def _remove_retry_states(self, first: int, end: int) -> None:
        states = self.retry_states
        if len(states) < end - first:
            for seq in [seq for seq in states if first <= seq < end]:
                del states[seq]
        else:
            for seq in range(first, end):
                states.pop(seq, None)
