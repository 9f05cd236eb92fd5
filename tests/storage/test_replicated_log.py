"""With replication, segments and journals have one epoch, and copies of their bytes are read."""

import pytest
from tests.storage.frames import WALL_NS, frames, open_topic, read_all

from penstock.common.errors import LogClosedError, StorageError
from penstock.storage import DataPath, LogSettings, SegmentExtent, TopicStore, TrimmedError
from penstock.storage.batch import HEADER_BYTES, SEGMENT_HEADER_BYTES
from penstock.storage.cursor_journal import JournalRecord
from penstock.storage.cursors import read_journals
from penstock.testing import FaultyFiles, MemoryFiles
from penstock.testing.format_1 import encode_batch_1

FIRST_SEQ = WALL_NS // 1000
# A segment with one batch of one message of one byte.
ONE_BATCH = SEGMENT_HEADER_BYTES + HEADER_BYTES + 5
SMALL = LogSettings(max_bytes_per_file=170)


@pytest.fixture
def files(memory_files: MemoryFiles) -> FaultyFiles:
    return FaultyFiles(memory_files)


def open_at(
    files: FaultyFiles, epoch: int, settings: LogSettings | None = None
) -> tuple[DataPath, TopicStore]:
    data_path = DataPath.open("data", settings or LogSettings(), files, epoch=epoch)
    return data_path, data_path.open_topic("t", wall_ns=WALL_NS)[0]


def extents(store: TopicStore) -> list[tuple[int, int, int, int]]:
    """Like `segments_info`, with sequence numbers from 0."""
    return [
        (first_seq - FIRST_SEQ, epoch, end, next_seq - FIRST_SEQ)
        for first_seq, epoch, end, next_seq in store.log.segments_info()
    ]


def file_bytes(files: FaultyFiles, name: str) -> bytes:
    file = files.open(f"data/topics/t/{name}", "read")
    return file.read(0, file.size())


class TestEpochs:
    def test_each_start_begins_a_segment(self, files: FaultyFiles) -> None:
        for epoch, body in [(3, "a"), (5, "b"), (6, "c")]:
            data_path, store = open_at(files, epoch)
            store.log.append(frames(body), 1)
            data_path.close()
        _, store = open_at(files, 7)

        assert [(0, 3, ONE_BATCH, 1), (1, 5, ONE_BATCH, 2), (2, 6, ONE_BATCH, 3)] == extents(store)
        assert ["a", "b", "c"] == read_all(store.log)

    def test_without_an_epoch_the_last_segment_grows(self, files: FaultyFiles) -> None:
        for body in "ab":
            data_path, store = open_at(files, 0)
            store.log.append(frames(body), 1)
            data_path.close()

        assert [(0, 0, ONE_BATCH + HEADER_BYTES + 5, 2)] == extents(store)

    def test_only_the_first_append_begins_a_segment(self, files: FaultyFiles) -> None:
        data_path, store = open_at(files, 0)
        store.log.append(frames("a"), 1)
        data_path.close()
        _, store = open_at(files, 1)
        assert [(0, 0, ONE_BATCH, 1)] == extents(store)
        store.log.append(frames("b"), 1)
        store.log.append(frames("c"), 1)

        assert [(0, 0, ONE_BATCH, 1), (1, 1, ONE_BATCH + HEADER_BYTES + 5, 3)] == extents(store)

    def test_segment_that_stayed_empty(self, memory_files: MemoryFiles, files: FaultyFiles) -> None:
        data_path, store = open_at(files, 1)
        store.log.append(frames("a"), 1)
        data_path.close()
        _, store = open_at(files, 2)
        files.fail("write")
        with pytest.raises(StorageError):
            store.log.append(frames("b"), 1)
        assert [(0, 1), (1, 0)] == [each[:2] for each in extents(store)]
        memory_files.crash()
        _, store = open_at(files, 3)
        store.log.append(frames("b"), 1)

        assert [(0, 1), (1, 3)] == [each[:2] for each in extents(store)]
        assert ["a", "b"] == read_all(store.log)

    def test_epoch_of_the_journal(self, files: FaultyFiles) -> None:
        data_path, store = open_at(files, 4)
        store.cursors.create("c", FIRST_SEQ)
        data_path.close()
        _, store = open_at(files, 5)
        store.cursors.create("d", FIRST_SEQ)
        journals = read_journals(files, "data/topics/t")

        assert {1: [4, 4], 2: [5, 5]} == {
            generation: [each.epoch for each in records if isinstance(each, JournalRecord)]
            for generation, records in journals.items()
        }
        assert 2 == store.cursors.generation
        assert {"c", "d"} == store.cursors.progress.keys()


class TestRawSegments:
    def test_bytes_are_those_of_the_file(self, files: FaultyFiles) -> None:
        _, store = open_at(files, 1, SMALL)
        for body in "abc":
            store.log.append(frames(body), 1)
        for first_seq, _, end, _ in store.log.segments_info():
            content = file_bytes(files, f"{first_seq:020d}.log")[:end]
            assert content == store.log.read_raw(first_seq, 0, 1000)
            assert content[:10] == store.log.read_raw(first_seq, 0, 10)
            assert content[7:30] == store.log.read_raw(first_seq, 7, 23)
            assert b"" == store.log.read_raw(first_seq, end, 100)
            assert b"" == store.log.read_raw(first_seq, end + 1, 100)

    @pytest.mark.usefixtures("damaged_on_purpose")
    def test_bytes_beyond_the_valid_end_are_not_read(self, files: FaultyFiles) -> None:
        _, store = open_at(files, 1)
        store.log.append(frames("a"), 1)
        path = f"data/topics/t/{FIRST_SEQ:020d}.log"
        files.open(path, "write").write(b"left by a failed write", ONE_BATCH)

        assert ONE_BATCH == len(store.log.read_raw(FIRST_SEQ, 0, 1000))

    def test_trimmed_or_unknown_segment(self, files: FaultyFiles) -> None:
        _, store = open_at(files, 1, SMALL)
        for body in "abc":
            store.log.append(frames(body), 1)
        store.log.trim(lambda _first, _end: False, WALL_NS)
        for first_seq in (0, FIRST_SEQ, FIRST_SEQ + 1, FIRST_SEQ + 3):
            with pytest.raises(TrimmedError, match=f"has no segment {first_seq} any more"):
                store.log.read_raw(first_seq, 0, 10)

    def test_closed_log(self, files: FaultyFiles) -> None:
        data_path, store = open_at(files, 1)
        store.log.append(frames("a"), 1)
        data_path.close()
        with pytest.raises(LogClosedError):
            store.log.read_raw(FIRST_SEQ, 0, 10)

    @pytest.mark.usefixtures("damaged_on_purpose")
    def test_failed_read(self, files: FaultyFiles) -> None:
        _, store = open_at(files, 1)
        store.log.append(frames("a"), 1)
        segment = store.log.maybe_segment_from(FIRST_SEQ)
        assert segment is not None
        segment.handle.close()
        files.remove(segment.handle.path)
        with pytest.raises(StorageError, match="cannot read"):
            store.log.read_raw(FIRST_SEQ, 0, 10)

    def test_segment_of_format_1(self, files: FaultyFiles) -> None:
        data_path, store = open_topic(files)
        data_path.close()
        batch = encode_batch_1(b"".join(frames("a")), 1, FIRST_SEQ, 0, 1, 0)
        files.open(f"data/topics/t/{FIRST_SEQ:020d}.log", "create").write(batch, 0)
        _, store = open_at(files, 1)

        assert [SegmentExtent(FIRST_SEQ, 0, len(batch), FIRST_SEQ + 1)] == (
            store.log.segments_info()
        )
        assert batch == store.log.read_raw(FIRST_SEQ, 0, 1000)


class TestRawJournal:
    def test_bytes_are_those_of_the_file(self, files: FaultyFiles) -> None:
        _, store = open_at(files, 1)
        cursors = store.cursors
        cursors.create("c", FIRST_SEQ)
        content = file_bytes(files, f"cursors.{cursors.generation}")

        assert len(content) == cursors.journal_end
        assert content == cursors.read_raw(cursors.generation, 0, 10_000)
        assert content[3:8] == cursors.read_raw(cursors.generation, 3, 5)
        assert b"" == cursors.read_raw(cursors.generation, len(content) + 1, 5)

    def test_earlier_generation(self, files: FaultyFiles) -> None:
        data_path, store = open_at(files, 1)
        data_path.close()
        _, store = open_at(files, 2)
        with pytest.raises(TrimmedError, match=r"cursors\.1 is no longer used"):
            store.cursors.read_raw(1, 0, 10)
