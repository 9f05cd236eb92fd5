"""A report as a self-contained HTML page, and as rows for a terminal. Pure.

The template escapes every value except the plots, which escape their own labels. A plot is SVG
without scripts or fonts: the curves are stretched to the width of the page, the labels are not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import floor, log10

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from penstock import __version__
from penstock.pipelines.report import IntervalStats, LakeReport, TopicReport
from penstock.tools.display import format_number, format_rate

__all__ = ["Plot", "Series", "axis_ticks", "render_page", "render_svg", "summary_rows"]

HEIGHT = 190
"""Total height in pixels, including the labels of the time axis."""
PLOT_HEIGHT = 160

# Width of the coordinate system of the curves.
WIDTH_UNITS = 1000.0
TICKS = 4


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot, with a gap where a value is None."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines with a common time axis."""

    title: str
    labels: Sequence[str]
    """Time of each point."""
    series: Sequence[Series]
    unit: Callable[[float], str]
    """Formats a value."""


def render_page(report: LakeReport, made_at: datetime) -> str:
    """Render the report as HTML."""
    environment = Environment(
        loader=PackageLoader("penstock.pipelines"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    head, *rows = summary_rows(report)
    return environment.get_template("report.html").render(
        report=report,
        span=_span(report),
        step=_seconds(report.step_seconds),
        made_at=f"{made_at:%Y-%m-%d %H:%M:%S} UTC",
        version=__version__,
        summary_head=head,
        summary=rows,
        topics=[_section(topic, report) for topic in report.topics],
    )


def summary_rows(report: LakeReport) -> list[list[str]]:
    """A row of headings, then a row for each topic."""
    head = ["topic", "messages", "rejected", "bytes", "per second", "peak"]
    head += ["size p50", "p99", "max"]
    if report.event_time:
        head += ["delay p50", "p99", "max"]
    head += ["longest gap"]
    return [head, *(_summary(topic, report) for topic in report.topics)]


def _summary(topic: TopicReport, report: LakeReport) -> list[str]:
    total, delays = topic.total, topic.total.delays
    assert total.sizes is not None
    row = [
        topic.topic,
        format_number(total.messages),
        format_number(total.rejected),
        _bytes(total.size_bytes),
    ]
    row += [
        format_rate(total.messages / max(topic.seconds, 1.0)),
        format_rate(_peak(topic, report)),
    ]
    row += [_bytes(total.sizes.p50), _bytes(total.sizes.p99), _bytes(total.sizes.max)]
    if report.event_time:
        row += ["-"] * 3 if delays is None else [_seconds(delays[each]) for each in (0, 2, 3)]
    return [*row, _seconds(topic.longest_gap_seconds)]


def _peak(topic: TopicReport, report: LakeReport) -> float:
    """Messages per second in the busiest interval."""
    return max(each.messages for each in topic.intervals) / report.step_seconds


# The section of a topic.


@dataclass(frozen=True, slots=True)
class _PlotSection:
    """A plot with its legend and its table."""

    title: str
    svg: Markup
    names: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    facts: Sequence[tuple[str, str]]
    figures: Sequence[_PlotSection]


def _section(topic: TopicReport, report: LakeReport) -> _Section:
    figures = [_throughput(topic, report)]
    if len(topic.by_node) > 1 and topic.total.by_node:
        figures.append(_nodes(topic, report))
    if topic.total.delays is not None:
        figures.append(_delays(topic))
    figures.append(_sizes(topic))
    return _Section(topic.topic, _facts(topic), figures)


def _facts(topic: TopicReport) -> list[tuple[str, str]]:
    nodes = ", ".join(
        f"{node}: {format_number(count)}" for node, count in sorted(topic.by_node.items())
    )
    return [
        ("messages", format_number(topic.total.messages)),
        ("rejected", format_number(topic.total.rejected)),
        ("first", _time(topic.first_ns / 1e9)),
        ("last", _time(topic.last_ns / 1e9)),
        ("by node", nodes),
        ("longest gap", _seconds(topic.longest_gap_seconds)),
    ]


def _throughput(topic: TopicReport, report: LakeReport) -> _PlotSection:
    step = report.step_seconds
    rates: list[float | None] = [each.messages / step for each in topic.intervals]
    series = [Series("messages per second", rates)]
    if topic.total.rejected:
        series.append(Series("rejected", [each.rejected / step for each in topic.intervals]))
    rows = [
        [
            _time(each.start_seconds),
            *map(format_number, (each.messages, each.rejected)),
            format_rate(each.messages / step),
            _bytes(each.size_bytes),
        ]
        for each in topic.intervals
    ]
    head = ["from", "messages", "rejected", "per second", "size"]
    return _plot_section(
        "Throughput", topic, series, lambda rate: f"{format_rate(rate)}/s", head, rows
    )


def _nodes(topic: TopicReport, report: LakeReport) -> _PlotSection:
    step, nodes = report.step_seconds, sorted(topic.by_node)
    series = [
        Series(f"node {node}", [each.by_node.get(node, 0) / step for each in topic.intervals])
        for node in nodes
    ]
    rows = [
        [_time(each.start_seconds), *(format_number(each.by_node.get(node, 0)) for node in nodes)]
        for each in topic.intervals
    ]
    head = ["from", *(f"node {node}" for node in nodes)]
    return _plot_section(
        "By node", topic, series, lambda rate: f"{format_rate(rate)}/s", head, rows
    )


def _delays(topic: TopicReport) -> _PlotSection:
    delays = [each.delays for each in topic.intervals]
    series = [
        Series(name, [None if each is None else each[index] for each in delays])
        for index, name in enumerate(("p50", "p95", "p99"))
    ]
    rows = [
        [
            _time(each.start_seconds),
            *map(_seconds, each.delays[:4]),
            format_number(each.delays.ahead),
        ]
        for each in topic.intervals
        if each.delays is not None
    ]
    head = ["from", "p50", "p95", "p99", "max", "in the future"]
    ahead = topic.total.delays.ahead if topic.total.delays is not None else 0
    remark = (
        f"Excluded: {format_number(ahead)} events dated after their publication." if ahead else ""
    )
    title = "Delay from event to publication"
    return _plot_section(title, topic, series, _seconds, head, rows, remark)


def _sizes(topic: TopicReport) -> _PlotSection:
    sizes = [each.sizes for each in topic.intervals]
    series = [
        Series(name, [None if each is None else each[index] for each in sizes])
        for index, name in enumerate(("p50", "p95", "p99"))
    ]
    rows = [
        [_time(each.start_seconds), *map(_bytes, each.sizes)]
        for each in topic.intervals
        if each.sizes is not None
    ]
    head = ["from", "p50", "p95", "p99", "max"]
    return _plot_section("Body sizes", topic, series, _bytes, head, rows)


def _plot_section(
    title: str,
    topic: TopicReport,
    series: Sequence[Series],
    unit: Callable[[float], str],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    remark: str = "",
) -> _PlotSection:
    labels = _labels(topic.intervals)
    plot = Plot(title=f"{topic.topic}: {title}", labels=labels, series=series, unit=unit)
    names = [each.name for each in series]
    return _PlotSection(title, Markup(render_svg(plot)), names, head, rows, remark)  # noqa: S704


# Formatting.


def _labels(intervals: Sequence[IntervalStats]) -> list[str]:
    """Labels of the time axis; without the date if all times are on one day."""
    times = [datetime.fromtimestamp(each.start_seconds, UTC) for each in intervals]
    is_one_day = times[0].date() == times[-1].date()
    return [f"{each:%H:%M:%S}" if is_one_day else f"{each:%m-%d %H:%M}" for each in times]


def _span(report: LakeReport) -> str:
    first = min(topic.first_ns for topic in report.topics)
    last = max(topic.last_ns for topic in report.topics)
    return f"{_time(first / 1e9)} to {_time(last / 1e9)} UTC"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%d %H:%M:%S}"


def _seconds(seconds: float) -> str:
    """`3.2 ms`, `1.5 s`, `2.0 min`, `3.5 h`."""
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"


def _bytes(size: float) -> str:
    """`180 B`, `1.2 kB`, `3.4 MB`."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


# Plots.


def render_svg(plot: Plot) -> str:
    """Render a plot, with tooltips that show the values."""
    highest = max((value for each in plot.series for value in each.values if value), default=0.0)
    ticks = axis_ticks(highest)
    top = ticks[-1]
    curves = [_curve(each, number, top) for number, each in enumerate(plot.series, start=1)]
    return (
        f'<svg class="plot" role="img" aria-label="{escape(plot.title)}" width="100%"'
        f' height="{HEIGHT}">{_grid(ticks, plot.unit)}'
        f'<svg width="100%" height="{PLOT_HEIGHT}" viewBox="0 0 {WIDTH_UNITS:g} {PLOT_HEIGHT}"'
        f' preserveAspectRatio="none">{"".join(curves)}{_hints(plot)}</svg>'
        f"{_times(plot.labels)}</svg>"
    )


def axis_ticks(highest: float) -> list[float]:
    """Round numbers from 0 to at least `highest`."""
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
    """The line of a series; for the first one, also the area below it."""
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
    """The parts of a line between its gaps; a single point becomes a short dash."""
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
    """Horizontal grid lines with their values."""
    parts = []
    for tick in ticks:
        y = _y(tick, ticks[-1])
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        if tick:
            parts.append(f'<text x="2" y="{y + 13:.1f}">{escape(unit(tick))}</text>')
    return "".join(parts)


def _hints(plot: Plot) -> str:
    """An invisible column for each point, with a tooltip."""
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
    """Labels of the time axis: first, last, middle and, on wide screens, the quarters."""
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
    """Leaves a margin of two pixels at the top, so that the line is not clipped."""
    return PLOT_HEIGHT - (PLOT_HEIGHT - 2) * value / top
