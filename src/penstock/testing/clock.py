"""A clock that a test sets by hand, so that no test has to wait."""

__all__ = ["ManualClock"]


class ManualClock:
    """A `penstock.common.clock.Clock` that stands still until it is told to move."""

    def __init__(self, *, now_ns: int = 0, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._wall_ns = wall_ns

    def now_ns(self) -> int:
        """Steady time."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The time of day."""
        return self._wall_ns

    def advance(self, duration_ns: int) -> None:
        """Lets time pass, on both clocks."""
        assert duration_ns >= 0, "steady time does not run backwards"
        self._now_ns += duration_ns
        self._wall_ns += duration_ns

    def set_wall(self, wall_ns: int) -> None:
        """Steps the time of day, as an operator or NTP may, leaving steady time alone."""
        self._wall_ns = wall_ns
