"""The progress of channels survives in a small journal, also after faults."""

import errno
from random import Random

import pytest
from tests.seeds import fresh_random
from tests.storage.frames import WALL_NS, open_topic
from tests.storage.journals import journal_names, new_cursors, reloaded

from penstock.common.errors import LogClosedError, StorageError
from penstock.storage import Cursors, RetryState
from penstock.testing import FaultyFiles, MemoryFiles

NEXT_SEQ = WALL_NS // 1000
LOG_ID = bytes(range(16))
FLOOR = NEXT_SEQ


@pytest.fixture
def files(memory_files: MemoryFiles) -> FaultyFiles:
    return FaultyFiles(memory_files)


@pytest.fixture
def cursors(files: FaultyFiles) -> Cursors:
    cursors = new_cursors(files)
    cursors.create_journal(NEXT_SEQ, LOG_ID)
    return cursors


class TestImmediateWrites:
    def test_new_topic_keeps_messages_for_the_first_channel(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        assert NEXT_SEQ == cursors.pause_point == reloaded(files)[0].pause_point
        assert NEXT_SEQ == reloaded(files)[0].next_unused_seq

    def test_create_and_remove_channels(self, cursors: Cursors, files: FaultyFiles) -> None:
        progress = cursors.create("a", FLOOR)
        cursors.create("b", FLOOR + 5)
        cursors.remove("b")

        assert progress is cursors.progress["a"]
        assert ["a"] == list(reloaded(files)[0].progress)
        assert FLOOR == reloaded(files)[0].progress["a"].floor

    def test_reset_moves_a_channel(self, cursors: Cursors, files: FaultyFiles) -> None:
        progress = cursors.create("a", FLOOR)
        cursors.finish("a", FLOOR + 10, FLOOR + 20)
        cursors.set_retry_state("a", FLOOR + 3, RetryState(2, 0))
        cursors.flush()
        cursors.finish("a", FLOOR + 30, FLOOR + 40)
        cursors.reset("a", FLOOR + 2)
        cursors.flush()
        found = reloaded(files)[0].progress["a"]

        assert progress is cursors.progress["a"]
        for each in (progress, found):
            assert (FLOOR + 2, {}) == (each.floor, each.retry_states)
            assert [(FLOOR + 2, FLOOR + 50)] == each.open_ranges(FLOOR, FLOOR + 50)

    def test_pause_point_is_stored(self, cursors: Cursors, files: FaultyFiles) -> None:
        cursors.set_pause_point(None)
        assert None is reloaded(files)[0].pause_point

        cursors.set_pause_point(FLOOR + 7)
        assert FLOOR + 7 == reloaded(files)[0].pause_point

    def test_unchanged_pause_point_is_not_written(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        changes = files.changes
        cursors.set_pause_point(NEXT_SEQ)

        assert changes == files.changes

    def test_reserved_sequence_number_is_stored(self, cursors: Cursors, files: FaultyFiles) -> None:
        cursors.reserve_below(NEXT_SEQ + 1000)

        assert NEXT_SEQ + 1000 == cursors.next_unused_seq == reloaded(files)[0].next_unused_seq

    def test_failed_write_changes_nothing(self, cursors: Cursors, files: FaultyFiles) -> None:
        cursors.create("a", FLOOR)
        files.fail("write", times=4, error=errno.ENOSPC)
        for change in (
            lambda: cursors.create("b", FLOOR),
            lambda: cursors.remove("a"),
            lambda: cursors.reset("a", FLOOR + 9),
            lambda: cursors.set_pause_point(None),
        ):
            with pytest.raises(StorageError, match="cannot write to data: disk full"):
                change()
        found = reloaded(files)[0]

        for each in (cursors, found):
            assert ["a"] == list(each.progress)
            assert FLOOR == each.progress["a"].floor
            assert NEXT_SEQ == each.pause_point

    def test_write_after_close_is_an_error(self, cursors: Cursors) -> None:
        cursors.close()
        cursors.close()

        with pytest.raises(LogClosedError):
            cursors.create("a", FLOOR)


class TestFlushing:
    def test_flush_is_one_write_for_all_channels(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        for channel in "abc":
            cursors.create(channel, FLOOR)
            cursors.finish_many(channel, [FLOOR + 3, FLOOR + 1, FLOOR + 2])
            cursors.set_retry_state(channel, FLOOR + 5, RetryState(2, 77))
        changes = files.changes
        assert cursors.has_unflushed
        cursors.flush()

        assert changes + 1 == files.changes
        assert not cursors.has_unflushed
        found = reloaded(files)[0]
        for channel in "abc":
            assert [(FLOOR + 1, FLOOR + 4)] == list(found.progress[channel].finished_ranges())
            assert {FLOOR + 5: RetryState(2, 77)} == found.progress[channel].retry_states

    def test_flush_without_changes_writes_nothing(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        changes = files.changes
        cursors.flush()

        assert changes == files.changes

    def test_unflushed_progress_is_lost_in_a_crash(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors.finish("a", FLOOR, FLOOR + 5)

        assert FLOOR + 5 == cursors.progress["a"].floor
        assert FLOOR == reloaded(files)[0].progress["a"].floor

    def test_retry_state_of_a_finished_message_is_not_written(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors.set_retry_state("a", FLOOR + 5, RetryState(2, 77))
        cursors.finish("a", FLOOR + 5, FLOOR + 6)
        cursors.flush()

        assert {} == reloaded(files)[0].progress["a"].retry_states

    def test_failed_flush_is_retried_by_the_next(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors.finish("a", FLOOR, FLOOR + 5)
        files.fail("write", written=9)
        with pytest.raises(StorageError):
            cursors.flush()
        assert cursors.has_unflushed
        cursors.finish("a", FLOOR + 5, FLOOR + 6)
        cursors.flush()

        assert FLOOR + 6 == reloaded(files)[0].progress["a"].floor
        assert ([], []) == (reloaded(files)[1], [*reloaded(files)[0].progress["a"].retry_states])

    def test_failed_truncate_starts_a_generation(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors.finish("a", FLOOR, FLOOR + 5)
        files.fail("write", written=9)
        files.fail("truncate")
        with pytest.raises(StorageError):
            cursors.flush()
        cursors.flush()

        assert ["cursors.1", "cursors.2"] == journal_names(files)
        assert FLOOR + 5 == reloaded(files)[0].progress["a"].floor


class TestSyncing:
    def test_sync_covers_flushed_progress(self) -> None:
        floors = set()
        for seed in range(30):
            files = MemoryFiles()
            files.make_folder("data")
            files.sync_folder("")
            cursors = new_cursors(files)
            cursors.create_journal(NEXT_SEQ, LOG_ID)
            cursors.create("a", FLOOR)
            cursors.finish("a", FLOOR, FLOOR + 5)
            cursors.flush()
            cursors.sync()
            cursors.finish("a", FLOOR + 5, FLOOR + 9)
            cursors.flush()
            files.lose_power(Random(seed))
            floors.add(reloaded(files, is_synced=False)[0].progress["a"].floor)

        assert {FLOOR + 5, FLOOR + 9} == floors

    def test_failed_sync_rewrites_the_journal(
        self, memory_files: MemoryFiles, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        files.fail("sync")
        with pytest.raises(StorageError, match=r"cannot sync data/cursors.1: Input/output error"):
            cursors.sync()
        assert cursors.needs_retry

        cursors.sync()
        assert not cursors.needs_retry
        memory_files.lose_power(Random(0))
        assert ["a"] == list(reloaded(memory_files)[0].progress)

    def test_sync_that_ends_after_the_topic_was_created_again(
        self, memory_files: MemoryFiles
    ) -> None:
        data_path, store = open_topic(memory_files)
        store.cursors._files.abandon_current()
        store.cursors.set_pause_point(None)
        job = store.cursors.begin_sync()
        job.run()
        data_path.remove_topic("t")
        data_path.open_topic("t", wall_ns=WALL_NS)
        store.cursors.end_sync(job, None)

        assert ["cursors.1"] == memory_files.list_names("data/topics/t")

    def test_close_flushes_and_syncs(self, memory_files: MemoryFiles) -> None:
        data_path, store = open_topic(memory_files)
        store.cursors.create("a", FLOOR)
        store.cursors.finish("a", FLOOR, FLOOR + 5)
        data_path.close()
        memory_files.lose_power(Random(0))

        assert FLOOR + 5 == open_topic(memory_files)[1].cursors.progress["a"].floor

    def test_folders_are_synced_only_for_a_new_file(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.sync()
        files.fail("sync_folder")
        cursors.create("a", FLOOR)
        cursors.sync()

        assert not cursors.needs_sync


class TestGenerations:
    def test_journal_is_compacted(self, cursors: Cursors, files: FaultyFiles) -> None:
        cursors.create("a", FLOOR)
        sizes = []
        for at in range(5000):
            cursors.finish("a", FLOOR + 10 * at, FLOOR + 10 * at + 10)
            cursors.flush()
            if at % 100 == 0:
                cursors.sync()
                (name,) = journal_names(files)
                sizes.append(files.open(f"data/{name}", "read").size())

        assert max(sizes) <= 64 * 1024
        assert FLOOR + 50_000 == reloaded(files)[0].progress["a"].floor
        assert "cursors.1" not in journal_names(files)

    def test_size_is_bounded_by_the_open_messages(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        """Every other message is deferred many times."""
        cursors.create("a", FLOOR)
        for attempt in range(1, 20):
            for seq in range(FLOOR, FLOOR + 2000, 2):
                cursors.set_retry_state("a", seq, RetryState(attempt, WALL_NS))
                cursors.finish("a", seq + 1, seq + 2)
            cursors.flush()
            cursors.sync()
        (name,) = journal_names(files)
        snapshot_bytes = 1000 * (16 + 20)

        assert files.open(f"data/{name}", "read").size() < 5 * snapshot_bytes
        assert 1000 == len(reloaded(files)[0].progress["a"].retry_states)

    def start_another(self, cursors: Cursors) -> None:
        cursors._files.abandon_current()
        cursors.set_pause_point(None)

    def test_sync_removes_the_old_generation(self, cursors: Cursors, files: FaultyFiles) -> None:
        cursors.create("a", FLOOR)
        self.start_another(cursors)
        assert ["cursors.1", "cursors.2"] == journal_names(files)

        cursors.sync()
        assert ["cursors.2"] == journal_names(files)
        assert ["a"] == list(reloaded(files)[0].progress)

    def test_power_loss_before_the_sync_falls_back_to_the_old_generation(
        self,
    ) -> None:
        random = fresh_random("test_power_loss_before_the_sync_falls_back_to_the_old_generation")
        for _ in range(30):
            memory_files = MemoryFiles()
            memory_files.make_folder("data")
            memory_files.sync_folder("")
            cursors = new_cursors(memory_files)
            cursors.create_journal(NEXT_SEQ, LOG_ID)
            cursors.create("a", FLOOR)
            cursors.sync()
            self.start_another(cursors)
            memory_files.lose_power(random)
            found, _ = reloaded(memory_files, is_synced=False)

            assert ["a"] == list(found.progress)

    def test_generation_with_incomplete_snapshot_is_ignored(
        self, memory_files: MemoryFiles, cursors: Cursors
    ) -> None:
        cursors.create("a", FLOOR)
        memory_files.open("data/cursors.2", "create").write(b"\x9ePSJ....", 0)
        found, issues = reloaded(memory_files)

        assert ["a"] == list(found.progress)
        assert ["data/cursors.2: its snapshot is incomplete; cursors.1 is used"] == list(
            map(str, issues)
        )
        found.sync()
        assert ["cursors.3"] == memory_files.list_names("data")

    def test_failed_new_generation_keeps_the_old_one(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors._files._compact_at = 0
        files.fail("write", written=20)
        with pytest.raises(StorageError):
            cursors.set_pause_point(None)
        cursors._files._compact_at = 10_000
        cursors.set_pause_point(None)

        assert ["cursors.1"] == journal_names(files)
        assert None is reloaded(files)[0].pause_point

    def test_failed_generation_that_cannot_be_removed_is_replaced(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors._files._compact_at = 0
        files.fail("write", written=10_000)
        files.fail("remove")
        with pytest.raises(StorageError):
            cursors.create("b", FLOOR)
        cursors._files._compact_at = 10_000
        cursors.set_pause_point(None)
        found = reloaded(files)[0]

        assert ["a"] == list(found.progress)
        assert None is found.pause_point
        cursors.sync()
        assert ["cursors.3"] == journal_names(files)

    def test_unsynced_journal_of_a_crashed_run_is_rewritten(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        found, issues = reloaded(files, is_synced=False)

        assert [] == issues
        assert ["cursors.1", "cursors.2"] == journal_names(files)
        found.sync()
        assert ["cursors.2"] == journal_names(files)


class TestDamage:
    def test_damaged_bytes_are_saved_and_later_records_loaded(
        self, memory_files: MemoryFiles, cursors: Cursors
    ) -> None:
        cursors.create("a", FLOOR)
        at = memory_files.open("data/cursors.1", "read").size()
        cursors.finish("a", FLOOR, FLOOR + 5)
        cursors.flush()
        cursors.create("b", FLOOR)
        memory_files.open("data/cursors.1", "write").write(b"?", at + 20)
        found, issues = reloaded(memory_files)

        assert ["a", "b"] == list(found.progress)
        assert FLOOR == found.progress["a"].floor
        assert [True] == [issue.is_damage for issue in issues]
        assert "cursors.bad" in memory_files.list_names("data")
        found.close()
        assert [] == reloaded(memory_files)[1]

    def test_incomplete_record_is_ignored(
        self, memory_files: MemoryFiles, cursors: Cursors
    ) -> None:
        cursors.create("a", FLOOR)
        size = memory_files.open("data/cursors.1", "read").size()
        cursors.create("b", FLOOR)
        memory_files.open("data/cursors.1", "write").truncate(size + 5)
        found, issues = reloaded(memory_files)

        assert ["a"] == list(found.progress)
        assert [False] == [issue.is_damage for issue in issues]
        assert "cursors.bad" not in memory_files.list_names("data")

    @pytest.mark.parametrize("content", [b"", b"\x9ePS", b"?" * 100])
    def test_journal_without_a_valid_record(
        self, memory_files: MemoryFiles, content: bytes
    ) -> None:
        memory_files.open("data/cursors.1", "create").write(content, 0)
        found, issues = reloaded(memory_files)

        assert not found.has_journal
        assert [content[:1] == b"?"] * bool(content) == [issue.is_damage for issue in issues]
        found.create_journal(NEXT_SEQ, LOG_ID)
        found.sync()
        assert "cursors.2" in memory_files.list_names("data")
        assert "cursors.1" not in memory_files.list_names("data")
