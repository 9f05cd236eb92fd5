"""Manual clock, so that tests need not wait."""

__all__ = ["ManualClock"]


class ManualClock:
    """A `penstock.common.clock.Clock` that moves only by `advance` and `set_wall`."""

    def __init__(self, *, now_ns: int = 0, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._wall_ns = wall_ns

    def now_ns(self) -> int:
        """Monotonic time."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The time of day."""
        return self._wall_ns

    def advance(self, duration_ns: int) -> None:
        """Advance both clocks."""
        assert duration_ns >= 0, "monotonic time does not run backwards"
        self._now_ns += duration_ns
        self._wall_ns += duration_ns

    def set_wall(self, wall_ns: int) -> None:
        """Set the time of day, as an operator or NTP may; monotonic time is not affected."""
        self._wall_ns = wall_ns
