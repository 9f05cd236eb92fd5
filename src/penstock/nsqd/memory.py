"""What /stats says of the process's memory, under the names that NSQ gave to Go's figures.

heap_objects             blocks that Python has allocated
heap_in_use_bytes        the resident size of the process
heap_released_bytes      how much smaller that is than at its largest
heap_idle_bytes          the same: Python does not tell what it keeps for itself
gc_pause_usec_100 ...    the longest, 99 % and 95 % of the latest 256 garbage collections
next_gc_bytes            0: Python collects by the number of objects, not by size
gc_total_runs            garbage collections since the start, of all generations
"""

import gc
import math
import os
import resource
import sys
import time
from collections import deque
from typing import TypedDict

__all__ = ["GcPauses", "MemoryStats", "memory_stats"]

PAUSES_KEPT = 256  # as many as Go keeps


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
    """Times every garbage collection from now on, until it is closed."""

    def __init__(self) -> None:
        self._pauses_us: deque[int] = deque(maxlen=PAUSES_KEPT)
        self._started_ns = 0
        gc.callbacks.append(self._on_gc)

    def close(self) -> None:
        """Stops timing."""
        gc.callbacks.remove(self._on_gc)

    def percentile_us(self, percent: int) -> int:
        """The pause that so many percent of the latest ones did not exceed; 0 if there was none."""
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
    """The figures of this moment."""
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
    """What the process takes now; only Linux says."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
