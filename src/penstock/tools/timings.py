"""How long requests take: a log line for every so many of them.

[aggregate]: finished 250 - 99th: 3.21ms - 95th: 2.87ms - avg: 1.02ms
"""

from collections.abc import Sequence
from math import ceil

from penstock.common.logs import Logger

__all__ = ["Timings"]


class Timings:
    """Collects times, and logs them when there are `every`; 0 for never."""

    def __init__(self, name: str, every: int, log: Logger) -> None:
        self._name = name
        self._every = every
        self._log = log
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        """A request is finished."""
        if not self._every:
            return
        self._seconds.append(seconds)
        if len(self._seconds) >= self._every:
            self._tell()
            self._seconds.clear()

    def _tell(self) -> None:
        ranked = sorted(1000 * each for each in self._seconds)
        self._log.info(
            "[%s]: finished %d - 99th: %.02fms - 95th: %.02fms - avg: %.02fms",
            self._name,
            len(ranked),
            _percentile(99, ranked),
            _percentile(95, ranked),
            sum(ranked) / len(ranked),
        )


def _percentile(percent: int, ranked: Sequence[float]) -> float:
    # nsq compat: half a place too high, as NSQ's tools count.
    return ranked[min(ceil(percent / 100 * len(ranked) + 0.5), len(ranked) - 1)]
