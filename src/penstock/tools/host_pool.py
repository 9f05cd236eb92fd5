"""Which of several destinations is the next. Pure: time and chance are handed in.

    pool = HostPool(["a", "b"])
    host = pool.pick(now)
    ...
    pool.mark(host, now, seconds)          # or failed=True

`RoundRobin` takes them in turn, come what may. `HostPool` leaves out those that have failed, for
30 s and then for twice as long each time; when all have failed, all are tried again.
`EpsilonGreedy` does that too, and prefers the fast: each gets a part that is inverse to its average
time, and now and then one is tried just to see. Figures are those of NSQ's tools.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp
from typing import Protocol

from penstock.common.logs import Logger

__all__ = ["EpsilonGreedy", "HostPool", "HostSelector", "RequestTimings", "RoundRobin"]

RETRY_SECONDS_FIRST = 30.0
RETRY_SECONDS_MAX = 900.0

# How often one is tried to see how fast it is: often at first, then less each time.
EPSILON_FIRST = 0.3
EPSILON_LEAST = 0.01
EPSILON_DECAY = 0.9

# What was measured this long ago counts about a third of what is measured now.
MEMORY_SECONDS = 300.0

# So that nobody seems to take no time at all.
SECONDS_LEAST = 1e-6


class HostSelector(Protocol):
    """What the three have in common."""

    def pick(self, now: float) -> str:
        """The next to be used."""

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """What became of it, and how long it took."""


class RoundRobin:
    """One after the other."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._turn = -1

    def pick(self, now: float) -> str:
        """The next."""
        self._turn = (self._turn + 1) % len(self._hosts)
        return self._hosts[self._turn]

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """Changes nothing."""


@dataclass(slots=True)
class _Host:
    """What is known of a host. It is dead while `retry_seconds` is not 0."""

    name: str
    retry_seconds: float = 0.0
    retry_at: float = 0.0
    # Decaying sums: of the requests, and of the time they took.
    weight: float = 0.0
    seconds: float = 0.0
    measured_at: float = 0.0

    def can_be_tried(self, now: float) -> bool:
        return not self.retry_seconds or now >= self.retry_at

    def revive(self) -> None:
        self.retry_seconds = 0.0

    def put_off(self, now: float) -> None:
        self.retry_seconds = min(2 * self.retry_seconds, RETRY_SECONDS_MAX) or RETRY_SECONDS_FIRST
        self.retry_at = now + self.retry_seconds

    def measure(self, now: float, seconds: float) -> None:
        kept = exp((self.measured_at - now) / MEMORY_SECONDS)
        self.weight = self.weight * kept + 1
        self.seconds = self.seconds * kept + seconds
        self.measured_at = now

    @property
    def speed(self) -> float:
        """The inverse of its average time; 0 if that is not known."""
        return self.weight / max(self.seconds, SECONDS_LEAST) if self.weight else 0.0


class HostPool:
    """One after the other of those that work."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = [_Host(name) for name in hosts]
        self._by_name = {host.name: host for host in self._hosts}
        self._turn = -1

    def pick(self, now: float) -> str:
        """The next that may be tried."""
        for _ in self._hosts:
            self._turn = (self._turn + 1) % len(self._hosts)
            host = self._hosts[self._turn]
            if host.can_be_tried(now):
                return self._try(host, now)
        for host in self._hosts:
            host.revive()
        return self._hosts[self._turn].name

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """What failed is left out for a while; what works counts as if it had never failed."""
        marked = self._by_name[host]
        if not failed:
            marked.revive()
        elif marked.can_be_tried(now):  # only once for all that were under way
            marked.put_off(now)

    def _try(self, host: _Host, now: float) -> str:
        if host.retry_seconds:
            host.put_off(now)  # one request will show; the others go elsewhere
        return host.name


class EpsilonGreedy(HostPool):
    """The faster, the more."""

    def __init__(self, hosts: Sequence[str], rand: Callable[[], float] = random.random) -> None:
        super().__init__(hosts)
        self._rand = rand
        self._epsilon = EPSILON_FIRST

    def pick(self, now: float) -> str:
        """By its speed; or just the next, to learn how fast that is."""
        if self._rand() < self._epsilon:
            self._epsilon = max(self._epsilon * EPSILON_DECAY, EPSILON_LEAST)
            return super().pick(now)
        known = [host for host in self._hosts if host.speed and host.can_be_tried(now)]
        point = self._rand() * sum(host.speed for host in known)
        for host in known:
            point -= host.speed
            if point <= 0:
                return self._try(host, now)
        return super().pick(now)

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """A success is also measured."""
        super().mark(host, now, seconds, failed=failed)
        if not failed:
            self._by_name[host].measure(now, seconds)


class RequestTimings:
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
