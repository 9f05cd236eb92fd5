"""Numbers as bars."""

import pytest

from penstock.tools.sparkline import sparkline


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 3, "   "),
        ([0, 0], 4, "  ▁▁"),
        ([1, 2, 3, 4, 5, 6, 7], 7, "▂▃▄▅▆▇█"),
        ([0.001, 1000], 2, "▂█"),  # a trickle is not nothing
        ([9, 9, 0, 5], 2, "▁█"),  # only what is shown counts
        ([1, 2], 0, ""),
    ],
)
def test_the_largest_has_the_tallest_bar(values: list[float], width: int, expected: str) -> None:
    assert expected == sparkline(values, width)


def test_a_terminal_without_unicode_has_bars_too() -> None:
    assert "_.#" == sparkline([0, 0.1, 1], 3, ascii_only=True)
