"""Quantiles of the time from publish to FIN, over a channel's last minutes.

Latencies are counted in buckets whose bounds grow by a constant factor, so that the relative error
of a quantile is at most `ACCURACY`. A sketch has a few hundred buckets; two thousand if latencies
range from a nanosecond to a year. Sketches of several channels can be merged into that of a topic.

A window is two sketches, each for half of its length: the newer one is filled, the older one is
dropped when the newer one is complete. So the quantiles cover between half a window and a whole.

Latencies are differences of wall times, because messages carry wall times. If the clock is set, the
window starts over: latencies across the step are meaningless.
"""

from collections.abc import Iterable, Sequence
from math import ceil, log

from penstock.common.clock import Clock
from penstock.protocol import frames as wire

__all__ = ["ACCURACY", "LatencySketch", "LatencyWindow", "merged"]

# Maximum relative error of a quantile.
ACCURACY = 0.01

_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_BUCKETS_PER_E = 1 / log(_GROWTH)


class LatencySketch:
    """Latencies counted in buckets."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, published: Iterable[tuple[int, int]], finished_ns: int) -> None:
        """Counts messages that were finished together. `published` has pairs of publish time and
        number of messages. A negative latency, after the clock was set, counts as a nanosecond."""
        buckets, total = self._buckets, 0
        for published_ns, count in published:
            latency_ns = finished_ns - published_ns
            bucket = ceil(log(latency_ns) * _BUCKETS_PER_E) if latency_ns > 1 else 0
            buckets[bucket] = buckets.get(bucket, 0) + count
            total += count
        self.count += total

    def merge(self, other: "LatencySketch") -> None:
        """Adds the counts of another sketch."""
        buckets = self._buckets
        for bucket, count in other._buckets.items():  # noqa: SLF001 (a sketch too)
            buckets[bucket] = buckets.get(bucket, 0) + count
        self.count += other.count

    def quantiles_ns(self, quantiles: Sequence[float]) -> list[int]:
        """The latencies of the given quantiles, which are in (0, 1] and in descending order; 0 if
        there are no messages."""
        values = [0] * len(quantiles)
        buckets = sorted(self._buckets.items(), reverse=True)
        at, below = -1, self.count  # `below` is the number of messages in buckets below `at`.
        for index, quantile in enumerate(quantiles):
            while below >= max(ceil(quantile * self.count), 1):
                at += 1
                below -= buckets[at][1]
            if at >= 0:
                values[index] = _middle_ns(buckets[at][0])
        return values


class LatencyWindow:
    """Recent latencies of one channel."""

    __slots__ = ("_clock", "_half_ns", "_newer", "_older", "_since_ns")

    def __init__(self, window_ns: int, clock: Clock) -> None:
        self._clock = clock
        self._half_ns = max(window_ns // 2, 1)
        self._since_ns = clock.wall_ns()  # start of the newer half
        self._older = LatencySketch()
        self._newer = LatencySketch()

    def finished(self, frames: Iterable[bytes]) -> None:
        """Counts messages that were finished just now."""
        wall_ns = self._clock.wall_ns()
        self._move_to(wall_ns)
        self._newer.add(wire.timestamp_counts(frames), wall_ns)

    def add_to(self, sketch: LatencySketch) -> None:
        """Adds the window's counts to a sketch."""
        if not (self._newer.count or self._older.count):  # Fast path for idle channels.
            return
        self._move_to(self._clock.wall_ns())
        sketch.merge(self._older)
        sketch.merge(self._newer)

    def _move_to(self, wall_ns: int) -> None:
        halves = (wall_ns - self._since_ns) // self._half_ns
        if halves in (0, -1):  # -1: the clock was slewed back a little, and will catch up.
            return
        self._older = self._newer if halves == 1 else LatencySketch()
        self._newer = LatencySketch()
        self._since_ns += halves * self._half_ns


def merged(windows: Iterable[LatencyWindow | None]) -> LatencySketch | None:
    """The merged sketch of all windows; None if there are none."""
    sketch: LatencySketch | None = None
    for window in windows:
        if window is not None:
            sketch = sketch or LatencySketch()
            window.add_to(sketch)
    return sketch


def _middle_ns(bucket: int) -> int:
    """The latency with the smallest relative error for all latencies in a bucket."""
    return round(2 * _GROWTH**bucket / (_GROWTH + 1))
