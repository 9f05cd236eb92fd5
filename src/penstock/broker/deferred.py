"""The messages of one channel that are not due yet: published deferred, or requeued with a delay.

Ordered by due time, which is wall time because it must mean the same after a restart. An entry is a
run of messages published together. Up to a limit the frames are kept in memory; beyond it only
their sequence numbers are, and the channel reads them from the log when they become due. So a
million deferred messages cost a million small entries, not a million bodies.

`mark_due` moves runs that have become due to a second heap. There they wait until the channel has
room in memory for them.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["MARKED_AT_ONCE_MAX", "Deferred", "DeferredRun"]

# Maximum runs that one `mark_due` moves, so that a million runs due at the same time do not block
# the event loop.
MARKED_AT_ONCE_MAX = 1024


class DeferredRun(NamedTuple):
    """Messages `first_seq` to `first_seq + length`, due together. `frames` is None if they are only
    in the log."""

    due_ns: int
    order: int
    first_seq: int
    length: int
    frames: list[bytes] | None


class Deferred:
    """Two heaps of runs by due time: not due yet, and due. Runs with equal times keep the order in
    which they were added."""

    __slots__ = (
        "_added",
        "_bytes_held",
        "_bytes_max",
        "_due",
        "_frames_held",
        "_frames_max",
        "_heap",
        "count",
        "due_count",
    )

    def __init__(self, frames_max: int | None, bytes_max: int | None = None) -> None:
        """Maximum frames, and bytes of frames, in memory; None for no limit."""
        self.count = 0
        """Number of messages that are not due yet."""
        self.due_count = 0
        self._added = 0
        self._frames_held = self._bytes_held = 0
        self._frames_max = math.inf if frames_max is None else frames_max
        self._bytes_max = math.inf if bytes_max is None else bytes_max
        self._heap: list[DeferredRun] = []
        self._due: list[DeferredRun] = []

    def __len__(self) -> int:
        return self.count

    def add(self, due_ns: int, first_seq: int, frames: list[bytes]) -> None:
        """Adds a run that is due at `due_ns`."""
        kept = frames if self._try_hold(frames) else None
        self._added += 1
        self.count += len(frames)
        run = DeferredRun(due_ns, self._added, first_seq, len(frames), kept)
        heapq.heappush(self._heap, run)

    def add_stored(self, runs: Sequence[tuple[int, int, int]]) -> None:
        """Adds many runs, each `(due_ns, first_seq, length)`, whose frames are in the log."""
        added = [
            DeferredRun(due_ns, order, first_seq, length, None)
            for order, (due_ns, first_seq, length) in enumerate(runs, self._added + 1)
        ]
        self._added += len(added)
        self.count += sum(run.length for run in added)
        if len(added) > len(self._heap):
            self._heap += added
            heapq.heapify(self._heap)
        else:
            for run in added:
                heapq.heappush(self._heap, run)

    def next_due_ns(self) -> int | None:
        """When the next run becomes due; runs that are marked as due do not count."""
        return self._heap[0].due_ns if self._heap else None

    def mark_due(self, wall_ns: int) -> None:
        """Moves runs that are due to the second heap, at most `MARKED_AT_ONCE_MAX`. There are more
        as long as `next_due_ns` is not after `wall_ns`."""
        for _ in range(MARKED_AT_ONCE_MAX):
            if not self._heap or self._heap[0].due_ns > wall_ns:
                break
            run = heapq.heappop(self._heap)
            heapq.heappush(self._due, run)
            self.count -= run.length
            self.due_count += run.length

    def unmark_due(self) -> None:
        """Moves all due runs back, until `mark_due` is called again."""
        for run in self._due:
            heapq.heappush(self._heap, run)
        self._due.clear()
        self.count += self.due_count
        self.due_count = 0

    def first_due(self) -> DeferredRun:
        """The first due run. It stays until `pop_due`, so that it is not lost if its frames cannot
        be read."""
        return self._due[0]

    def pop_due(self) -> None:
        """Removes the first due run."""
        run = heapq.heappop(self._due)
        self.due_count -= run.length
        self._release(run.frames)

    def remove(self, seq: int) -> bool:
        """Removes one message that is not due yet. Returns False if there is no such message."""
        run = self._split_off(seq)
        if run is None:
            return False
        self.count -= 1
        self._release(run.frames)
        return True

    def set_due_now(self, seq: int) -> bool:
        """Makes one message due at once. Returns False if there is no such message."""
        run = self._split_off(seq)
        if run is None:
            return False
        heapq.heappush(self._heap, run._replace(due_ns=0))
        return True

    def peek(self, count: int) -> list[DeferredRun]:
        """The runs of the next `count` messages to become due; the last run is cut to fit."""
        return _cut_to(count, heapq.nsmallest(count, self._heap))

    def peek_due(self, count: int) -> list[DeferredRun]:
        """The runs of the first `count` due messages; the last run is cut to fit."""
        return _cut_to(count, heapq.nsmallest(count, self._due))

    def clear(self) -> None:
        """Drops all runs."""
        self._heap.clear()
        self._due.clear()
        self.count = self.due_count = self._frames_held = self._bytes_held = 0

    def _try_hold(self, frames: list[bytes]) -> bool:
        """Counts frames as held in memory. Returns False if there is no room for them."""
        frames_held = self._frames_held + len(frames)
        bytes_held = self._bytes_held + sum(map(len, frames))
        if frames_held > self._frames_max or bytes_held > self._bytes_max:
            return False
        self._frames_held, self._bytes_held = frames_held, bytes_held
        return True

    def _release(self, frames: list[bytes] | None) -> None:
        if frames is not None:
            self._frames_held -= len(frames)
            self._bytes_held -= sum(map(len, frames))

    def _split_off(self, seq: int) -> DeferredRun | None:
        """Removes one message from its run, without changing the counts."""
        for at, run in enumerate(self._heap):
            index = seq - run.first_seq
            if 0 <= index < run.length:
                others = (_part(run, 0, index), _part(run, index + 1, run.length))
                self._heap[at : at + 1] = [part for part in others if part.length]
                heapq.heapify(self._heap)
                return _part(run, index, index + 1)
        return None


def _cut_to(count: int, runs: list[DeferredRun]) -> list[DeferredRun]:
    """The runs of the first `count` messages."""
    cut = []
    for run in runs:
        if count <= 0:
            break
        cut.append(_part(run, 0, min(run.length, count)))
        count -= run.length
    return cut


def _part(run: DeferredRun, start: int, end: int) -> DeferredRun:
    """The messages from `start` to `end` of a run."""
    frames = None if run.frames is None else run.frames[start:end]
    return run._replace(first_seq=run.first_seq + start, length=end - start, frames=frames)
