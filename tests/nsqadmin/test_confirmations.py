"""Texts of confirmations."""

import pytest

from penstock.nsqadmin.confirmations import position_text


@pytest.mark.parametrize(
    ("position", "text"),
    [
        ("earliest", "the earliest stored message"),
        ("latest", "the end of the log"),
        (" 15m ", "15m ago"),
        ("1794784543198300", "sequence number 1794784543198300"),
        ("2026-11-15T08:00:00Z", "2026-11-15T08:00:00Z"),
    ],
)
def test_positions_are_described_in_words(position: str, text: str) -> None:
    assert text == position_text(position)
