"""Bytes to records, however they arrive."""

import pytest

from penstock.common.errors import Error
from penstock.tools import records
from penstock.tools.records import RecordSplitter

CASES = [
    (b"", []),
    (b"\n\n", []),
    (b"abc\n\nxyz", [b"abc", b"xyz"]),
    (b"abc\nxyz\n", [b"abc", b"xyz"]),
    (b"\nabc", [b"abc"]),
    (b"a\r\nb", [b"a\r", b"b"]),
    (b"one long record without an end", [b"one long record without an end"]),
]


@pytest.mark.parametrize(("data", "expected"), CASES)
@pytest.mark.parametrize("piece_bytes", [1, 2, 1000])
def test_records_are_what_stands_between_delimiters(
    data: bytes, expected: list[bytes], piece_bytes: int
) -> None:
    splitter = RecordSplitter(b"\n")
    found = []
    for start in range(0, len(data), piece_bytes):
        found += splitter.feed(data[start : start + piece_bytes])
    found += splitter.rest()

    assert expected == found


def test_a_record_is_given_as_soon_as_it_is_whole() -> None:
    splitter = RecordSplitter(b",")

    assert [] == splitter.feed(b"a")
    assert [b"ab", b"c"] == splitter.feed(b"b,c,d")
    assert [b"d"] == splitter.rest()
    assert [] == splitter.rest()


def test_a_record_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 10)
    splitter = RecordSplitter(b"\n")
    splitter.feed(b"x" * 10)

    with pytest.raises(Error, match="no b'\\\\n' within 10 bytes"):
        splitter.feed(b"x")
