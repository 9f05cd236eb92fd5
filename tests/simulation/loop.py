"""An event loop without an operating system: nothing happens in it but what it was asked for.

It runs what is ready, in order, and lets time pass on a clock set by hand, from timer to timer. It
offers what `penstock.nsqd` asks of a loop and nothing else; no coroutine ever runs on it.
"""

import heapq
from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Any

from penstock.common.clock import SECOND_NS
from penstock.testing import ManualClock

__all__ = ["SimulatedLoop", "Timer"]

# More rounds than any schedule has use for: somebody asks to be called again without end.
_ROUNDS_MAX = 5_000


class Timer:
    """What `call_at` and `call_later` return."""

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
    """See the module's docstring."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[Timer] = []
        self._order = 0

    # What nsqd asks for.

    def time(self) -> float:
        return self._clock.now_ns() / SECOND_NS

    def call_soon(self, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        self._ready.append((callback, args))

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        self._order += 1
        at_ns = ceil(when * SECOND_NS)
        at_ns += at_ns / SECOND_NS < when  # or it would be early, and ask for the same time again
        timer = Timer(at_ns, self._order, callback, args)
        heapq.heappush(self._timers, timer)
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, **_: Any
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args)

    def get_debug(self) -> bool:
        return False

    # What the simulation does.

    def come_to_rest(self) -> None:
        """Does all that is to be done by now; a timer's time is known to within a rounding."""
        self.pass_time(1_000)

    def run_ready(self) -> None:
        """Turn after turn, until nothing is left that was not put off."""
        ready = self._ready
        for _ in range(_ROUNDS_MAX):
            if not ready:
                return
            callback, args = ready.popleft()
            callback(*args)
        raise AssertionError("the loop does not come to rest")

    def pass_time(self, duration_ns: int) -> None:
        """Lets time pass, and runs every timer at its time."""
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
        raise AssertionError("timers go off again and again, and time does not pass")

    def forget(self) -> None:
        """The process has ended: nothing that it waited for happens."""
        self._ready.clear()
        self._timers.clear()
