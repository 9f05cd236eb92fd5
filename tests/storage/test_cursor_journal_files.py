"""The journal is kept in generations: it stays small, and there is always one to rely on."""

import pytest
from tests.seeds import fresh_random
from tests.storage.frames import WALL_NS
from tests.storage.journals import journal_names, new_cursors, reloaded

from penstock.common.errors import StorageError
from penstock.storage import Cursors, Note
from penstock.testing import FaultyFiles, MemoryFiles

NEXT_SEQ = WALL_NS // 1000
FLOOR = NEXT_SEQ


@pytest.fixture
def files(memory_files: MemoryFiles) -> FaultyFiles:
    return FaultyFiles(memory_files)


@pytest.fixture
def cursors(files: FaultyFiles) -> Cursors:
    cursors = new_cursors(files)
    cursors.begin(NEXT_SEQ)
    return cursors


class TestGenerations:
    def test_the_journal_stays_small(self, cursors: Cursors, files: FaultyFiles) -> None:
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

    def test_what_is_open_bounds_it(self, cursors: Cursors, files: FaultyFiles) -> None:
        """Every other message is put off for long, many times over."""
        cursors.create("a", FLOOR)
        for attempt in range(1, 20):
            for seq in range(FLOOR, FLOOR + 2000, 2):
                cursors.note("a", seq, Note(attempt, WALL_NS))
                cursors.finish("a", seq + 1, seq + 2)
            cursors.flush()
            cursors.sync()
        (name,) = journal_names(files)
        snapshot_bytes = 1000 * (16 + 20)

        assert files.open(f"data/{name}", "read").size() < 5 * snapshot_bytes
        assert 1000 == len(reloaded(files)[0].progress["a"].notes)

    def begin_another(self, cursors: Cursors) -> None:
        cursors._files.leave_current()
        cursors.hold(None)

    def test_the_old_one_goes_when_the_new_one_is_synced(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        self.begin_another(cursors)
        assert ["cursors.1", "cursors.2"] == journal_names(files)

        cursors.sync()
        assert ["cursors.2"] == journal_names(files)
        assert ["a"] == list(reloaded(files)[0].progress)

    def test_until_then_a_power_loss_falls_back_on_it(
        self,
    ) -> None:
        random = fresh_random("test_until_then_a_power_loss_falls_back_on_it")
        for _ in range(30):
            memory_files = MemoryFiles()
            memory_files.make_folder("data")
            memory_files.sync_folder("")
            cursors = new_cursors(memory_files)
            cursors.begin(NEXT_SEQ)
            cursors.create("a", FLOOR)
            cursors.sync()
            self.begin_another(cursors)
            memory_files.lose_power(random)
            found, _ = reloaded(memory_files, is_synced=False)

            assert ["a"] == list(found.progress)

    def test_one_without_a_whole_snapshot_does_not_count(
        self, memory_files: MemoryFiles, cursors: Cursors
    ) -> None:
        cursors.create("a", FLOOR)
        memory_files.open("data/cursors.2", "create").write(b"\x9ePSJ....", 0)
        found, findings = reloaded(memory_files)

        assert ["a"] == list(found.progress)
        assert [
            "data/cursors.2: its snapshot was not written to its end; cursors.1 is used"
        ] == list(map(str, findings))
        found.sync()
        assert ["cursors.3"] == memory_files.names("data")

    def test_one_that_cannot_be_begun_leaves_the_old_one_in_use(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors._files._compact_at = 0
        files.fail("write", written=20)
        with pytest.raises(StorageError):
            cursors.hold(None)
        cursors._files._compact_at = 10_000
        cursors.hold(None)

        assert ["cursors.1"] == journal_names(files)
        assert None is reloaded(files)[0].held_from

    def test_if_it_cannot_even_be_removed_a_newer_one_is_begun(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        cursors._files._compact_at = 0
        files.fail("write", written=10_000)
        files.fail("remove")
        with pytest.raises(StorageError):
            cursors.create("b", FLOOR)
        cursors._files._compact_at = 10_000
        cursors.hold(None)
        found = reloaded(files)[0]

        assert ["a"] == list(found.progress)
        assert None is found.held_from
        cursors.sync()
        assert ["cursors.3"] == journal_names(files)

    def test_what_a_crashed_run_may_not_have_synced_is_written_anew(
        self, cursors: Cursors, files: FaultyFiles
    ) -> None:
        cursors.create("a", FLOOR)
        found, findings = reloaded(files, is_synced=False)

        assert [] == findings
        assert ["cursors.1", "cursors.2"] == journal_names(files)
        found.sync()
        assert ["cursors.2"] == journal_names(files)


class TestDamage:
    def test_it_is_moved_aside_and_later_records_count(
        self, memory_files: MemoryFiles, cursors: Cursors
    ) -> None:
        cursors.create("a", FLOOR)
        at = memory_files.open("data/cursors.1", "read").size()
        cursors.finish("a", FLOOR, FLOOR + 5)
        cursors.flush()
        cursors.create("b", FLOOR)
        memory_files.open("data/cursors.1", "write").write(b"?", at + 20)
        found, findings = reloaded(memory_files)

        assert ["a", "b"] == list(found.progress)
        assert FLOOR == found.progress["a"].floor
        assert [True] == [finding.is_damage for finding in findings]
        assert "cursors.bad" in memory_files.names("data")
        found.close()
        assert [] == reloaded(memory_files)[1]

    def test_a_torn_record_is_forgotten(self, memory_files: MemoryFiles, cursors: Cursors) -> None:
        cursors.create("a", FLOOR)
        size = memory_files.open("data/cursors.1", "read").size()
        cursors.create("b", FLOOR)
        memory_files.open("data/cursors.1", "write").truncate(size + 5)
        found, findings = reloaded(memory_files)

        assert ["a"] == list(found.progress)
        assert [False] == [finding.is_damage for finding in findings]
        assert "cursors.bad" not in memory_files.names("data")

    @pytest.mark.parametrize("content", [b"", b"\x9ePS", b"?" * 100])
    def test_a_journal_without_a_record_is_no_journal(
        self, memory_files: MemoryFiles, content: bytes
    ) -> None:
        memory_files.open("data/cursors.1", "create").write(content, 0)
        found, findings = reloaded(memory_files)

        assert not found.has_journal
        assert [content[:1] == b"?"] * bool(content) == [finding.is_damage for finding in findings]
        found.begin(NEXT_SEQ)
        found.sync()
        assert "cursors.2" in memory_files.names("data")
        assert "cursors.1" not in memory_files.names("data")
