"""The messages of one channel that wait for their time: published deferred, or requeued with delay.

Ordered by due time, which is wall time because it outlives the process. An entry is a run of
messages published together. Up to a limit the frames wait here too; beyond it only their place in
the log is kept, and the channel reads them back when they come due, so that a million deferred
messages cost a million small entries and not a million bodies.
"""

import heapq
import math
from typing import NamedTuple

__all__ = ["Deferred", "DeferredRun"]


class DeferredRun(NamedTuple):
    """Messages `first_seq` to `first_seq + length`, due together. Without `frames` they wait in the
    log."""

    due_ns: int
    order: int
    first_seq: int
    length: int
    frames: list[bytes] | None


class Deferred:
    """A heap of runs by due time; equal times keep the order in which they came."""

    __slots__ = (
        "_added",
        "_bytes_held",
        "_bytes_max",
        "_frames_held",
        "_frames_max",
        "_heap",
        "count",
    )

    def __init__(self, frames_max: int | None, bytes_max: int | None = None) -> None:
        """How many frames may wait in memory, and how many bytes; None for no limit."""
        self.count = 0
        self._added = 0
        self._frames_held = self._bytes_held = 0
        self._frames_max = math.inf if frames_max is None else frames_max
        self._bytes_max = math.inf if bytes_max is None else bytes_max
        self._heap: list[DeferredRun] = []

    def __len__(self) -> int:
        return self.count

    def add(self, due_ns: int, first_seq: int, frames: list[bytes]) -> None:
        """Lets a run wait until `due_ns`."""
        kept = frames if self._held(frames) else None
        self._added += 1
        self.count += len(frames)
        run = DeferredRun(due_ns, self._added, first_seq, len(frames), kept)
        heapq.heappush(self._heap, run)

    def next_due_ns(self) -> int | None:
        """When the next run comes due."""
        return self._heap[0].due_ns if self._heap else None

    def maybe_due(self, wall_ns: int) -> DeferredRun | None:
        """The first run, if its time has come. It stays until `pop`, so that nothing is lost when
        its frames cannot be read."""
        return self._heap[0] if self._heap and self._heap[0].due_ns <= wall_ns else None

    def pop(self) -> None:
        """Takes the first run out."""
        run = heapq.heappop(self._heap)
        self.count -= run.length
        self._let_go(run.frames)

    def remove(self, seq: int) -> bool:
        """Takes one message out, wherever it waits. Returns whether it was there."""
        run = self._split_off(seq)
        if run is None:
            return False
        self.count -= 1
        self._let_go(run.frames)
        return True

    def hasten(self, seq: int) -> bool:
        """Makes one message due at once, wherever it waits. Returns whether it was there."""
        run = self._split_off(seq)
        if run is None:
            return False
        heapq.heappush(self._heap, run._replace(due_ns=0))
        return True

    def first(self, count: int) -> list[DeferredRun]:
        """The runs that the next `count` messages to come due are in; the last one is cut to fit.
        They stay where they are."""
        runs = []
        for run in heapq.nsmallest(count, self._heap):
            if count <= 0:
                break
            length = min(run.length, count)
            frames = None if run.frames is None else run.frames[:length]
            runs.append(run._replace(length=length, frames=frames))
            count -= length
        return runs

    def clear(self) -> None:
        """Forgets everything."""
        self._heap.clear()
        self.count = self._frames_held = self._bytes_held = 0

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


def _part(run: DeferredRun, start: int, end: int) -> DeferredRun:
    """The messages from `start` to `end` of a run."""
    frames = None if run.frames is None else run.frames[start:end]
    return run._replace(first_seq=run.first_seq + start, length=end - start, frames=frames)
