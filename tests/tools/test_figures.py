"""Numbers as people read them."""

import pytest

from penstock.tools.figures import counted, per_second


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
    assert expected == per_second(rate)


def test_one_is_not_many() -> None:
    assert ("0 nodes", "1 node", "1,000 nodes") == tuple(
        counted(number, "node") for number in (0, 1, 1000)
    )
