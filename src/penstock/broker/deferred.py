"""The messages of one channel that wait for their time: published deferred, or requeued with delay.

Ordered by due time, which is wall time because it outlives the process. An entry is a run of
messages published together. Up to a limit the frames wait here too; beyond it only their place in
the log is kept, and the channel reads them back when they come due, so that a million deferred
messages cost a million small entries and not a million bodies.

What has come due is `call`ed: it is deferred no longer, and waits in line for the channel to take
it, which has room for so much at a time.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CALLED_AT_ONCE_MAX", "Deferred", "DeferredRun"]

# Maximum runs that one `call` moves: a million due at the same time must not block the loop.
CALLED_AT_ONCE_MAX = 1024


class DeferredRun(NamedTuple):
    """Messages `first_seq` to `first_seq + length`, due together. Without `frames` they wait in the
    log."""

    due_ns: int
    order: int
    first_seq: int
    length: int
    frames: list[bytes] | None


class Deferred:
    """Two heaps of runs by due time, of those that wait for it and of those that have been called;
    equal times keep the order in which they came."""

    __slots__ = (
        "_added",
        "_bytes_held",
        "_bytes_max",
        "_called",
        "_frames_held",
        "_frames_max",
        "_heap",
        "called_count",
        "count",
    )

    def __init__(self, frames_max: int | None, bytes_max: int | None = None) -> None:
        """How many frames may wait in memory, and how many bytes; None for no limit."""
        self.count = 0  # of messages that wait for their time
        self.called_count = 0
        self._added = 0
        self._frames_held = self._bytes_held = 0
        self._frames_max = math.inf if frames_max is None else frames_max
        self._bytes_max = math.inf if bytes_max is None else bytes_max
        self._heap: list[DeferredRun] = []
        self._called: list[DeferredRun] = []

    def __len__(self) -> int:
        return self.count

    def add(self, due_ns: int, first_seq: int, frames: list[bytes]) -> None:
        """Lets a run wait until `due_ns`."""
        kept = frames if self._held(frames) else None
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
        """When the next run comes due that has not been called."""
        return self._heap[0].due_ns if self._heap else None

    def call(self, wall_ns: int) -> None:
        """Moves due runs to the queue of called runs, at most `CALLED_AT_ONCE_MAX`. There are more
        as long as `next_due_ns` is not after `wall_ns`."""
        for _ in range(CALLED_AT_ONCE_MAX):
            if not self._heap or self._heap[0].due_ns > wall_ns:
                break
            run = heapq.heappop(self._heap)
            heapq.heappush(self._called, run)
            self.count -= run.length
            self.called_count += run.length

    def put_off(self) -> None:
        """Lets those in line wait until they are called again."""
        for run in self._called:
            heapq.heappush(self._heap, run)
        self._called.clear()
        self.count += self.called_count
        self.called_count = 0

    def called(self) -> DeferredRun:
        """The first run in line. It stays until `pop`, so that nothing is lost when its frames
        cannot be read."""
        return self._called[0]

    def pop(self) -> None:
        """Takes the first run in line out."""
        run = heapq.heappop(self._called)
        self.called_count -= run.length
        self._let_go(run.frames)

    def remove(self, seq: int) -> bool:
        """Takes one message out that waits for its time. Returns whether it was there."""
        run = self._split_off(seq)
        if run is None:
            return False
        self.count -= 1
        self._let_go(run.frames)
        return True

    def hasten(self, seq: int) -> bool:
        """Makes one message due at once that waits for its time. Returns whether it was there."""
        run = self._split_off(seq)
        if run is None:
            return False
        heapq.heappush(self._heap, run._replace(due_ns=0))
        return True

    def first(self, count: int) -> list[DeferredRun]:
        """The runs that the next `count` messages to come due are in; the last one is cut to fit.
        They stay where they are."""
        return _cut_to(count, heapq.nsmallest(count, self._heap))

    def first_called(self, count: int) -> list[DeferredRun]:
        """The same for those in line."""
        return _cut_to(count, heapq.nsmallest(count, self._called))

    def clear(self) -> None:
        """Forgets everything."""
        self._heap.clear()
        self._called.clear()
        self.count = self.called_count = self._frames_held = self._bytes_held = 0

    def _held(self, frames: list[bytes]) -> bool:
        """Counts frames in, if there is room for them in memory. Returns whether there is."""
        frames_held = self._frames_held + len(frames)
        bytes_held = self._bytes_held + sum(map(len, frames))
        if frames_held > self._frames_max or bytes_held > self._bytes_max:
            return False
        self._frames_held, self._bytes_held = frames_held, bytes_held
        return True

    def _let_go(self, frames: list[bytes] | None) -> None:
        if frames is not None:
            self._frames_held -= len(frames)
            self._bytes_held -= sum(map(len, frames))

    def _split_off(self, seq: int) -> DeferredRun | None:
        """Takes one message out of the run that it waits in; it still counts."""
        for at, run in enumerate(self._heap):
            place = seq - run.first_seq
            if 0 <= place < run.length:
                others = (_part(run, 0, place), _part(run, place + 1, run.length))
                self._heap[at : at + 1] = [part for part in others if part.length]
                heapq.heapify(self._heap)
                return _part(run, place, place + 1)
        return None


def _cut_to(count: int, runs: list[DeferredRun]) -> list[DeferredRun]:
    """The runs that the first `count` messages are in."""
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
