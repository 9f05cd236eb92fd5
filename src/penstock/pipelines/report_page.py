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


def render_page(report: LakeReport, made_at: datetime) -> str:
    """The whole page."""
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
    """A row for each topic, after one of headings."""
    head = ["topic", "messages", "rejected", "bytes", "a second", "at most"]
    head += ["size p50", "p99", "largest"]
    if report.event_time:
        head += ["delay p50", "p99", "longest"]
    head += ["longest silence"]
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
    """Of the busiest step."""
    return max(moment.messages for moment in topic.intervals) / report.step_seconds


# A topic's section.


@dataclass(frozen=True, slots=True)
class _PlotSection:
    """A plot, what its lines are, and its table."""

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
        ("longest silence", _seconds(topic.longest_gap_seconds)),
    ]


def _throughput(topic: TopicReport, report: LakeReport) -> _PlotSection:
    step = report.step_seconds
    rates: list[float | None] = [moment.messages / step for moment in topic.intervals]
    series = [Series("messages a second", rates)]
    if topic.total.rejected:
        series.append(Series("rejected", [moment.rejected / step for moment in topic.intervals]))
    rows = [
        [
            _time(moment.start_seconds),
            *map(format_number, (moment.messages, moment.rejected)),
            format_rate(moment.messages / step),
            _bytes(moment.size_bytes),
        ]
        for moment in topic.intervals
    ]
    head = ["from", "messages", "rejected", "a second", "size"]
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
    delays = [moment.delays for moment in topic.intervals]
    series = [
        Series(name, [None if each is None else each[index] for each in delays])
        for index, name in enumerate(("p50", "p95", "p99"))
    ]
    rows = [
        [
            _time(moment.start_seconds),
            *map(_seconds, moment.delays[:4]),
            format_number(moment.delays.ahead),
        ]
        for moment in topic.intervals
        if moment.delays is not None
    ]
    head = ["from", "p50", "p95", "p99", "longest", "dated ahead"]
    ahead = topic.total.delays.ahead if topic.total.delays is not None else 0
    remark = (
        f"Left out: {format_number(ahead)} that are dated after they were published."
        if ahead
        else ""
    )
    title = "Delay: from when it happened until it was published"
    return _plot_section(title, topic, series, _seconds, head, rows, remark)


def _sizes(topic: TopicReport) -> _PlotSection:
    sizes = [moment.sizes for moment in topic.intervals]
    series = [
        Series(name, [None if each is None else each[index] for each in sizes])
        for index, name in enumerate(("p50", "p95", "p99"))
    ]
    rows = [
        [_time(moment.start_seconds), *map(_bytes, moment.sizes)]
        for moment in topic.intervals
        if moment.sizes is not None
    ]
    head = ["from", "p50", "p95", "p99", "largest"]
    return _plot_section("SizePercentiles of bodies", topic, series, _bytes, head, rows)


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


# Numbers and times, as they are read.


def _labels(intervals: Sequence[IntervalStats]) -> list[str]:
    """Times of one day without the day."""
    moments_at = [datetime.fromtimestamp(each.start_seconds, UTC) for each in intervals]
    is_one_day = moments_at[0].date() == moments_at[-1].date()
    return [f"{each:%H:%M:%S}" if is_one_day else f"{each:%m-%d %H:%M}" for each in moments_at]


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


HEIGHT = 190
"""Of all of it, in pixels, of which the lowest are for the times."""
PLOT_HEIGHT = 160

# Of the inner picture.
WIDTH_UNITS = 1000.0
TICKS = 4


def render_svg(plot: Plot) -> str:
    """The picture. Where the pointer rests, it says what is there."""
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
