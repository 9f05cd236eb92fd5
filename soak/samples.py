"""Samples of an nsqd: memory, handles, disk, and delay of its event loop."""

import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

from bench.procfs import rss_bytes, starved_seconds

__all__ = ["Sample", "Sampler", "worst_bound_ms"]

INTERVAL_SECONDS = 1.0

_LAG = re.compile(rb'nsqd_loop_lag_seconds_bucket\{le="([^"]+)"\} (\d+)')


class Sample(NamedTuple):
    """State of an nsqd at one time."""

    at: float
    """Seconds since the start of the run."""
    rss_mb: float
    handles: int
    disk_mb: float
    late_ms: float
    """Maximum delay of the event loop in the last interval, rounded up to a bound of nsqd's
    histogram."""
    starved_ms: float
    """Time in that interval in which nsqd was ready to run but had no CPU."""


class Sampler:
    """Samples one nsqd in a thread until stopped."""

    def __init__(self, http_address: str, data_path: Path) -> None:
        self.samples: list[Sample] = []
        self.pid = 0
        """Id of the process to sample; 0 while there is none."""
        self._http_address = http_address
        self._data_path = data_path
        self._lags: dict[str, int] = {}
        self._starved_seconds = 0.0
        self._stopping = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run)

    def start(self, pid: int) -> None:
        self.pid = pid
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            # The process may exit while it is sampled: skip the sample.
            with suppress(OSError, HTTPException, ProcessLookupError):
                if self.pid:
                    self.samples.append(self._sample(self.pid))

    def _sample(self, pid: int) -> Sample:
        late_ms = self._late_ms()
        starved_before, self._starved_seconds = self._starved_seconds, starved_seconds(pid)
        return Sample(
            time.monotonic() - self._began,
            rss_bytes(pid) / 1e6,
            len(list(Path(f"/proc/{pid}/fd").iterdir())),
            _disk_bytes(self._data_path) / 1e6,
            late_ms,
            max(0.0, self._starved_seconds - starved_before) * 1000,
        )

    def _late_ms(self) -> float:
        connection = HTTPConnection(self._http_address, timeout=10)
        try:
            connection.request("GET", "/metrics")
            counts = {
                le.decode(): int(n) for le, n in _LAG.findall(connection.getresponse().read())
            }
        finally:
            connection.close()
        before, self._lags = self._lags, counts
        return worst_bound_ms(list(before.values()), list(counts.values()), list(counts))


def worst_bound_ms(before: Sequence[int], now: Sequence[int], bounds: Sequence[str]) -> float:
    """Bound of the highest bucket that has grown; counts are cumulative."""
    if not before or before[-1] > now[-1]:
        before = [0] * len(now)  # another process
    grown = [after - earlier for earlier, after in zip(before, now, strict=True)]
    highest = next((at for at, growth in enumerate(grown) if growth == grown[-1]), 0)
    # Values above the last bound are shown as twice the bound.
    bound = bounds[highest]
    return 1000 * (float(bound) if bound != "+Inf" else 2 * float(bounds[highest - 1]))


def _disk_bytes(data_path: Path) -> int:
    total = 0
    for path in data_path.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total
