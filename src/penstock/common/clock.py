"""Time, as the rest of the code is given it.

Two clocks, because they answer different questions. `now_ns` never steps: message timeouts,
heartbeats and every other deadline of a running process are measured on it. `wall_ns` is the time
of day: it is written into messages and into stored due times, which must mean the same after a
restart or on another machine.
"""

import time
from typing import Protocol

__all__ = ["MILLISECOND_NS", "SECOND_NS", "Clock", "SystemClock"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """What tells the time: the system, or a test by hand (`penstock.testing.ManualClock`)."""

    def now_ns(self) -> int:
        """Steady time, for deadlines. Its zero means nothing."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch. May step when somebody sets the clock."""


class SystemClock:
    """The machine's own clocks."""

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
