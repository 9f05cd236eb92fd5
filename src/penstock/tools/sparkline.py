"""A row of numbers as a row of bars, one character each. Pure."""

from collections.abc import Sequence

__all__ = ["sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The last `width` values, the latest at the right end; the largest has the tallest bar.

    Zero has the lowest one, and nothing else has, so that a trickle can be told from silence.
    """
    shown = values[-width:] if width > 0 else []
    bars = _ASCII if ascii_only else _BLOCKS
    largest = max(shown, default=0.0)
    return "".join(_bar(value, largest, bars) for value in shown).rjust(width)


def _bar(value: float, largest: float, bars: str) -> str:
    if value <= 0:
        return bars[0]
    return bars[max(1, round(value / largest * (len(bars) - 1)))]
