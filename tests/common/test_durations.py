import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5ns", 5),
        ("250us", 250_000),
        ("250µs", 250_000),
        ("250μs", 250_000),
        ("1h2m3s4ms", 3_723_004_000_000),
        ("1.5s", 1_500_000_000),
        ("0.1s", 100_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("-1m", -60_000_000_000),
        ("+1m", 60_000_000_000),
        ("3s2h", 7_203_000_000_000),
        ("0.3333333333333333333h", 1_199_999_999_999),
        ("9223372036854775807ns", 2**63 - 1),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, expected_ns: int) -> None:
    assert expected_ns == parse_duration(text)


NOT_DURATIONS = "|-|+|3|1|s|.s|-.s|1x|1 s| 1s|1s |1s2|1S|--1s|1_0s|1e3s|9223372036854775808ns"


@pytest.mark.parametrize("text", [*NOT_DURATIONS.split("|"), "\N{ARABIC-INDIC DIGIT ONE}s"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration_ns", "expected"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (250_000_000, "250ms"),
        (1_000_000_000, "1s"),
        (27_397_097_726, "27.397097726s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (3_723_500_000_000, "1h2m3.5s"),
        (-90_000_000_000, "-1m30s"),
    ],
)
def test_durations_are_written_as_go_writes_them(duration_ns: int, expected: str) -> None:
    assert expected == format_duration(duration_ns)


@given(st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1))
def test_written_values_read_back_the_same(duration_ns: int) -> None:
    assert duration_ns == parse_duration(format_duration(duration_ns))
