"""Numbers, sparklines, tables and progress bars as text for a terminal or a pipe."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = [
    "format_count",
    "format_number",
    "format_rate",
    "format_table",
    "progress_bar",
    "sparkline",
]


def format_number(number: int) -> str:
    """`1,234,567`."""
    return f"{number:,}"


def format_rate(rate: float | None) -> str:
    """A rate with three digits: `0.25`, `12.5`, `1,234`; `-` if unknown."""
    if rate is None:
        return "-"
    if rate == 0 or rate >= 99.95:
        return f"{rate:,.0f}"
    return f"{rate:.2f}" if rate < 9.995 else f"{rate:.1f}"


def format_count(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The last `width` values as bars, the latest at the right; the largest has the tallest bar.

    Only zero has the lowest bar, so that small values differ from zero.
    """
    shown = values[-width:] if width > 0 else []
    bars = _ASCII if ascii_only else _BLOCKS
    largest = max(shown, default=0.0)
    return "".join(_bar(value, largest, bars) for value in shown).rjust(width)


def _bar(value: float, largest: float, bars: str) -> str:
    if value <= 0:
        return bars[0]
    return bars[max(1, round(value / largest * (len(bars) - 1)))]


def format_table(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> list[str]:
    """The rows as aligned lines; the first is the heading. `right` are right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths, right) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    cells = [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


# Smaller input is processed too fast for a progress bar.
BAR_FROM_BYTES = 4 << 20


def progress_bar(size_bytes: int | None) -> AbstractContextManager["Progress | None"]:
    """A progress bar on stderr. None if the input is small or stderr is not a terminal."""
    if size_bytes is None or size_bytes < BAR_FROM_BYTES or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console  # noqa: PLC0415 (slow to import, rarely needed)
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}", style="dim"),
        TimeRemainingColumn(compact=True),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=size_bytes)
    return bar
