"""How late the event loop is: how long what is due has to wait for what is running.

A timer that is due ten times a second notes by how much it was late. That costs next to nothing and
does not see everything: a pause of 50 ms is noticed every other time, one of 100 ms or more always.
"""

import asyncio

from penstock.common.clock import MILLISECOND_NS, SECOND_NS, Clock
from penstock.net.prometheus import Histogram

__all__ = ["LoopLag"]

SAMPLE_NS = 100 * MILLISECOND_NS

# From what nobody notices, the loop's own timers being exact to a millisecond, to what hurts.
BOUNDS_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class LoopLag:
    """Samples the running loop, from `start` to `stop`."""

    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram(BOUNDS_SECONDS)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Takes the first sample in a moment."""
        self._due_ns = self._clock.now_ns() + SAMPLE_NS
        self._timer = self._loop.call_later(SAMPLE_NS / SECOND_NS, self._sample)

    def stop(self) -> None:
        """Takes no more samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample(self) -> None:
        late_ns = self._clock.now_ns() - self._due_ns
        self.histogram.observe(max(late_ns, 0) / SECOND_NS)
        self.start()
