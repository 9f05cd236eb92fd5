"""A reader returns exactly the requested range, whatever the segments, reads and trims."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.frames import WALL_NS, frames, open_topic, read_all

from penstock.common.errors import LogClosedError, StorageError
from penstock.storage import (
    LogReader,
    LogSettings,
    ReadJob,
    StoredBatch,
    TopicLog,
    TrimmedError,
    split_frames,
)
from penstock.testing import FaultyFiles, MemoryFiles

FIRST = WALL_NS // 1000
PIECE = 100


def new_log(files: FaultyFiles, *batches: str, max_bytes: int = 170) -> TopicLog:
    """A log of batches with one message per letter; by default eight batches of one message, two
    per segment."""
    log = open_topic(files, LogSettings(max_bytes_per_file=max_bytes))[1].log
    for at, batch in enumerate(batches or "abcdefgh", 1):
        log.append(frames(*batch), 10 * at)
    return log


@pytest.fixture
def files(memory_files: MemoryFiles) -> FaultyFiles:
    return FaultyFiles(memory_files)


def read_some(reader: LogReader, max_bytes: int = PIECE) -> list[StoredBatch] | None:
    """Read once; None if there is nothing to read."""
    read = reader.next_read(max_bytes)
    return None if read is None else reader.advance(read, read.run())


def read_rest(reader: LogReader, max_bytes: int = PIECE) -> str:
    """Read all bodies, and check their sequence numbers."""
    bodies = []
    while (found := read_some(reader, max_bytes)) is not None:
        for batch, joined, _ in found:
            split = split_frames(batch, joined)
            assert len(split) == batch.message_count > 0
            bodies += [frame[-1:].decode() for frame in split]
    reader.close()
    return "".join(bodies)


LETTERS = "abcdefghijklmnopqrst"


@given(
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    ends=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    max_bytes=st.integers(1, 400),
    segment_bytes=st.integers(60, 500),
)
def test_any_range_in_reads_of_any_size(
    cuts: list[int], ends: tuple[int, int], max_bytes: int, segment_bytes: int
) -> None:
    files = MemoryFiles()
    files.make_folder("data")
    letters = iter(LETTERS)
    batches = ["".join(next(letters, "") for _ in range(cut)) for cut in cuts]
    log = new_log(FaultyFiles(files), *filter(None, batches), max_bytes=segment_bytes)
    stored = "".join(batches)
    first, end = min(*ends, len(stored)), min(max(ends), len(stored))

    read = read_rest(LogReader(log, FIRST + first, FIRST + end), max_bytes)

    assert stored[first:end] == read


def test_reader_continues_when_the_log_has_grown(files: FaultyFiles) -> None:
    log = new_log(files)
    reader = LogReader(log, FIRST + 6)
    first = [read_some(reader), read_some(reader)]
    log.append(frames("i"), 90)
    log.append(frames("j"), 91)

    assert [["g"], ["h"]] == [
        [found.frames[-1:].decode() for found in each or []] for each in first
    ]
    assert "ij" == read_rest(reader)


def test_due_time_is_returned(files: FaultyFiles) -> None:
    log = new_log(files)
    log.append(frames("i"), 90, due_ns=777)
    found = read_some(LogReader(log, FIRST + 8))

    assert found is not None
    assert [777] == [each.header.due_ns for each in found]


def test_gaps_present_at_the_start_are_skipped(files: FaultyFiles) -> None:
    log = new_log(files)
    log.trim(lambda first, _end: first == FIRST + 2, 0)

    assert "cdgh" == read_rest(LogReader(log, FIRST))
    assert "cd" == read_rest(LogReader(log, FIRST, FIRST + 5))


def test_current_segment_is_finished_after_a_trim(files: FaultyFiles) -> None:
    log = new_log(files)
    reader = LogReader(log, FIRST + 2)
    read_some(reader, max_bytes=1)
    log.trim(lambda first, _end: first > FIRST + 2, 0)

    assert "defgh" == read_rest(reader)


def test_trim_of_a_later_segment_is_an_error(files: FaultyFiles) -> None:
    log = new_log(files)
    reader = LogReader(log, FIRST + 2)
    read_some(reader, max_bytes=1)
    log.trim(lambda _first, _end: False, 0)

    assert ["g", "h"] == read_all(log)
    with pytest.raises(TrimmedError, match=f"messages from {FIRST + 4} on have been trimmed"):
        read_rest(reader)
    reader.close()


@pytest.mark.usefixtures("damaged_on_purpose")
@pytest.mark.parametrize("damaged", [*"adh"])
def test_damage_is_skipped_and_reported(
    files: FaultyFiles, memory_files: MemoryFiles, damaged: str
) -> None:
    log = new_log(files, max_bytes=1000)
    path = f"data/topics/t/{FIRST:020}.log"
    file = memory_files.open(path, "write")
    file.write(b"~", file.read(0, file.size()).find(b"\x01" + damaged.encode()) + 1)
    reader = LogReader(log, FIRST)

    assert "abcdefgh".replace(damaged, "") == read_rest(reader)
    assert log.next_seq == reader.seq
    assert ["the frames do not match their checksum"] == [found.problem for found in log.damage]


def test_closed_log_is_an_error(files: FaultyFiles) -> None:
    log = new_log(files)
    reader = LogReader(log, FIRST)
    log.close()

    with pytest.raises(LogClosedError):
        reader.next_read(PIECE)


def test_read_error_is_raised(
    files: FaultyFiles, memory_files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(files)
    file = memory_files.open(f"data/topics/t/{FIRST:020}.log", "read")

    def refuse(_position: int, _size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file, "read", refuse)
    with pytest.raises(StorageError, match="cannot read a/file: Input/output error"):
        ReadJob(file, "a/file", 0, log.byte_size, PIECE, 0).run()
