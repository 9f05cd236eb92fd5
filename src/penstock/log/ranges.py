"""A set of sequence numbers that is kept as ranges.

A range is `[first, next)`: the second number is the first one that is not in it. Invariant: the
ranges are sorted, none is empty, and no two touch or overlap, so a set has exactly one form.
Adding a range costs one binary search, plus moving the ranges above it if it joins none.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

__all__ = ["RangeSet", "runs_of"]


class RangeSet:
    """Sorted, disjoint ranges; `total` is how many numbers they hold together."""

    __slots__ = ("_firsts", "_nexts", "total")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._nexts: list[int] = []
        self.total = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._nexts, strict=True)

    def __len__(self) -> int:
        """How many ranges there are, which is what a set costs in memory."""
        return len(self._firsts)

    def add(self, first: int, next: int) -> None:
        """Adds every number of `[first, next)`; those already in the set may stay there."""
        if first >= next:
            return
        # Ranges low..high - 1 touch or overlap the new one and become one with it.
        low = bisect_left(self._nexts, first)
        high = bisect_right(self._firsts, next)
        added = next - first
        if low < high:
            first = min(first, self._firsts[low])
            next = max(next, self._nexts[high - 1])
            added = next - first - self._count(low, high)
        self._firsts[low:high] = [first]
        self._nexts[low:high] = [next]
        self.total += added

    def drop_below(self, seq: int) -> None:
        """Removes every number below `seq`."""
        keep = bisect_right(self._nexts, seq)
        self.total -= self._count(0, keep)
        del self._firsts[:keep], self._nexts[:keep]
        if self._firsts and self._firsts[0] < seq:
            self.total -= seq - self._firsts[0]
            self._firsts[0] = seq

    def covers(self, first: int, next: int) -> bool:
        """Whether all of `[first, next)` is in the set."""
        at = bisect_right(self._firsts, first) - 1
        return first >= next or (at >= 0 and self._nexts[at] >= next)

    def count(self, first: int, next: int) -> int:
        """How many numbers of `[first, next)` are in the set."""
        return sum(b - a for a, b in self._clipped(first, next))

    def gaps(self, first: int, next: int) -> list[tuple[int, int]]:
        """The ranges of `[first, next)` that are not in the set, in order."""
        gaps = []
        for start, stop in self._clipped(first, next):
            if first < start:
                gaps.append((first, start))
            first = stop
        if first < next:
            gaps.append((first, next))
        return gaps

    def _clipped(self, first: int, next: int) -> Iterator[tuple[int, int]]:
        low = bisect_right(self._nexts, first)
        high = bisect_left(self._firsts, next)
        for start, stop in zip(self._firsts[low:high], self._nexts[low:high], strict=True):
            yield max(start, first), min(stop, next)

    def _count(self, low: int, high: int) -> int:
        return sum(self._nexts[low:high]) - sum(self._firsts[low:high])


def runs_of(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges that these numbers make up, in order. Numbers in one run cost next to nothing."""
    if not seqs:
        return []
    ordered = sorted(seqs)
    first, next = ordered[0], ordered[-1] + 1
    if len(ordered) == next - first and ordered == list(range(first, next)):
        return [(first, next)]
    runs = []
    end = first
    for seq in ordered:
        if seq > end:
            runs.append((first, end))
            first = seq
        end = seq + 1
    runs.append((first, end))
    return runs
