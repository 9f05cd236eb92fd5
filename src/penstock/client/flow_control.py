"""How `max_in_flight` is shared out over connections. Pure: the time is handed in.

With enough for all, every connection has an equal share, the remainder spread over the first. With
fewer than there are connections, as many as possible have one each, and it goes round: a connection
that has brought nothing for a while, or has had its turn for long, gives its place to the one that
has waited longest.
"""

import random
from collections.abc import Callable, Sequence
from enum import Enum, auto

from penstock.client.config import ClientConfig

__all__ = ["Backoff", "BackoffState", "RdyAllocation", "allocate_rdy"]


class RdyAllocation:
    """A connection's part: what it may have in flight, since when, and when it last brought
    something."""

    __slots__ = ("changed_at", "delivered_at", "rdy", "rdy_max")

    def __init__(self, now: float, rdy_max: int) -> None:
        self.rdy = 0
        self.rdy_max = rdy_max
        self.changed_at = now
        self.delivered_at = now


def allocate_rdy(
    shares: Sequence[RdyAllocation], config: ClientConfig, total: int, now: float
) -> list[int]:
    """What each should have, of `total` for all."""
    if total >= len(shares):
        return _equal_parts(shares, total)
    return _take_turns(shares, config, total, now)


def _equal_parts(shares: Sequence[RdyAllocation], total: int) -> list[int]:
    if not shares:
        return []
    part, remainder = divmod(total, len(shares))
    return [min(part + (index < remainder), share.rdy_max) for index, share in enumerate(shares)]


def _take_turns(
    shares: Sequence[RdyAllocation], config: ClientConfig, total: int, now: float
) -> list[int]:
    def precedence(share: RdyAllocation) -> tuple[int, float]:
        """Whose turn it is stays; then come those who wait, the longest first."""
        if not share.rdy:
            return 1, share.changed_at
        return 2 if _has_had_its_turn(share, config, now) else 0, share.changed_at

    chosen = {id(share) for share in sorted(shares, key=precedence)[:total]}
    return [int(id(share) in chosen) for share in shares]


def _has_had_its_turn(share: RdyAllocation, config: ClientConfig, now: float) -> bool:
    since = max(share.changed_at, share.delivered_at)
    return (
        now - since >= config.low_rdy_idle_timeout
        or now - share.changed_at >= config.low_rdy_timeout
    )


class BackoffState(Enum):
    """How much may be asked for now."""

    ALL = auto()
    ONE = auto()
    NONE = auto()


class Backoff:
    """The state of it. The driver waits `hold_seconds` whenever `flow` becomes NONE."""

    def __init__(self, config: ClientConfig, rand: Callable[[], float] = random.random) -> None:
        self._multiplier = config.backoff_multiplier
        self._hold_seconds_max = config.max_backoff_duration
        self._full_jitter = config.backoff_strategy == "full_jitter"
        self._rand = rand
        self._level = 0
        self.flow = BackoffState.ALL
        self.hold_seconds = 0.0

    def failed(self) -> bool:
        """A handler failed. Returns whether the flow has changed."""
        if self.flow is BackoffState.NONE or not self._hold_seconds_max:
            return False
        # Beyond the longest hold, a higher level would only mean more successes to get down again.
        if self._longest_hold_seconds() < self._hold_seconds_max:
            self._level += 1
        return self._hold()

    def succeeded(self) -> bool:
        """A handler succeeded. Returns whether the flow has changed."""
        if self.flow is not BackoffState.ONE:
            return False
        self._level -= 1
        if self._level:
            return self._hold()
        self.flow = BackoffState.ALL
        return True

    def held(self) -> None:
        """`hold_seconds` have passed."""
        self.flow = BackoffState.ONE

    def _hold(self) -> bool:
        self.flow = BackoffState.NONE
        seconds = min(self._longest_hold_seconds(), self._hold_seconds_max)
        self.hold_seconds = seconds * self._rand() if self._full_jitter else seconds
        return True

    def _longest_hold_seconds(self) -> float:
        return float(self._multiplier * 2**self._level) if self._level else 0.0
