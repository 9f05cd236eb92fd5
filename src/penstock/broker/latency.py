"""How long messages take from publish to FIN: the quantiles of a channel's last minutes.

Latencies are counted in buckets whose bounds grow by a constant factor, so that a quantile is
known to within `ACCURACY` of its value, whatever its size. A sketch has a few hundred buckets, two
thousand if latencies range from a nanosecond to a year, and no more with more messages. Sketches of
several channels add up to that of their topic.

A window is two sketches of half its length: the newer one is filled, the older one forgotten when
the newer has had its time. So the quantiles look back at least half a window and at most a whole.

Latencies are wall time, which is what messages carry. If somebody sets the clock, a window starts
over once it notices: what it would count across the step means nothing.
"""

from collections.abc import Iterable, Sequence
from math import ceil, log

from penstock.common.clock import Clock
from penstock.protocol import frames as wire

__all__ = ["ACCURACY", "LatencySketch", "LatencyWindow", "merged"]

# A quantile is wrong by this share of itself at most.
ACCURACY = 0.01

_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_BUCKETS_PER_E = 1 / log(_GROWTH)


class LatencySketch:
    """Latencies, counted by size."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, published: Iterable[tuple[int, int]], finished_ns: int) -> None:
        """Counts messages that were finished at one time, given when and how many were published.

        One that took less than no time, because a clock was set, took a nanosecond.
        """
        buckets, total = self._buckets, 0
        for published_ns, count in published:
            latency_ns = finished_ns - published_ns
            bucket = ceil(log(latency_ns) * _BUCKETS_PER_E) if latency_ns > 1 else 0
            buckets[bucket] = buckets.get(bucket, 0) + count
            total += count
        self.count += total

    def merge(self, other: "LatencySketch") -> None:
        """Counts what `other` has counted as well."""
        buckets = self._buckets
        for bucket, count in other._buckets.items():  # noqa: SLF001 (a sketch too)
            buckets[bucket] = buckets.get(bucket, 0) + count
        self.count += other.count

    def quantiles_ns(self, quantiles: Sequence[float]) -> list[int]:
        """For each the latency that so large a share of the messages did not exceed; 0 without any
        messages. `quantiles` are in (0, 1], in descending order."""
        values = [0] * len(quantiles)
        buckets = sorted(self._buckets.items(), reverse=True)
        at, below = -1, self.count  # how many messages are in lower buckets than the one at `at`
        for index, quantile in enumerate(quantiles):
            while below >= max(ceil(quantile * self.count), 1):
                at += 1
                below -= buckets[at][1]
            if at >= 0:
                values[index] = _middle_ns(buckets[at][0])
        return values


class LatencyWindow:
    """The latencies of one channel's recent past."""

    __slots__ = ("_clock", "_half_ns", "_newer", "_older", "_since_ns")

    def __init__(self, window_ns: int, clock: Clock) -> None:
        self._clock = clock
        self._half_ns = max(window_ns // 2, 1)
        self._since_ns = clock.wall_ns()  # when the newer half began
        self._older = LatencySketch()
        self._newer = LatencySketch()

    def finished(self, frames: Iterable[bytes]) -> None:
        """These messages have been finished just now."""
        wall_ns = self._clock.wall_ns()
        self._move_to(wall_ns)
        self._newer.add(wire.timestamp_counts(frames), wall_ns)

    def add_to(self, sketch: LatencySketch) -> None:
        """Adds what the window has counted."""
        if not (self._newer.count or self._older.count):  # as in most of ten thousand channels
            return
        self._move_to(self._clock.wall_ns())
        sketch.merge(self._older)
        sketch.merge(self._newer)

    def _move_to(self, wall_ns: int) -> None:
        halves = (wall_ns - self._since_ns) // self._half_ns
        if halves in (0, -1):  # a clock that was slewed back a little will catch up
            return
        self._older = self._newer if halves == 1 else LatencySketch()
        self._newer = LatencySketch()
        self._since_ns += halves * self._half_ns


def merged(windows: Iterable[LatencyWindow | None]) -> LatencySketch | None:
    """All that these windows have counted; None if there are none."""
    sketch: LatencySketch | None = None
    for window in windows:
        if window is not None:
            sketch = sketch or LatencySketch()
            window.add_to(sketch)
    return sketch


def _middle_ns(bucket: int) -> int:
    """The latency that is nearest, relatively, to all that are counted in a bucket."""
    return round(2 * _GROWTH**bucket / (_GROWTH + 1))
