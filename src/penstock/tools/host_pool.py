"""Selection of the next of several hosts, and timing of the requests to them. No I/O: time and
random numbers are arguments.

    pool = HostPool(["a", "b"])
    host = pool.pick(now)
    ...
    pool.mark(host, now, seconds)          # or failed=True

`RoundRobin` uses all hosts in turn. `HostPool` skips failed hosts, for 30 s and then for twice as
long each time; if all have failed, it tries all again. `EpsilonGreedy` also prefers fast hosts: the
share of a host is inversely proportional to its average time, and sometimes it tries the next host
to measure it. The constants are those of NSQ's tools.
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

# Probability of trying the next host to measure it; decays with each such try.
EPSILON_FIRST = 0.3
EPSILON_LEAST = 0.01
EPSILON_DECAY = 0.9

# A measurement of this age has about a third of the weight of a new one.
MEMORY_SECONDS = 300.0

# Lower bound of a measured time, to avoid a division by zero.
SECONDS_LEAST = 1e-6


class HostSelector(Protocol):
    """Interface of the selection strategies."""

    def pick(self, now: float) -> str:
        """The host for the next request."""

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """Record the result and duration of a request."""


class RoundRobin:
    """Uses all hosts in turn, even failing ones."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._turn = -1

    def pick(self, now: float) -> str:
        self._turn = (self._turn + 1) % len(self._hosts)
        return self._hosts[self._turn]

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """Ignored."""


@dataclass(slots=True)
class _Host:
    """State of a host. While `retry_seconds` is not 0, the host counts as failed."""

    name: str
    retry_seconds: float = 0.0
    retry_at: float = 0.0
    # Decaying sums: number of requests, and their total time.
    weight: float = 0.0
    seconds: float = 0.0
    measured_at: float = 0.0

    def is_available(self, now: float) -> bool:
        return not self.retry_seconds or now >= self.retry_at

    def revive(self) -> None:
        self.retry_seconds = 0.0

    def postpone(self, now: float) -> None:
        self.retry_seconds = min(2 * self.retry_seconds, RETRY_SECONDS_MAX) or RETRY_SECONDS_FIRST
        self.retry_at = now + self.retry_seconds

    def measure(self, now: float, seconds: float) -> None:
        kept = exp((self.measured_at - now) / MEMORY_SECONDS)
        self.weight = self.weight * kept + 1
        self.seconds = self.seconds * kept + seconds
        self.measured_at = now

    @property
    def speed(self) -> float:
        """The inverse of the average time; 0 if not measured."""
        return self.weight / max(self.seconds, SECONDS_LEAST) if self.weight else 0.0


class HostPool:
    """Uses the working hosts in turn."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = [_Host(name) for name in hosts]
        self._by_name = {host.name: host for host in self._hosts}
        self._turn = -1

    def pick(self, now: float) -> str:
        """The next host that has not failed, or whose retry is due."""
        for _ in self._hosts:
            self._turn = (self._turn + 1) % len(self._hosts)
            host = self._hosts[self._turn]
            if host.is_available(now):
                return self._try(host, now)
        for host in self._hosts:
            host.revive()
        return self._hosts[self._turn].name

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """Skip a failed host for a while; a success resets its failures."""
        marked = self._by_name[host]
        if not failed:
            marked.revive()
        elif marked.is_available(now):  # count concurrent failures once
            marked.postpone(now)

    def _try(self, host: _Host, now: float) -> str:
        if host.retry_seconds:
            host.postpone(now)  # a single request tests it; others use other hosts
        return host.name


class EpsilonGreedy(HostPool):
    """Like `HostPool`, but prefers fast hosts."""

    def __init__(self, hosts: Sequence[str], rand: Callable[[], float] = random.random) -> None:
        super().__init__(hosts)
        self._rand = rand
        self._epsilon = EPSILON_FIRST

    def pick(self, now: float) -> str:
        """A random host weighted by speed; sometimes the next one, to measure it."""
        if self._rand() < self._epsilon:
            self._epsilon = max(self._epsilon * EPSILON_DECAY, EPSILON_LEAST)
            return super().pick(now)
        known = [host for host in self._hosts if host.speed and host.is_available(now)]
        point = self._rand() * sum(host.speed for host in known)
        for host in known:
            point -= host.speed
            if point <= 0:
                return self._try(host, now)
        return super().pick(now)

    def mark(self, host: str, now: float, seconds: float, *, failed: bool = False) -> None:
        """Record the result; measure the time of a success."""
        super().mark(host, now, seconds, failed=failed)
        if not failed:
            self._by_name[host].measure(now, seconds)


class RequestTimings:
    """Logs percentiles and average after every `every` requests; 0 for never:

    [aggregate]: finished 250 - 99th: 3.21ms - 95th: 2.87ms - avg: 1.02ms
    """

    def __init__(self, name: str, every: int, log: Logger) -> None:
        self._name = name
        self._every = every
        self._log = log
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        """Record the duration of a request."""
        if not self._every:
            return
        self._seconds.append(seconds)
        if len(self._seconds) >= self._every:
            self._log_line()
            self._seconds.clear()

    def _log_line(self) -> None:
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
    # nsq compat: NSQ's tools round half a rank too high.
    return ranked[min(ceil(percent / 100 * len(ranked) + 0.5), len(ranked) - 1)]
