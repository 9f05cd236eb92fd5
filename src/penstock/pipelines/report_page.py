"""A report as one HTML page, which needs nothing else, and as lines for a terminal. Pure.

The page is a template that escapes all it is given, but for the plots, which escape for themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from penstock import __version__
from penstock.pipelines.report import Moment, Report, TopicReport
from penstock.pipelines.svg_plot import Plot, Series, svg_of
from penstock.tools.figures import grouped, per_second

__all__ = ["page_of", "summary_rows"]


def page_of(report: Report, made_at: datetime) -> str:
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


def summary_rows(report: Report) -> list[list[str]]:
    """A row for each topic, after one of headings."""
    head = ["topic", "messages", "rejected", "bytes", "a second", "at most"]
    head += ["size p50", "p99", "largest"]
    if report.event_time:
        head += ["delay p50", "p99", "longest"]
    head += ["longest silence"]
    return [head, *(_summary(topic, report) for topic in report.topics)]


def _summary(topic: TopicReport, report: Report) -> list[str]:
    total, delays = topic.total, topic.total.delays
    assert total.sizes is not None
    row = [topic.topic, grouped(total.messages), grouped(total.rejected), _bytes(total.size_bytes)]
    row += [per_second(total.messages / max(topic.seconds, 1.0)), per_second(_peak(topic, report))]
    row += [_bytes(total.sizes.p50), _bytes(total.sizes.p99), _bytes(total.sizes.max)]
    if report.event_time:
        row += ["-"] * 3 if delays is None else [_seconds(delays[each]) for each in (0, 2, 3)]
    return [*row, _seconds(topic.silence_seconds)]


def _peak(topic: TopicReport, report: Report) -> float:
    """Of the busiest step."""
    return max(moment.messages for moment in topic.moments) / report.step_seconds


# A topic's section.


@dataclass(frozen=True, slots=True)
class _Figure:
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
    figures: Sequence[_Figure]


def _section(topic: TopicReport, report: Report) -> _Section:
    figures = [_throughput(topic, report)]
    if len(topic.by_node) > 1 and topic.total.by_node:
        figures.append(_nodes(topic, report))
    if topic.total.delays is not None:
        figures.append(_delays(topic))
    figures.append(_sizes(topic))
    return _Section(topic.topic, _facts(topic), figures)


def _facts(topic: TopicReport) -> list[tuple[str, str]]:
    nodes = ", ".join(f"{node}: {grouped(count)}" for node, count in sorted(topic.by_node.items()))
    return [
        ("messages", grouped(topic.total.messages)),
        ("rejected", grouped(topic.total.rejected)),
        ("first", _time(topic.first_ns / 1e9)),
        ("last", _time(topic.last_ns / 1e9)),
        ("by node", nodes),
        ("longest silence", _seconds(topic.silence_seconds)),
    ]


def _throughput(topic: TopicReport, report: Report) -> _Figure:
    step = report.step_seconds
    rates: list[float | None] = [moment.messages / step for moment in topic.moments]
    series = [Series("messages a second", rates)]
    if topic.total.rejected:
        series.append(Series("rejected", [moment.rejected / step for moment in topic.moments]))
    rows = [
        [
            _time(moment.start_seconds),
            *map(grouped, (moment.messages, moment.rejected)),
            per_second(moment.messages / step),
            _bytes(moment.size_bytes),
        ]
        for moment in topic.moments
    ]
    head = ["from", "messages", "rejected", "a second", "size"]
    return _figure("Throughput", topic, series, lambda rate: f"{per_second(rate)}/s", head, rows)


def _nodes(topic: TopicReport, report: Report) -> _Figure:
    step, nodes = report.step_seconds, sorted(topic.by_node)
    series = [
        Series(f"node {node}", [each.by_node.get(node, 0) / step for each in topic.moments])
        for node in nodes
    ]
    rows = [
        [_time(each.start_seconds), *(grouped(each.by_node.get(node, 0)) for node in nodes)]
        for each in topic.moments
    ]
    head = ["from", *(f"node {node}" for node in nodes)]
    return _figure("By node", topic, series, lambda rate: f"{per_second(rate)}/s", head, rows)


def _delays(topic: TopicReport) -> _Figure:
    delays = [moment.delays for moment in topic.moments]
    series = [
        Series(name, [None if each is None else each[index] for each in delays])
        for index, name in enumerate(("p50", "p95", "p99"))
    ]
    rows = [
        [
            _time(moment.start_seconds),
            *map(_seconds, moment.delays[:4]),
            grouped(moment.delays.ahead),
        ]
        for moment in topic.moments
        if moment.delays is not None
    ]
    head = ["from", "p50", "p95", "p99", "longest", "dated ahead"]
    ahead = topic.total.delays.ahead if topic.total.delays is not None else 0
    remark = (
        f"Left out: {grouped(ahead)} that are dated after they were published." if ahead else ""
    )
    title = "Delay: from when it happened until it was published"
    return _figure(title, topic, series, _seconds, head, rows, remark)


def _sizes(topic: TopicReport) -> _Figure:
    sizes = [moment.sizes for moment in topic.moments]
    series = [
        Series(name, [None if each is None else each[index] for each in sizes])
        for index, name in enumerate(("p50", "p95", "p99"))
    ]
    rows = [
        [_time(moment.start_seconds), *map(_bytes, moment.sizes)]
        for moment in topic.moments
        if moment.sizes is not None
    ]
    head = ["from", "p50", "p95", "p99", "largest"]
    return _figure("Sizes of bodies", topic, series, _bytes, head, rows)


def _figure(
    title: str,
    topic: TopicReport,
    series: Sequence[Series],
    unit: Callable[[float], str],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    remark: str = "",
) -> _Figure:
    labels = _labels(topic.moments)
    plot = Plot(title=f"{topic.topic}: {title}", labels=labels, series=series, unit=unit)
    names = [each.name for each in series]
    return _Figure(title, Markup(svg_of(plot)), names, head, rows, remark)  # noqa: S704


# Numbers and times, as they are read.


def _labels(moments: Sequence[Moment]) -> list[str]:
    """Times of one day without the day."""
    moments_at = [datetime.fromtimestamp(each.start_seconds, UTC) for each in moments]
    is_one_day = moments_at[0].date() == moments_at[-1].date()
    return [f"{each:%H:%M:%S}" if is_one_day else f"{each:%m-%d %H:%M}" for each in moments_at]


def _span(report: Report) -> str:
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
