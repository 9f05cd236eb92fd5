"""Positions in a log as users write them."""

import time

import pytest

from penstock.admin_api.seeking import absolute_position, format_position, is_seq, split_position
from penstock.common.errors import ConfigError


@pytest.mark.parametrize(
    "position",
    [
        "earliest",
        "latest",
        "12345",
        "9f86d081:12345",
        f"{'a' * 32}:12345",
        "2026-11-15T08:00:00.5+01:00",
    ],
)
def test_positions_that_nsqd_knows_are_unchanged(position: str) -> None:
    assert position == absolute_position(position)


def test_a_duration_means_that_long_ago() -> None:
    before_ns = time.time_ns()
    position = absolute_position("15m")

    assert not is_seq(position)
    assert 0 <= int(position) - (before_ns - 900 * 10**9) < 10**9


def test_a_duration_before_the_epoch_is_still_a_time() -> None:
    assert not is_seq(absolute_position("500000h"))


@pytest.mark.parametrize("text", ["", "yesterday", "1.5", "-", "9f86d08:1", "9f86d081:"])
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a position in the log"):
        absolute_position(text)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("9f86d081:12345", ("9f86d081", "12345")),
        ("12345", ("", "12345")),
        ("latest", ("", "latest")),
        ("2026-11-15T08:00:00Z", ("", "2026-11-15T08:00:00Z")),
    ],
)
def test_a_position_is_split_into_log_id_and_rest(position: str, expected: tuple[str, str]) -> None:
    assert expected == split_position(position)


def test_a_position_is_shown_with_the_first_digits_of_the_log_id() -> None:
    assert "9f86d081:7" == format_position("9f86d081884c7d659a2feaa0c55ad015", 7)
    assert "7" == format_position("", 7)
