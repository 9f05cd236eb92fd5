"""Plots: round numbers at the side, gaps where nothing is known, and sound markup."""

import re
from xml.etree import ElementTree as ET

import pytest

from penstock.pipelines.svg_plot import Plot, Series, svg_of, ticks_up_to


def drawn(*values: float | None, label: str = "08:00") -> ET.Element:
    plot = Plot(
        title="rates",
        labels=[label] * len(values),
        series=[Series("a second", values)],
        unit=lambda value: f"{value:g}/s",
    )
    return ET.fromstring(svg_of(plot))


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
    assert pytest.approx(ticks) == ticks_up_to(highest)


def test_a_line_goes_through_its_points_and_stops_at_a_gap() -> None:
    first, second = lines(drawn(0, 4, None, 2, 0))

    assert "M0.0 160.0L250.0 2.0" == first
    assert "M750.0 81.0L1000.0 160.0" == second


def test_a_point_between_gaps_is_seen_and_so_is_a_single_one() -> None:
    assert 2 == len(lines(drawn(1, None, 2)))
    assert 1 == len(lines(drawn(1)))


def test_each_point_says_what_it_is_and_text_is_escaped() -> None:
    titles = [title.text for title in drawn(1.5, label="<b> & co").iter("title")]

    assert ["<b> & co\na second 1.5/s"] == titles


def test_nothing_at_all_is_an_empty_plot() -> None:
    assert [] == lines(drawn(None, None))
    assert not re.search("nan|inf", svg_of(Plot(title="", labels=[], series=[], unit=str)))
