"""How a consumer holds back when its handler fails: longer each time, and shorter again after.

    flowing --failure--> holding --time--> trying --success--> flowing, or holding for less long
                            ^----------------failure-----'

While it holds, nothing is asked for; while it tries, a single message is. What the handler says of
messages that were here before counts only once it tries. This is what NSQ's Go client does.
"""

import random
from collections.abc import Callable
from enum import Enum, auto

from penstock.client.config import ClientConfig

__all__ = ["Backoff", "BackoffState"]


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
