"""How many messages a consumer requests: the RDY count of each connection, and the backoff after
failures. No I/O; the time is an argument.

**RDY.** If `max_in_flight` is at least the number of connections, each connection gets an equal
part; the first ones get the remainder. Otherwise as many connections as possible get RDY 1, in
rotation: a connection that delivered nothing for `low_rdy_idle_timeout`, or had RDY 1 for
`low_rdy_timeout`, is replaced by the one that has waited longest.

**Backoff** works as in NSQ's Go client:

    RUNNING --failure--> PAUSED --time--> PROBING --success--> RUNNING, or PAUSED for less time
                           ^-----------------failure-'

In PAUSED the consumer requests nothing, in PROBING a single message. Messages that were received
earlier may still end in these states: in PAUSED their results are ignored, in PROBING they count.
"""

import random
from collections.abc import Callable, Sequence
from enum import Enum, auto

from penstock.client.config import ClientConfig

__all__ = ["Backoff", "BackoffState", "RdyAllocation", "allocate_rdy"]


class RdyAllocation:
    """The RDY count of one connection, since `changed_at`; `delivered_at` is the time of its last
    message."""

    __slots__ = ("changed_at", "delivered_at", "rdy", "rdy_max")

    def __init__(self, now: float, rdy_max: int) -> None:
        self.rdy = 0
        self.rdy_max = rdy_max
        self.changed_at = now
        self.delivered_at = now


def allocate_rdy(
    allocations: Sequence[RdyAllocation], config: ClientConfig, total: int, now: float
) -> list[int]:
    """The RDY count that each connection should have; the sum is at most `total`."""
    if total >= len(allocations):
        return _allocate_equally(allocations, total)
    return _allocate_in_turn(allocations, config, total, now)


def _allocate_equally(allocations: Sequence[RdyAllocation], total: int) -> list[int]:
    if not allocations:
        return []
    part, remainder = divmod(total, len(allocations))
    return [min(part + (index < remainder), each.rdy_max) for index, each in enumerate(allocations)]


def _allocate_in_turn(
    allocations: Sequence[RdyAllocation], config: ClientConfig, total: int, now: float
) -> list[int]:
    def precedence(allocation: RdyAllocation) -> tuple[int, float]:
        """Connections whose turn is not over come first, then the waiting ones, longest first."""
        if not allocation.rdy:
            return 1, allocation.changed_at
        return 2 if _is_turn_over(allocation, config, now) else 0, allocation.changed_at

    chosen = {id(each) for each in sorted(allocations, key=precedence)[:total]}
    return [int(id(each) in chosen) for each in allocations]


def _is_turn_over(allocation: RdyAllocation, config: ClientConfig, now: float) -> bool:
    since = max(allocation.changed_at, allocation.delivered_at)
    return (
        now - since >= config.low_rdy_idle_timeout
        or now - allocation.changed_at >= config.low_rdy_timeout
    )


class BackoffState(Enum):
    """RUNNING: full RDY. PAUSED: RDY 0. PROBING: RDY 1."""

    RUNNING = auto()
    PROBING = auto()
    PAUSED = auto()


class Backoff:
    """The backoff of one consumer. Whenever `state` becomes PAUSED, the caller waits
    `pause_seconds` and then calls `start_probing`."""

    def __init__(self, config: ClientConfig, rand: Callable[[], float] = random.random) -> None:
        self._multiplier = config.backoff_multiplier
        self._pause_seconds_max = config.max_backoff_duration
        self._has_full_jitter = config.backoff_strategy == "full_jitter"
        self._rand = rand
        self._level = 0
        self.state = BackoffState.RUNNING
        self.pause_seconds = 0.0

    def record_failure(self) -> bool:
        """A handler failed. Returns whether `state` was set anew."""
        if self.state is BackoffState.PAUSED or not self._pause_seconds_max:
            return False
        # At the longest pause, a higher level would only require more successes to recover.
        if self._level_seconds() < self._pause_seconds_max:
            self._level += 1
        return self._pause()

    def record_success(self) -> bool:
        """A handler succeeded. Returns whether `state` was set anew."""
        if self.state is not BackoffState.PROBING:
            return False
        self._level -= 1
        if self._level:
            return self._pause()
        self.state = BackoffState.RUNNING
        return True

    def start_probing(self) -> None:
        self.state = BackoffState.PROBING

    def _pause(self) -> bool:
        self.state = BackoffState.PAUSED
        seconds = min(self._level_seconds(), self._pause_seconds_max)
        self.pause_seconds = seconds * self._rand() if self._has_full_jitter else seconds
        return True

    def _level_seconds(self) -> float:
        return float(self._multiplier * 2**self._level) if self._level else 0.0
