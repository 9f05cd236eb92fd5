"""Delays as users give them: seconds, or a timedelta."""

from datetime import timedelta

__all__ = ["Delay", "to_ms"]

Delay = float | timedelta


def to_ms(delay: Delay) -> int:
    """Whole milliseconds, which is what the wire has. Raises ValueError if it is negative."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if seconds < 0:
        raise ValueError(f"a delay cannot be negative: {seconds:g} s")
    return round(seconds * 1000)
