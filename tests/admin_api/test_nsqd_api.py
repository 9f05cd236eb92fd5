"""Places in a log as users write them, and how far a log reaches."""

import time

import pytest

from penstock.admin_api.nsqd_api import LogExtent, Segment, absolute_place, is_seq, refusal
from penstock.common.errors import ConfigError


@pytest.mark.parametrize("place", ["earliest", "latest", "12345", "2026-11-15T08:00:00.5+01:00"])
def test_what_nsqd_knows_is_left_to_nsqd(place: str) -> None:
    assert place == absolute_place(place)


def test_a_duration_means_so_long_ago() -> None:
    before_ns = time.time_ns()
    place = absolute_place("15m")

    assert not is_seq(place)
    assert 0 <= int(place) - (before_ns - 900 * 10**9) < 10**9


def test_longer_ago_than_there_are_times_is_still_a_time() -> None:
    assert not is_seq(absolute_place("500000h"))


@pytest.mark.parametrize("text", ["", "yesterday", "1.5", "-"])
def test_what_can_be_neither_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no place in a log"):
        absolute_place(text)


def test_messages_are_counted_without_the_gaps() -> None:
    log = LogExtent(10, 40, [Segment(10, 20), Segment(30, 40)])

    assert [20, 15, 10, 10, 3, 0] == [log.count_from(seq) for seq in (10, 15, 20, 25, 37, 40)]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b'{"message":"TOPIC_NOT_FOUND"}', "n:1: there is no topic t"),
        (410, b'{"message":"SEQ_GONE","first_seq":7}', "n:1: that message is gone; the next one"),
        (404, b'{"message":"CHANNEL_NOT_FOUND"}', "n:1: there is no channel ? of t"),
        (404, b'{"message":"NOT_FOUND"}', "n:1: this nsqd keeps no history"),
        (500, b'{"message":"INTERNAL_ERROR"}', "n:1: it answered 500 'INTERNAL_ERROR'"),
        (502, b"<html>", "n:1: it answered 502 '<html>'"),
        (502, b"[1]", "n:1: it answered 502 '[1]'"),
        (502, b'{"x":' + b"[" * 100_000, "n:1: it answered 502 '{"),
    ],
)
def test_a_refusal_is_told_in_words(status: int, body: bytes, expected: str) -> None:
    assert str(refusal("n:1", status, body, {"topic": "t"})).startswith(expected)
