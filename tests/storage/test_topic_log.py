"""A topic's log stores messages, returns them in order, and reports gaps and errors."""

import errno
from random import Random

import pytest
from tests.seeds import fresh_random
from tests.storage.frames import WALL_NS, frames, open_topic, read_all

from penstock.common.errors import LogClosedError, StorageError
from penstock.storage import LogSettings, SegmentInfo, TopicLog
from penstock.testing import FaultyFiles, MemoryFiles
from penstock.testing.files import Operation

FIRST_SEQ = WALL_NS // 1000
# Room for two batches of one short message.
SMALL = LogSettings(max_bytes_per_file=170)


@pytest.fixture
def files(memory_files: MemoryFiles) -> FaultyFiles:
    return FaultyFiles(memory_files)


@pytest.fixture
def log(files: FaultyFiles) -> TopicLog:
    return open_topic(files)[1].log


@pytest.fixture
def small_log(files: FaultyFiles) -> TopicLog:
    """Eight messages, two per segment, with timestamps 10 to 80."""
    log = open_topic(files, SMALL)[1].log
    for at, body in enumerate("abcdefgh", 1):
        log.append(frames(body), 10 * at)
    return log


def never(_first: int, _end: int) -> bool:
    return False


class TestAppendingAndReading:
    def test_sequence_numbers_start_at_the_creation_time(self, log: TopicLog) -> None:
        assert (FIRST_SEQ, FIRST_SEQ) == (log.first_seq, log.next_seq)
        assert [] == log.read(FIRST_SEQ)

        log.append(frames("a", "b"), 1)
        log.append(frames("c"), 2)

        assert (FIRST_SEQ, FIRST_SEQ + 3) == (log.first_seq, log.next_seq)
        assert ["a", "b", "c"] == read_all(log)
        assert ["c"] == read_all(log, FIRST_SEQ + 2)

    def test_a_batch_is_one_write(self, log: TopicLog, files: FaultyFiles) -> None:
        log.append(frames("a"), 1)
        changes = files.changes
        log.append(frames(*"bcdefgh"), 1)

        assert changes + 1 == files.changes

    def test_due_times_are_kept(self, log: TopicLog) -> None:
        log.append(frames("a"), 1)
        log.append(frames("b", "c"), 1, due_ns=99)
        runs = log.read(0)

        assert [(FIRST_SEQ, 0, 1), (FIRST_SEQ + 1, 99, 2)] == [
            (run.first_seq, run.due_ns, len(run.frames)) for run in runs
        ]

    def test_full_segment_starts_a_new_one(self, small_log: TopicLog) -> None:
        assert [(0, 2), (2, 4), (4, 6), (6, 8)] == [
            (segment.first_seq - FIRST_SEQ, segment.next_seq - FIRST_SEQ)
            for segment in small_log.segments
        ]
        assert [(10, 20), (30, 40), (50, 60), (70, 80)] == [
            (segment.first_timestamp_ns, segment.last_timestamp_ns)
            for segment in small_log.segments
        ]
        assert sum(segment.byte_size for segment in small_log.segments) == small_log.byte_size
        assert list("abcdefgh") == read_all(small_log)

    def test_batch_larger_than_a_segment(self, small_log: TopicLog) -> None:
        small_log.append(frames("x" * 500), 90)
        small_log.append(frames("y"), 91)

        assert [2, 2, 2, 2, 1, 1] == [
            segment.next_seq - segment.first_seq for segment in small_log.segments
        ]

    def test_seq_at_time_in_any_segment(self, small_log: TopicLog) -> None:
        found = [small_log.seq_at_time(time) - FIRST_SEQ for time in (0, 10, 11, 40, 41, 80, 81)]

        assert [0, 0, 1, 3, 4, 7, 8] == found

    def test_append_after_close_is_an_error(self, log: TopicLog) -> None:
        log.close()
        log.close()

        with pytest.raises(LogClosedError, match="data/topics/t is closed"):
            log.append(frames("a"), 1)


class TestTrimming:
    def test_trim_keeps_the_last_segment(self, small_log: TopicLog) -> None:
        size = small_log.byte_size
        freed = small_log.trim(never, 0)

        assert ["g", "h"] == read_all(small_log)
        assert FIRST_SEQ + 6 == small_log.first_seq
        assert (size * 3 // 4, size // 4) == (freed, small_log.byte_size)

    def test_trim_removes_the_neighbours_of_a_needed_segment(self, small_log: TopicLog) -> None:
        small_log.trim(lambda first, end: first <= FIRST_SEQ + 2 < end, 0)

        assert ["c", "d", "g", "h"] == read_all(small_log)
        assert ["c", "d"] == read_all(small_log)[:2]

    def test_trim_removes_files(self, small_log: TopicLog, files: FaultyFiles) -> None:
        small_log.sync()
        assert 4 + 3 == sum(name[0] == "0" for name in files.list_names("data/topics/t"))

        small_log.trim(never, 0)
        assert [f"{FIRST_SEQ + 6:020}.log", "cursors.1"] == files.list_names("data/topics/t")

    @pytest.mark.parametrize("removed_before", [0, 1], ids=["its index too", "its index does not"])
    def test_segment_that_cannot_be_removed_is_kept(
        self, small_log: TopicLog, files: FaultyFiles, removed_before: int
    ) -> None:
        small_log.sync()
        files.fail("remove", skip=removed_before, error=errno.EIO)
        with pytest.raises(StorageError, match=r"cannot remove .*log: Input/output error"):
            small_log.trim(never, 0)

        assert list("abcdefgh") == read_all(small_log)

    def test_gaps(self, small_log: TopicLog) -> None:
        small_log.trim(lambda first, end: first == FIRST_SEQ + 2 and end > first, 0)
        gaps = small_log.gaps(FIRST_SEQ - 5, FIRST_SEQ + 100)

        assert [(-5, 2), (4, 6)] == [(first - FIRST_SEQ, end - FIRST_SEQ) for first, end in gaps]
        assert [] == small_log.gaps(FIRST_SEQ + 2, FIRST_SEQ + 4)
        assert [] == small_log.gaps(FIRST_SEQ + 6, FIRST_SEQ + 100)
        assert [(FIRST_SEQ + 5, FIRST_SEQ + 6)] == small_log.gaps(FIRST_SEQ + 5, FIRST_SEQ + 6)


class TestRetention:
    @pytest.mark.parametrize(
        ("retention", "kept"),
        [
            (LogSettings(170, retention_time_ns=100), "abcdefgh"),
            (LogSettings(170, retention_time_ns=60), "cdefgh"),
            (LogSettings(170, retention_time_ns=0), "gh"),
            (LogSettings(170, retention_bytes=1_000_000), "abcdefgh"),
            (LogSettings(170, retention_bytes=320), "efgh"),
            (LogSettings(170, retention_bytes=0), "gh"),
            (LogSettings(170, retention_time_ns=60, retention_bytes=320), "efgh"),
            (LogSettings(170, retention_time_ns=20, retention_bytes=1_000_000), "gh"),
        ],
    )
    def test_finished_messages_are_kept_within_both_limits(
        self, files: FaultyFiles, retention: LogSettings, kept: str
    ) -> None:
        log = open_topic(files, retention)[1].log
        for at, body in enumerate("abcdefgh", 1):
            log.append(frames(body), 10 * at)
        log.trim(never, wall_ns=81)

        assert list(kept) == read_all(log)


class TestAFailingDisk:
    @pytest.mark.parametrize("operation", ["write", "create"])
    def test_append_after_a_failed_write(
        self, log: TopicLog, files: FaultyFiles, operation: Operation
    ) -> None:
        files.fail(operation, times=3, error=errno.ENOSPC, written=30)
        for _ in range(3):
            with pytest.raises(StorageError, match="cannot write to data/topics/t: disk full"):
                log.append(frames("a"), 1)
            expected = "cannot write to data/topics/t: disk full (No space left on device)"
            assert expected == log.error
            assert FIRST_SEQ == log.next_seq
        log.append(frames("b"), 1)

        assert None is log.error
        assert ["b"] == read_all(log)

    def test_failed_truncate_starts_a_new_segment(self, log: TopicLog, files: FaultyFiles) -> None:
        log.append(frames("a"), 1)
        files.fail("write", written=20)
        files.fail("truncate", times=2)
        with pytest.raises(StorageError):
            log.append(frames("b"), 1)
        log.append(frames("c"), 1)
        log.append(frames("d"), 1)

        assert ["a", "c", "d"] == read_all(log)
        assert [1, 2] == [segment.next_seq - segment.first_seq for segment in log.segments]

    def test_probe_clears_the_error(self, log: TopicLog, files: FaultyFiles) -> None:
        log.append(frames("a"), 1)
        files.fail("write", times=2, error=errno.ENOSPC)
        with pytest.raises(StorageError):
            log.append(frames("b"), 1)
        size = log.byte_size
        log.probe()
        assert log.error is not None

        log.probe()
        assert None is log.error
        assert size == log.byte_size
        assert ["a"] == read_all(log)

    def test_read_error_is_raised(self, log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
        log.append(frames("a"), 1)

        def fail(_position: int, _size: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(log._segments[0].handle.open(), "read", fail)
        for read in (log.read, log.seq_at_time):
            with pytest.raises(StorageError, match=r"cannot read .*log: Input/output error"):
                read(0)


@pytest.mark.usefixtures("damaged_on_purpose")
def test_damage_is_skipped_and_reported(log: TopicLog, memory_files: MemoryFiles) -> None:
    for body in "abc":
        log.append(frames(body), 1)
    path = f"data/topics/t/{FIRST_SEQ:020}.log"
    memory_files.open(path, "write").write(b"?", log.byte_size - 61 - 1)

    assert ["a", "c"] == read_all(log)
    assert ["c"] == read_all(log, FIRST_SEQ + 1)
    assert [(path, FIRST_SEQ + 1, FIRST_SEQ + 2)] == [
        (issue.path, issue.first_seq, issue.end_seq) for issue in log.damage
    ]


class TestSyncing:
    def test_sync_covers_messages_appended_before(self, log: TopicLog) -> None:
        log.append(frames("a", "b"), 1)
        assert (FIRST_SEQ, FIRST_SEQ) == (log.sync_requested_seq, log.synced_seq)

        job = log.begin_sync()
        assert FIRST_SEQ + 2 == log.sync_requested_seq
        log.append(frames("c"), 1)
        job.run()
        log.end_sync(job, None)

        assert (FIRST_SEQ + 2, FIRST_SEQ + 2) == (log.sync_requested_seq, log.synced_seq)

    def test_all_unsynced_segments_are_synced(
        self, small_log: TopicLog, memory_files: MemoryFiles
    ) -> None:
        small_log.sync()
        memory_files.lose_power(Random(1))
        log = open_topic(memory_files, SMALL)[1].log

        assert list("abcdefgh") == read_all(log)

    def test_segment_that_fills_during_a_sync_is_synced_by_the_next(
        self, files: FaultyFiles, memory_files: MemoryFiles
    ) -> None:
        log = open_topic(files, SMALL)[1].log
        log.append(frames("a"), 1)
        job = log.begin_sync()
        for body in "bc":
            log.append(frames(body), 1)
        job.run()
        log.end_sync(job, None)
        assert FIRST_SEQ + 1 == log.synced_seq
        log.sync()
        memory_files.lose_power(Random(1))

        assert list("abc") == read_all(open_topic(memory_files, SMALL)[1].log)

    def test_failed_new_segment_does_not_hide_the_previous_one(
        self, files: FaultyFiles, memory_files: MemoryFiles
    ) -> None:
        log = open_topic(files, SMALL)[1].log
        for body in "ab":
            log.append(frames(body), 1)
        files.fail("write")
        with pytest.raises(StorageError):
            log.append(frames("c"), 1)
        log.sync()
        assert FIRST_SEQ + 2 == log.synced_seq
        memory_files.lose_power(Random(1))

        assert list("ab") == read_all(open_topic(memory_files, SMALL)[1].log)

    def test_sync_without_changes_does_nothing(self, log: TopicLog, files: FaultyFiles) -> None:
        log.append(frames("a"), 1)
        log.sync()
        changes = files.changes
        log.sync()

        assert changes == files.changes

    def test_failed_sync_blocks_appends_until_rewritten(
        self, log: TopicLog, files: FaultyFiles, memory_files: MemoryFiles
    ) -> None:
        log.append(frames("a"), 1)
        log.sync()
        log.append(frames("b"), 1)
        files.fail("sync", times=2)
        for _ in range(2):
            with pytest.raises(StorageError, match="cannot sync data/topics/t: Input/output error"):
                log.sync()
            assert FIRST_SEQ + 1 == log.synced_seq
            assert FIRST_SEQ + 1 == log.sync_requested_seq
            assert log.needs_retry
            with pytest.raises(StorageError, match="cannot sync"):
                log.append(frames("refused"), 1)
        assert ["a", "b"] == read_all(log)

        log.sync()
        assert (FIRST_SEQ + 2, None, False) == (log.synced_seq, log.error, log.needs_retry)
        memory_files.lose_power(Random(0))
        assert ["a", "b"] == read_all(open_topic(memory_files)[1].log)

    def test_unsynced_batches_of_a_crashed_run_are_rewritten(
        self, log: TopicLog, files: FaultyFiles, memory_files: MemoryFiles
    ) -> None:
        log.append(frames("a"), 1)
        files.fail("sync")
        with pytest.raises(StorageError):
            log.sync()
        memory_files.crash()
        log = open_topic(memory_files)[1].log
        log.append(frames("b"), 1)
        log.sync()
        memory_files.lose_power(Random(0))

        assert ["a", "b"] == read_all(open_topic(memory_files)[1].log)

    def test_sync_raises_if_a_file_cannot_be_opened(
        self, small_log: TopicLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(type(small_log._segments[1].handle), "pin", lambda _: fail())
        with pytest.raises(StorageError, match=r"cannot open .*log: Too many open files"):
            small_log.sync()
        monkeypatch.undo()

        small_log.sync()
        assert small_log.next_seq == small_log.synced_seq


class TestClosing:
    def test_closed_log_is_opened_without_reading(self, memory_files: MemoryFiles) -> None:
        info = self.closed_log(memory_files)
        log = open_topic(memory_files, SMALL)[1].log

        assert info == log.segments
        assert FIRST_SEQ + 3 == log.synced_seq == log.next_seq
        log.append(frames("d"), 4)
        assert list("abcd") == read_all(log)

    def test_closed_log_survives_a_power_loss(self, memory_files: MemoryFiles) -> None:
        info = self.closed_log(memory_files)
        memory_files.lose_power(Random(3))
        log = open_topic(memory_files, SMALL)[1].log

        assert info == log.segments
        assert FIRST_SEQ + 3 == log.next_seq

    @staticmethod
    def closed_log(files: MemoryFiles) -> list[SegmentInfo]:
        data_path, store = open_topic(files, SMALL)
        for at, body in enumerate("abc", 1):
            store.log.append(frames(body), at)
        info = store.log.segments
        data_path.close()
        return info

    def test_unchanged_log_is_not_written(self, files: FaultyFiles) -> None:
        data_path, store = open_topic(files)
        store.log.append(frames("a"), 1)
        data_path.close()
        data_path, store = open_topic(files)
        changes = files.changes
        store.close()

        assert changes == files.changes
        data_path.close()

    def test_close_raises_a_sync_error_and_closes(self, log: TopicLog, files: FaultyFiles) -> None:
        log.append(frames("a"), 1)
        files.fail("sync")
        with pytest.raises(StorageError, match="cannot sync"):
            log.close()
        with pytest.raises(LogClosedError):
            log.append(frames("b"), 1)

    def test_discard_during_a_sync(self, log: TopicLog) -> None:
        log.append(frames("a"), 1)
        job = log.begin_sync()
        log.discard()
        job.run()
        log.end_sync(job, None)

        assert not log.needs_retry


def test_segment_started_during_a_sync_is_synced_by_the_next() -> None:
    random = fresh_random("test_segment_started_during_a_sync_is_synced_by_the_next")
    for _ in range(20):
        files = MemoryFiles()
        files.make_folder("data")
        files.sync_folder("")
        log = open_topic(files, SMALL)[1].log
        log.append(frames("a"), 1)
        log.append(frames("b"), 1)
        job = log.begin_sync()
        log.append(frames("c"), 1)
        job.run()
        log.end_sync(job, None)
        log.sync()
        files.lose_power(random)

        assert list("abc") == read_all(open_topic(files, SMALL)[1].log)


def test_sync_that_ends_after_the_topic_was_created_again(
    memory_files: MemoryFiles,
) -> None:
    data_path, store = open_topic(memory_files, SMALL)
    for body in "abc":
        store.log.append(frames(body), 1)
    job = store.log.begin_sync()
    job.run()
    data_path.remove_topic("t")
    data_path.open_topic("t", wall_ns=WALL_NS)
    store.log.end_sync(job, None)

    assert ["cursors.1"] == memory_files.list_names("data/topics/t")


def test_trim_during_a_sync(small_log: TopicLog, files: FaultyFiles) -> None:
    job = small_log.begin_sync()
    small_log.trim(never, 0)
    job.run()
    small_log.end_sync(job, None)

    assert ["g", "h"] == read_all(small_log)
    assert [f"{FIRST_SEQ + 6:020}.log", "cursors.1"] == files.list_names("data/topics/t")
