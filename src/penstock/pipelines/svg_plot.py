"""Lines over time as SVG, for a page that needs nothing else: no script, no font, no network. Pure.

The drawing is stretched to whatever width there is, and the words on it are not: the curves are in
an inner picture that loses its proportions, the labels in the outer one, at percentages. Colours
are the page's: a series is of class `series-1` and so on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

__all__ = ["Plot", "Series", "svg_of", "ticks_up_to"]

HEIGHT = 190
"""Of all of it, in pixels, of which the lowest are for the times."""
PLOT_HEIGHT = 160

# Of the inner picture.
WIDTH_UNITS = 1000.0
TICKS = 4


@dataclass(frozen=True, slots=True)
class Series:
    """A line; where a value is None, it has a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines that have their times in common."""

    title: str
    labels: Sequence[str]
    """Of each point: its time."""
    series: Sequence[Series]
    unit: Callable[[float], str]
    """A value, as it is read."""


def svg_of(plot: Plot) -> str:
    """The picture. Where the pointer rests, it says what is there."""
    highest = max((value for each in plot.series for value in each.values if value), default=0.0)
    ticks = ticks_up_to(highest)
    top = ticks[-1]
    curves = [_curve(each, number, top) for number, each in enumerate(plot.series, start=1)]
    return (
        f'<svg class="plot" role="img" aria-label="{escape(plot.title)}" width="100%"'
        f' height="{HEIGHT}">{_grid(ticks, plot.unit)}'
        f'<svg width="100%" height="{PLOT_HEIGHT}" viewBox="0 0 {WIDTH_UNITS:g} {PLOT_HEIGHT}"'
        f' preserveAspectRatio="none">{"".join(curves)}{_hints(plot)}</svg>'
        f"{_times(plot.labels)}</svg>"
    )


def ticks_up_to(highest: float) -> list[float]:
    """Round numbers from 0 to the first that is not below."""
    if highest <= 0:
        return [0.0, 1.0]
    magnitude = 10.0 ** floor(log10(highest / TICKS))
    step = next(
        factor * magnitude
        for factor in (1, 2, 2.5, 5, 10)
        if factor * magnitude * TICKS >= highest * 0.999
    )
    count = next(n for n in range(1, TICKS + 1) if n * step >= highest * 0.999)
    return [n * step for n in range(count + 1)]


def _curve(series: Series, number: int, top: float) -> str:
    """The line, and for the first of them what is below it."""
    points = [
        None if value is None else (_x(index, len(series.values)), _y(value, top))
        for index, value in enumerate(series.values)
    ]
    drawn = "".join(
        f'<path class="line series-{number}" d="{_path(run)}"/>' for run in _runs(points)
    )
    if number > 1:
        return drawn
    below = "".join(
        f'<path class="area" d="{_path(run)}L{run[-1][0]:.1f} {PLOT_HEIGHT}'
        f'L{run[0][0]:.1f} {PLOT_HEIGHT}Z"/>'
        for run in _runs(points)
    )
    return below + drawn


def _runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """The parts of a line between its gaps; a point that is alone is a short line."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run if len(run) > 1 else _dash(run[0]) for run in runs if run]


def _dash(point: tuple[float, float]) -> list[tuple[float, float]]:
    x, y = point
    return [(max(x - 3, 0.0), y), (min(x + 3, WIDTH_UNITS), y)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _grid(ticks: Sequence[float], unit: Callable[[float], str]) -> str:
    """A line and its value, which stands on it."""
    parts = []
    for tick in ticks:
        y = _y(tick, ticks[-1])
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        if tick:
            parts.append(f'<text x="2" y="{y + 13:.1f}">{escape(unit(tick))}</text>')
    return "".join(parts)


def _hints(plot: Plot) -> str:
    """A column for each point, which cannot be seen but pointed at."""
    width = WIDTH_UNITS / max(len(plot.labels), 1)
    return "".join(
        f'<rect class="hint" x="{index * width:.1f}" y="0" width="{width:.1f}"'
        f' height="{PLOT_HEIGHT}"><title>{escape(_hint(plot, index))}</title></rect>'
        for index in range(len(plot.labels))
    )


def _hint(plot: Plot, index: int) -> str:
    values = [
        f"{each.name} {plot.unit(value)}"
        for each in plot.series
        if (value := each.values[index]) is not None
    ]
    return "\n".join([plot.labels[index], *values])


def _times(labels: Sequence[str]) -> str:
    """The first, the last, and some between them; a phone has no room for all of those."""
    if not labels:
        return ""
    last = len(labels) - 1
    marks = {last // 4: ("middle", "time wide"), last * 3 // 4: ("middle", "time wide")}
    marks |= {last // 2: ("middle", "time"), 0: ("start", "time"), last: ("end", "time")}
    return "".join(
        f'<text class="{kind}" x="{_x(index, len(labels)) / WIDTH_UNITS:.2%}" y="{HEIGHT - 10}"'
        f' text-anchor="{anchor}">{escape(labels[index])}</text>'
        for index, (anchor, kind) in marks.items()
    )


def _x(index: int, count: int) -> float:
    return WIDTH_UNITS * index / (count - 1) if count > 1 else WIDTH_UNITS / 2


def _y(value: float, top: float) -> float:
    """The highest is a little below the edge, or its line would be cut in half."""
    return PLOT_HEIGHT - (PLOT_HEIGHT - 2) * value / top
