"""Numbers and sparklines as text."""

import pytest

from penstock.tools.display import format_count, format_rate, sparkline


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (None, "-"),
        (0, "0"),
        (0.25, "0.25"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (1234567.8, "1,234,568"),
    ],
)
def test_a_rate_has_three_digits_or_no_fraction(rate: float | None, expected: str) -> None:
    assert expected == format_rate(rate)


def test_the_plural_has_an_s() -> None:
    assert ("0 nodes", "1 node", "1,000 nodes") == tuple(
        format_count(number, "node") for number in (0, 1, 1000)
    )


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 3, "   "),
        ([0, 0], 4, "  ▁▁"),
        ([1, 2, 3, 4, 5, 6, 7], 7, "▂▃▄▅▆▇█"),
        ([0.001, 1000], 2, "▂█"),  # a small value is visible
        ([9, 9, 0, 5], 2, "▁█"),  # only shown values count
        ([1, 2], 0, ""),
    ],
)
def test_the_largest_has_the_tallest_bar(values: list[float], width: int, expected: str) -> None:
    assert expected == sparkline(values, width)


def test_ascii_bars_for_terminals_without_unicode() -> None:
    assert "_.#" == sparkline([0, 0.1, 1], 3, ascii_only=True)
