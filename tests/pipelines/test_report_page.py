"""The page of a report, its summary and its plots."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from penstock.pipelines.report import (
    DelayPercentiles,
    IntervalStats,
    LakeReport,
    SizePercentiles,
    TopicReport,
)
from penstock.pipelines.report_page import (
    Plot,
    Series,
    axis_ticks,
    render_page,
    render_svg,
    summary_rows,
)

MADE_AT = datetime(2026, 11, 15, 9, tzinfo=UTC)
START = 1_794_729_600  # 2026-11-15T08:00:00Z


def interval(second: int, messages: int) -> IntervalStats:
    delays = DelayPercentiles(0.5, 1.0, 61.0, 3700.0, 2)
    sizes, by_node = SizePercentiles(180, 200, 250, 1200), {1: messages - 10, 2: 10}
    return IntervalStats(START + second, messages, messages * 180, 1, sizes, delays, by_node)


def report(lake: str = "lake", event_time: str = "value.ts") -> LakeReport:
    topic = TopicReport(
        topic="orders",
        first_ns=START * 10**9,
        last_ns=(START + 30) * 10**9,
        total=interval(0, 6000),
        intervals=[
            interval(0, 1000),
            IntervalStats(START + 10, 0, 0, 0, None, None, {}),
            interval(20, 5000),
        ],
        by_node={1: 4000, 2: 2000},
        longest_gap_seconds=10.25,
    )
    return LakeReport(lake=lake, step_seconds=10, topics=[topic], event_time=event_time)


class Seen(HTMLParser):
    """Parses a page: tags, unclosed elements, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_each_figure_has_a_plot_and_a_table() -> None:
    seen = Seen(render_page(report(), MADE_AT))

    assert [] == seen.open
    assert 4 == seen.tags.count("figure")
    assert 4 == sum(attribute == ("class", "plot") for attribute in seen.attributes)
    assert 5 == seen.tags.count("table")
    assert "5,000" in seen.words
    assert "4,990" in seen.words
    assert "Excluded: 2 events dated after their publication." in seen.words


def test_the_page_has_no_external_resources() -> None:
    seen = Seen(render_page(report(), MADE_AT))

    names = {name for name, _ in seen.attributes}
    assert not names & {"src", "href", "style"}
    assert not [name for name in names if name.startswith("on")]
    assert not {"script", "link", "img"} & set(seen.tags)


def test_values_are_escaped() -> None:
    nasty = '<script>alert("1")</script>&amp;'
    seen = Seen(render_page(report(lake=nasty, event_time=nasty), MADE_AT))

    assert "script" not in seen.tags
    assert 3 == seen.words.count(nasty)  # the title, the heading and the footer


def test_the_summary_formats_numbers() -> None:
    head, orders = summary_rows(report())

    assert len(head) == len(orders)
    assert ["orders", "6,000", "1", "1.08 MB", "200", "500", "180 B", "250 B", "1.2 kB"] == orders[
        :9
    ]
    assert ["500 ms", "1.02 min", "1.03 h", "10.2 s"] == orders[9:]


def test_without_event_time_there_are_no_delays() -> None:
    assert "delay p50" not in summary_rows(report(event_time=""))[0]


# Plots.


def drawn(*values: float | None, label: str = "08:00") -> ET.Element:
    plot = Plot(
        title="rates",
        labels=[label] * len(values),
        series=[Series("a second", values)],
        unit=lambda value: f"{value:g}/s",
    )
    return ET.fromstring(render_svg(plot))


def lines(picture: ET.Element) -> list[str]:
    return [path.attrib["d"] for path in picture.iter("path") if "line" in path.attrib["class"]]


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (0, [0, 1]),
        (4, [0, 1, 2, 3, 4]),
        (3010, [0, 1000, 2000, 3000, 4000]),
        (0.07, [0, 0.02, 0.04, 0.06, 0.08]),
        (9.9, [0, 2.5, 5, 7.5, 10]),
    ],
)
def test_ticks_are_round_and_reach_the_highest(highest: float, ticks: list[float]) -> None:
    assert pytest.approx(ticks) == axis_ticks(highest)


def test_a_line_has_gaps_where_values_are_missing() -> None:
    first, second = lines(drawn(0, 4, None, 2, 0))

    assert "M0.0 160.0L250.0 2.0" == first
    assert "M750.0 81.0L1000.0 160.0" == second


def test_isolated_points_are_visible() -> None:
    assert 2 == len(lines(drawn(1, None, 2)))
    assert 1 == len(lines(drawn(1)))


def test_tooltips_have_escaped_values() -> None:
    titles = [title.text for title in drawn(1.5, label="<b> & co").iter("title")]

    assert ["<b> & co\na second 1.5/s"] == titles


def test_a_plot_without_values_is_empty() -> None:
    assert [] == lines(drawn(None, None))
    assert not re.search("nan|inf", render_svg(Plot(title="", labels=[], series=[], unit=str)))
