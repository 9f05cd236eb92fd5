"""A deterministic event loop without an operating system.

It runs ready callbacks in order and advances a manual clock from timer to timer. It has only the
methods that `penstock.nsqd` uses; no coroutine runs on it.
"""

import heapq
from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Any

from penstock.common.clock import SECOND_NS
from penstock.testing import ManualClock

__all__ = ["SimulatedLoop", "Timer"]

# More rounds than any schedule needs: a callback reschedules itself without end.
_ROUNDS_MAX = 5_000


class Timer:
    """Returned by `call_at` and `call_later`."""

    __slots__ = ("args", "at_ns", "callback", "is_cancelled", "order")

    def __init__(
        self, at_ns: int, order: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self.at_ns = at_ns
        self.order = order
        self.callback = callback
        self.args = args
        self.is_cancelled = False

    def __lt__(self, other: "Timer") -> bool:
        return (self.at_ns, self.order) < (other.at_ns, other.order)

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedLoop:
    """An event loop with a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[Timer] = []
        self._order = 0

    # Methods that nsqd calls.

    def time(self) -> float:
        return self._clock.now_ns() / SECOND_NS

    def call_soon(self, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        self._ready.append((callback, args))

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        self._order += 1
        at_ns = ceil(when * SECOND_NS)
        at_ns += (
            at_ns / SECOND_NS < when
        )  # rounded up: a timer that fires early would be scheduled again for the same time
        timer = Timer(at_ns, self._order, callback, args)
        heapq.heappush(self._timers, timer)
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, **_: Any
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args)

    def get_debug(self) -> bool:
        return False

    # Methods that the simulation calls.

    def run_due(self) -> None:
        """Run ready callbacks and due timers; a timer's time is known only to within a rounding
        error.
        """
        self.pass_time(1_000)

    def run_ready(self) -> None:
        """Run ready callbacks until only deferred ones are left."""
        ready = self._ready
        for _ in range(_ROUNDS_MAX):
            if not ready:
                return
            callback, args = ready.popleft()
            callback(*args)
        raise AssertionError("the loop does not come to rest")

    def pass_time(self, duration_ns: int) -> None:
        """Advance the clock and run each timer at its time."""
        clock, timers = self._clock, self._timers
        end_ns = clock.now_ns() + duration_ns
        self.run_ready()
        for _ in range(_ROUNDS_MAX):
            if not timers or timers[0].at_ns > end_ns:
                clock.advance(end_ns - clock.now_ns())
                return
            timer = heapq.heappop(timers)
            if not timer.is_cancelled:
                clock.advance(max(timer.at_ns - clock.now_ns(), 0))
                timer.callback(*timer.args)
                self.run_ready()
        raise AssertionError("timers fire again and again without progress of time")

    def forget(self) -> None:
        """Discard all callbacks and timers, because the process has ended."""
        self._ready.clear()
        self._timers.clear()
