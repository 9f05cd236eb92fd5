"""Clocks, which are passed to the code that needs time.

`now_ns` is monotonic: message timeouts, heartbeats and all other deadlines of a running process use
it. `wall_ns` is the time of day: message timestamps and stored due times use it, since they must
stay valid after a restart and on other machines.
"""

import time
from typing import Protocol

__all__ = ["MILLISECOND_NS", "SECOND_NS", "Clock", "SystemClock"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """Interface of `SystemClock` and of `penstock.testing.ManualClock`."""

    def now_ns(self) -> int:
        """Monotonic time, for deadlines."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch. Steps when the system clock is set."""


class SystemClock:
    """The clocks of the operating system."""

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
