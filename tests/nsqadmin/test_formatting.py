"""Formats of message bodies, numbers, sizes and times."""

import pytest

from penstock.nsqadmin.formatting import (
    SHOWN_BYTES_MAX,
    ago,
    bytes_text,
    compact,
    format_body,
    rate,
    sparkline_points,
)


@pytest.mark.parametrize(
    ("body", "base64", "kind", "text"),
    [
        ('{"a":1.10,"b":[]}', None, "json", '{\n  "a": 1.10,\n  "b": []\n}'),
        ('{"n":123456789012345678901}', None, "json", '{\n  "n": 123456789012345678901\n}'),
        ("{not json", None, "text", "{not json"),
        ("42", None, "text", "42"),
        ("line\nline", None, "text", "line\nline"),
        ("<script>", None, "text", "<script>"),
        ("", None, "empty", ""),
        ("a\x00b", None, "hex", "00000000  61 00 62" + " " * 41 + "a.b"),
        (None, "//4=", "hex", "00000000  ff fe" + " " * 44 + ".."),
        (None, "not base64!", "hex", None),
    ],
)
def test_a_body_is_formatted_by_its_content(
    body: str | None, base64: str | None, kind: str, text: str | None
) -> None:
    found = format_body(body, base64)

    assert kind == found.kind
    assert text in (None, found.text)
    assert not found.is_cut


def test_only_the_beginning_of_a_large_body_is_shown() -> None:
    found = format_body("x" * (SHOWN_BYTES_MAX + 1), None)

    assert (SHOWN_BYTES_MAX, True) == (len(found.text), found.is_cut)
    assert SHOWN_BYTES_MAX + 1 == found.size_bytes


def test_deeply_nested_json_is_shown_as_text() -> None:
    assert "text" == format_body("[" * 5000, None).kind


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_999, "1000k"),
        (4_560_000, "4.56M"),
        (7_000_000_000, "7B"),
    ],
)
def test_counts_have_at_most_five_characters(count: int, text: str) -> None:
    assert text == compact(count)


@pytest.mark.parametrize(
    ("per_second", "text"), [(0, "0"), (0.04, "0.0"), (2.25, "2.2"), (9.96, "10"), (81234, "81.2k")]
)
def test_rates_below_ten_have_a_decimal(per_second: float, text: str) -> None:
    assert text == rate(per_second)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (61, "1m 1s"), (3600, "1h"), (90_061, "1d 1h"), (-5, "0s")]
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert text == ago(seconds)


def test_sizes_have_a_unit() -> None:
    assert ["0 B", "999 B", "1.5 kB", "2 TB"] == [bytes_text(size) for size in (0, 999, 1500, 2e12)]


def test_a_sparkline_is_scaled_to_its_highest_value() -> None:
    assert "0.0,20.5 48.0,1.5 96.0,11.0" == sparkline_points([0, 10, 5])
    assert "" == sparkline_points([1])
