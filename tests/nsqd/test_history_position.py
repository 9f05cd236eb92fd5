"""Positions in a log as users write them."""

import pytest
from tests.broker.fakes import ReplicatedHost

from penstock.common.clock import SECOND_NS
from penstock.nsqd.history_position import (
    EARLIEST,
    LATEST,
    OffsetAheadError,
    Position,
    find_seq,
    parse_position,
)

# 2026-11-15T10:00:00Z
TEN_NS = 1_794_736_800_000_000_000


def time(time_ns: int) -> Position:
    return Position("time", time_ns)


def seq(number: int) -> Position:
    return Position("seq", number)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("0", seq(0)),
        ("1794736800000000", seq(1_794_736_800_000_000)),
        (str(2**54 - 1), seq(2**54 - 1)),
        ("9f86d081:1794736800000000", Position("seq", 1_794_736_800_000_000, "9f86d081")),
        ("0" * 32 + ":0", Position("seq", 0, "0" * 32)),
        ("12345678:7", Position("seq", 7, "12345678")),
        (str(2**54), time(2**54)),
        (str(2**63 - 1), time(2**63 - 1)),
        ("1970-01-01T00:00:00Z", time(0)),
        ("2026-11-15T10:00:00Z", time(TEN_NS)),
        ("2026-11-15t10:00:00z", time(TEN_NS)),
        ("2026-11-15 10:00:00Z", time(TEN_NS)),
        ("2026-11-15T11:30:00+01:30", time(TEN_NS)),
        ("2026-11-15T11:30:00 01:30", time(TEN_NS)),  # an unescaped `+`
        ("2026-11-15T04:00:00-06:00", time(TEN_NS)),
        ("2026-11-15T10:00:00.5Z", time(TEN_NS + 500_000_000)),
        ("2026-11-15T10:00:00.123456789Z", time(TEN_NS + 123_456_789)),
        ("2026-11-15T10:00:00.1234567891Z", time(TEN_NS + 123_456_789)),
        ("2026-11-15T10:00:00.000000001+00:00", time(TEN_NS + 1)),
    ],
)
def test_a_position_is_parsed(text: str, expected: Position) -> None:
    assert expected == parse_position(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "Latest",
        "-1",
        "+1",
        "1.5",
        "1e15",
        "0x10",
        " 1",
        "1_000",
        "٣",
        str(2**63),
        "9" * 20,
        "9f86d08:1",
        "0" * 33 + ":1",
        "9F86D081:1",
        "9f86d081:",
        "9f86d081:latest",
        "9f86d081: 1",
        f"9f86d081:{2**54}",
        "9f86d081:1:1",
        ":1",
        "2026-11-15",
        "2026-11-15T10:00:00",
        "2026-11-15T10:00Z",
        "2026-11-15T24:00:00Z",
        "2026-11-15T10:00:60Z",
        "2026-02-30T10:00:00Z",
        "2026-11-15T10:00:00+24:00",
        "2026-11-15T10:00:00+01:60",
        "2026-11-15T10:00:00.Z",
        "1969-12-31T23:59:59Z",
        "2300-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-11-15T10:00:00Z",
    ],
)
def test_invalid_positions_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the text depends on the invalid part)
        parse_position(text)


class TestReplicatedLog:
    def test_messages_that_are_not_confirmed_do_not_exist(self) -> None:
        host = ReplicatedHost()
        times = []
        for body in "abc":
            host.clock.advance(SECOND_NS)
            times.append(host.clock.wall_ns())
            host.publish("t", body)
        host.confirm(1)
        log = host.log
        first = log.first_seq

        assert first == find_seq(log, EARLIEST)
        assert first + 1 == find_seq(log, LATEST)
        assert first + 1 == find_seq(log, seq(first + 1))
        assert [first, first + 1, first + 1] == [find_seq(log, time(each)) for each in times]
        with pytest.raises(OffsetAheadError) as raised:
            find_seq(log, seq(first + 2))
        assert first + 1 == raised.value.next_seq

    def test_positions_of_an_earlier_run_stay_valid(self) -> None:
        host = ReplicatedHost()
        host.publish("t", "a", "b")
        host.confirm()
        end = host.log.next_seq
        host.restart()
        host.publish("t", "c")
        log = host.log

        assert log.first_seq == log.high_watermark
        assert end == find_seq(log, LATEST)
        assert end == find_seq(log, seq(end))
        with pytest.raises(OffsetAheadError):
            find_seq(log, seq(end + 1))
