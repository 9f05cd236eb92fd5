"""The live view of running queries: a table on a terminal, a line every few seconds in a pipe.

    with showing(console, "archive") as show:
        show([meter.figures(now) for meter in meters])

Goes to stderr, where it is in nobody's way.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.pipelines.progress import Figures
from penstock.tools.figures import grouped, per_second

__all__ = ["Show", "in_one_line", "showing", "table_of"]

# Between two lines in a pipe.
LINE_SECONDS = 5.0

BAR_WIDTH = 20

Show = Callable[[Sequence[Figures]], None]


@contextmanager
def showing(title: str) -> Iterator[Show]:
    """A function that shows the figures of all queries whenever it is called."""
    console = Console(stderr=True)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda figures: live.update(table_of(title, figures), refresh=True)
    else:
        yield _Lines()


class _Lines:
    """Calm: one line a query, and only when there is something new to say."""

    def __init__(self) -> None:
        self._next_at = time.monotonic() + LINE_SECONDS
        self._last: dict[str, str] = {}

    def __call__(self, figures: Sequence[Figures]) -> None:
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + LINE_SECONDS
        for each in figures:
            line = in_one_line(each)
            if self._last.get(each.name) != line:
                self._last[each.name] = line
                print(line, file=sys.stderr, flush=True)  # noqa: T201


def in_one_line(figures: Figures) -> str:
    """`orders: 120,000 messages, 35,120/s, batch 1.2 s, behind 4,000 (1: 4,000), 12 s left`."""
    parts = [
        f"{figures.name}: {grouped(figures.rows)} messages",
        f"{per_second(figures.rows_per_second)}/s",
    ]
    if figures.batch_seconds is not None:
        parts.append(f"batch {figures.batch_seconds:.1f} s")
    parts += [f"{grouped(count)} {name}" for name, count in figures.notes.items() if count]
    if figures.lag:
        parts.append(f"behind {_lag(figures)}")
    if figures.left is not None:
        parts.append(f"{duration(figures.seconds_left)} left")
    return ", ".join(parts)


def table_of(title: str, figures: Sequence[Figures]) -> Table:
    """For a terminal."""
    names = list(dict.fromkeys(name for each in figures for name in each.notes))
    has_end = any(each.left is not None for each in figures)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for heading in ("messages", "in/s", "batch", *names, "behind"):
        table.add_column(heading, justify="right")
    if has_end:
        table.add_column("done", width=BAR_WIDTH)
        table.add_column("")
        table.add_column("left", justify="right")
    table.add_column("by node", style="dim")
    for each in figures:
        cells: list[RenderableType] = [
            Text(each.name),
            grouped(each.rows),
            per_second(each.rows_per_second),
            "-" if each.batch_seconds is None else f"{each.batch_seconds:.1f} s",
            *(grouped(each.notes.get(name, 0)) for name in names),
            grouped(each.behind),
        ]
        if has_end:
            bar = ProgressBar(1.0, each.fraction or 0.0, width=BAR_WIDTH)
            cells += [bar, _percent(each.fraction), duration(each.seconds_left)]
        table.add_row(*cells, Text(_by_node(each)))
    return table


def duration(seconds: float | None) -> str:
    """`8 s`, `2 min 05 s`, `3 h 20 min`; `-` if it is not known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.0%}"


def _lag(figures: Figures) -> str:
    by_node = f" ({_by_node(figures)})" if figures.behind and len(figures.lag) > 1 else ""
    return grouped(figures.behind) + by_node


def _by_node(figures: Figures) -> str:
    return "  ".join(f"{node}: {grouped(count)}" for node, count in figures.lag.items())
