"""So many a second: an allowance that grows with time, up to what a second brings."""

import asyncio

__all__ = ["Throttle"]


class Throttle:
    """Lets `per_second` through, or all if that is 0. What was not used is good for a second."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._allowance = 1.0
        self._counted_at = asyncio.get_running_loop().time()

    async def take(self, wanted: int) -> int:
        """How many of those wanted may pass now; waits until it is one at least."""
        if self._per_second <= 0:
            return wanted
        missing = 1 - self._grown_allowance()
        if missing > 0:
            await asyncio.sleep(missing / self._per_second)
            self._allowance = max(1.0, self._grown_allowance())
        count = min(wanted, int(self._allowance))
        self._allowance -= count
        return count

    def _grown_allowance(self) -> float:
        now = asyncio.get_running_loop().time()
        grown = self._allowance + (now - self._counted_at) * self._per_second
        self._allowance = min(grown, float(self._per_second))
        self._counted_at = now
        return self._allowance
