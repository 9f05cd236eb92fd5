"""Figures about the nsqd process: memory, garbage collections, event-loop lag, errors.

/stats shows memory under the names that NSQ gave to Go's figures:

heap_objects             blocks allocated by Python
heap_in_use_bytes        resident size of the process
heap_released_bytes      difference between the peak resident size and the present one
heap_idle_bytes          the same; Python does not report its free memory
gc_pause_usec_100 ...    maximum, 99th and 95th percentile of the last 256 garbage collections
next_gc_bytes            0: Python collects by the number of objects, not by size
gc_total_runs            garbage collections of all generations since the start
"""

import asyncio
import gc
import math
import os
import resource
import sys
import time
from collections import deque
from typing import TypedDict

from penstock.common.clock import MILLISECOND_NS, SECOND_NS, Clock
from penstock.net.prometheus import Histogram

__all__ = ["ErrorCounters", "GcPauses", "LoopLag", "MemoryStats", "memory_stats"]

PAUSES_KEPT = 256  # the number that Go keeps

# Interval at which the lag is sampled. A pause of 50 ms is noticed every other time, one of 100 ms
# or more always.
LAG_SAMPLE_NS = 100 * MILLISECOND_NS

# The loop's timers are exact to a millisecond, so smaller buckets would show nothing.
LAG_BOUNDS_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class ErrorCounters:
    """Counts errors sent to clients, by reason. A reason is a fixed name in snake case, never
    text from a client."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, reason: str) -> None:
        """Adds one error."""
        self.counts[reason] = self.counts.get(reason, 0) + 1


class LoopLag:
    """Histogram of how late the event loop runs its timers, sampled from `start` to `stop`."""

    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram(LAG_BOUNDS_SECONDS)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Takes the first sample after one interval."""
        self._due_ns = self._clock.now_ns() + LAG_SAMPLE_NS
        self._timer = self._loop.call_later(LAG_SAMPLE_NS / SECOND_NS, self._sample)

    def stop(self) -> None:
        """Takes no more samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample(self) -> None:
        lag_ns = self._clock.now_ns() - self._due_ns
        self.histogram.observe(max(lag_ns, 0) / SECOND_NS)
        self.start()


class MemoryStats(TypedDict):
    """In the order of NSQ's JSON."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


class GcPauses:
    """Times all garbage collections until it is closed."""

    def __init__(self) -> None:
        self._pauses_us: deque[int] = deque(maxlen=PAUSES_KEPT)
        self._started_ns = 0
        gc.callbacks.append(self._on_gc)

    def close(self) -> None:
        """Stops timing."""
        gc.callbacks.remove(self._on_gc)

    def percentile_us(self, percent: int) -> int:
        """A percentile of the last pauses; 0 if there was none."""
        if not self._pauses_us:
            return 0
        rank = math.ceil(percent / 100 * len(self._pauses_us))
        return sorted(self._pauses_us)[rank - 1]

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._started_ns = now_ns
        else:
            self._pauses_us.append((now_ns - self._started_ns) // 1000)


def memory_stats(pauses: GcPauses) -> MemoryStats:
    """The present figures."""
    peak = _peak_resident_bytes()
    resident = _resident_bytes() or peak
    released = max(peak - resident, 0)
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": released,
        "heap_in_use_bytes": resident,
        "heap_released_bytes": released,
        "gc_pause_usec_100": pauses.percentile_us(100),
        "gc_pause_usec_99": pauses.percentile_us(99),
        "gc_pause_usec_95": pauses.percentile_us(95),
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def _peak_resident_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _resident_bytes() -> int | None:
    """Present resident size; None except on Linux."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
