"""Records are read one by one; a damaged record costs no other."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.migration.reference_files import OldMessage, record

from penstock.migration.queue_files import RecordReader
from penstock.storage.files import RealFiles

MESSAGES = [OldMessage(number, body=b"x" * (number * 7 % 40)) for number in range(1, 9)]
RECORDS = list(map(record, MESSAGES))


def read(path: Path, content: bytes, start: int = 0) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The bodies, and the damaged ranges."""
    path.write_bytes(content)
    damage: list[tuple[int, int]] = []
    with closing(RealFiles().open(str(path), "read")) as file:
        records = RecordReader(file).records(start, lambda *stretch: damage.append(stretch))
        bodies = [each.body for _, each in records]
    return bodies, damage


def bodies(*messages: OldMessage) -> list[bytes]:
    return [message.content for message in messages]


def test_a_complete_file_is_read(tmp_path: Path) -> None:
    assert (bodies(*MESSAGES), []) == read(tmp_path / "f", b"".join(RECORDS))


def test_a_partly_consumed_file_is_read_from_its_position(tmp_path: Path) -> None:
    start = len(RECORDS[0] + RECORDS[1])

    assert (bodies(*MESSAGES[2:]), []) == read(tmp_path / "f", b"".join(RECORDS), start)


def test_a_message_larger_than_one_read_is_read(tmp_path: Path) -> None:
    large = OldMessage(1, body=bytes(3_000_000))
    content = b"".join([record(large), *RECORDS])

    assert (bodies(large, *MESSAGES), []) == read(tmp_path / "f", content)


@pytest.mark.parametrize("size", [0, 25, 0x7FFFFFFF, -1, 35, 300])
def test_a_wrong_size_costs_one_message(tmp_path: Path, size: int) -> None:
    """Too small, too large, and sizes that point into another message."""
    damaged = size.to_bytes(4, signed=True) + RECORDS[3][4:]
    content = b"".join([*RECORDS[:3], damaged, *RECORDS[4:]])
    first = len(b"".join(RECORDS[:3]))

    expected = bodies(*MESSAGES[:3], *MESSAGES[4:]), [(first, first + len(damaged))]
    assert expected == read(tmp_path / "f", content)


@given(missing=st.integers(1, len(RECORDS[-1]) - 1))
def test_an_incomplete_record_is_reported(
    tmp_path_factory: pytest.TempPathFactory, missing: int
) -> None:
    content = b"".join(RECORDS)
    first = len(content) - len(RECORDS[-1])

    expected = bodies(*MESSAGES[:-1]), [(first, len(content) - missing)]
    assert expected == read(tmp_path_factory.mktemp("cut") / "f", content[:-missing])


def test_zeros_between_records_are_skipped(tmp_path: Path) -> None:
    """A range of zeros, as a file system may leave them, longer than one read."""
    content = b"".join([*RECORDS[:4], bytes(600_000), *RECORDS[4:]])
    first = len(b"".join(RECORDS[:4]))

    assert (bodies(*MESSAGES), [(first, first + 600_000)]) == read(tmp_path / "f", content)


def test_a_file_without_records_is_reported(tmp_path: Path) -> None:
    assert ([], [(0, 9_000)]) == read(tmp_path / "f", b"deadbeef0" * 1_000)


def test_a_body_that_looks_like_records_is_a_body(tmp_path: Path) -> None:
    copy = OldMessage(1, body=b"".join(RECORDS))
    content = b"".join([record(copy), *RECORDS])

    assert (bodies(copy, *MESSAGES), []) == read(tmp_path / "f", content)
