"""Files in memory behave as real ones do, and fail and forget as they are told to."""

import errno
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from penstock.storage.files import File, Files, Mode, RealFiles
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash


@pytest.fixture(params=["real", "memory", "faulty"])
def files(request: pytest.FixtureRequest) -> Files:
    """Files of each kind."""
    if request.param == "real":
        return RealFiles()
    return MemoryFiles() if request.param == "memory" else FaultyFiles(MemoryFiles())


@pytest.fixture
def folder(files: Files, tmp_path: Path) -> str:
    """An empty folder in them."""
    if isinstance(files, RealFiles):
        return str(tmp_path)
    files.make_folder("folder")
    return "folder"


class TestEveryKind:
    def test_what_is_written_is_read(self, files: Files, folder: str) -> None:
        with closing(files.open(f"{folder}/file", "create")) as file:
            assert 5 == file.write_parts([b"he", b"llo"], 0)
            assert 4 == file.write(b"p me", 3)
            file.reserve(0, 10_000)

            assert 7 == file.size()
            assert b"help me" == file.read(0, 100)
            assert b"lp" == file.read(2, 2)
            assert b"" == file.read(50, 2)

    def test_a_write_beyond_the_end_leaves_zeros(self, files: Files, folder: str) -> None:
        with closing(files.open(f"{folder}/file", "create")) as file:
            file.write(b"x", 3)

            assert b"\0\0\0x" == file.read(0, 10)

    def test_a_file_can_be_cut_and_made_longer(self, files: Files, folder: str) -> None:
        with closing(files.open(f"{folder}/file", "create")) as file:
            file.write(b"hello", 0)
            file.truncate(2)
            assert b"he" == file.read(0, 10)

            file.truncate(4)
            assert b"he\0\0" == file.read(0, 10)

    def test_a_file_is_there_for_the_next_to_open_it(self, files: Files, folder: str) -> None:
        with closing(files.open(f"{folder}/file", "create")) as file:
            file.write(b"x", 0)
            file.sync()
        files.sync_folder(folder)
        modes: list[Mode] = ["read", "write"]
        for mode in modes:
            with closing(files.open(f"{folder}/file", mode)) as file:
                assert b"x" == file.read(0, 10)

    def test_files_and_folders_can_be_listed_renamed_and_removed(
        self, files: Files, folder: str
    ) -> None:
        files.open(f"{folder}/b", "create").close()
        files.open(f"{folder}/a", "create").close()
        files.make_folder(f"{folder}/c")
        assert ["a", "b", "c"] == files.list_names(folder)

        files.rename(f"{folder}/a", f"{folder}/b")
        files.rename(f"{folder}/c", f"{folder}/d")
        assert ["b", "d"] == files.list_names(folder)

        files.remove(f"{folder}/b")
        files.remove(f"{folder}/d")
        assert [] == files.list_names(folder)

    def test_what_is_not_there_is_reported(self, files: Files, folder: str) -> None:
        with pytest.raises(FileNotFoundError):
            files.open(f"{folder}/none", "read")
        with pytest.raises(FileNotFoundError):
            files.list_names(f"{folder}/none")
        with pytest.raises(FileNotFoundError):
            files.remove(f"{folder}/none")
        with pytest.raises(FileNotFoundError):
            files.rename(f"{folder}/none", f"{folder}/other")

    def test_what_is_in_the_way_is_reported(self, files: Files, folder: str) -> None:
        files.open(f"{folder}/file", "create").close()
        files.make_folder(f"{folder}/full")
        files.open(f"{folder}/full/file", "create").close()
        with pytest.raises(FileExistsError):
            files.open(f"{folder}/file", "create")
        with pytest.raises(FileExistsError):
            files.make_folder(f"{folder}/full")
        with pytest.raises(NotADirectoryError):
            files.list_names(f"{folder}/file")
        with pytest.raises(IsADirectoryError):
            files.open(f"{folder}/full", "write")
        with pytest.raises(OSError, match="not empty"):
            files.remove(f"{folder}/full")

    def test_a_lock_is_held_by_one_or_shared(self, files: Files, folder: str) -> None:
        with closing(files.lock(folder)), pytest.raises(BlockingIOError):
            files.lock(folder, shared=True)
        locks = [files.lock(folder, shared=True) for _ in range(2)]
        with pytest.raises(BlockingIOError):
            files.lock(folder)
        for lock in locks:
            lock.close()
        files.lock(folder).close()

    def test_the_boot_stays_the_same(self, files: Files, folder: str) -> None:
        assert files.boot_id() == files.boot_id()


@pytest.fixture
def memory() -> MemoryFiles:
    return MemoryFiles()


class TestMemoryFiles:
    def test_a_crash_keeps_all_that_was_written(self, memory: MemoryFiles) -> None:
        file = memory.open("file", "create")
        file.write(b"x", 0)
        memory.lock("")
        boot_id = memory.boot_id()
        memory.crash()

        assert b"x" == memory.open("file", "read").read(0, 10)
        assert boot_id == memory.boot_id()
        memory.lock("")
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.read(0, 1)

    def test_a_power_loss_keeps_what_was_synced(self, memory: MemoryFiles) -> None:
        file = memory.open("file", "create")
        file.write(b"safe", 0)
        file.sync()
        memory.sync_folder("")
        boot_id = memory.boot_id()
        for seed in range(20):
            memory.lose_power(Random(seed))

            assert b"safe" == memory.open("file", "read").read(0, 10)
        assert boot_id != memory.boot_id()

    def test_of_the_rest_it_keeps_some_loses_some_and_tears_some(self) -> None:
        outcomes = {self.content_after_power_loss(seed) for seed in range(200)}

        assert {b"", b"aaaabbbb", b"\0\0\0\0bbbb", b"aaaa", b"aa", b"\0\0\0\0bb"} <= outcomes

    @staticmethod
    def content_after_power_loss(seed: int) -> bytes:
        memory = MemoryFiles()
        file = memory.open("file", "create")
        memory.sync_folder("")
        file.write(b"aaaa", 0)
        file.write(b"bbbb", 4)
        memory.lose_power(Random(seed))
        return memory.open("file", "read").read(0, 10)

    def test_names_that_were_not_synced_are_kept_in_their_order(self) -> None:
        outcomes = set()
        for seed in range(50):
            memory = MemoryFiles()
            for name in "abc":
                memory.open(name, "create").close()
            memory.rename("a", "d")
            memory.lose_power(Random(seed))
            outcomes.add(" ".join(memory.list_names("")))

        assert {"", "a", "a b", "a b c", "b c d"} == outcomes

    def test_a_file_whose_name_is_lost_is_lost(self) -> None:
        outcomes = set()
        for seed in range(20):
            memory = MemoryFiles()
            file = memory.open("file", "create")
            file.write(b"x", 0)
            file.sync()
            memory.lose_power(Random(seed))
            outcomes.add(" ".join(memory.list_names("")))

        assert {"", "file"} == outcomes


class TestFaultyFiles:
    @pytest.fixture
    def files(self, memory: MemoryFiles) -> FaultyFiles:
        return FaultyFiles(memory)

    @pytest.fixture
    def file(self, files: FaultyFiles) -> File:
        return files.open("file", "create")

    def test_the_nth_write_fails(self, files: FaultyFiles, file: File) -> None:
        files.fail("write", skip=1, error=errno.ENOSPC)
        file.write(b"a", 0)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"b", 1)
        file.write(b"c", 1)

        assert b"ac" == file.read(0, 10)

    def test_a_write_can_fail_after_some_bytes_or_take_too_few(
        self, files: FaultyFiles, file: File
    ) -> None:
        files.fail("write", written=2)
        with pytest.raises(OSError, match="Input/output error"):
            file.write_parts([b"ab", b"cd"], 0)
        assert b"ab" == file.read(0, 10)

        files.fail("write", error=None, written=3)
        assert 3 == file.write_parts([b"ef", b"gh"], 0)
        assert b"efg" == file.read(0, 10)

    def test_it_fails_until_it_is_healed(self, files: FaultyFiles, file: File) -> None:
        files.fail("write", times=None)
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                file.write(b"x", 0)
        files.heal()

        assert 1 == file.write(b"x", 0)

    def test_no_later_sync_makes_up_for_one_that_failed(
        self, memory: MemoryFiles, files: FaultyFiles, file: File
    ) -> None:
        memory.sync_folder("")
        file.write(b"first", 0)
        files.fail("sync")
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        assert b"first" == file.read(0, 10)
        file.write(b"second", 5)
        file.sync()
        memory.lose_power(Random(0))

        assert b"\0\0\0\0\0second" == memory.open("file", "read").read(0, 20)

    @pytest.mark.parametrize("changes", range(6))
    def test_a_crash_comes_at_the_nth_change_and_lasts(
        self, memory: MemoryFiles, files: FaultyFiles, changes: int
    ) -> None:
        files.crash_after(changes, written=1)
        with pytest.raises(SimulatedCrash):
            self.work(files)
        with pytest.raises(SimulatedCrash):
            files.make_folder("later")

        assert changes == files.changes
        assert "later" not in memory.list_names("")

    @staticmethod
    def work(files: FaultyFiles) -> None:
        file = files.open("work", "create")
        file.write(b"ab", 0)
        file.truncate(1)
        file.sync()
        files.rename("work", "done")
        files.sync_folder("")
        files.remove("done")

    def test_a_crash_can_tear_a_write(
        self, memory: MemoryFiles, files: FaultyFiles, file: File
    ) -> None:
        files.crash_after(0, written=2)
        for _ in range(2):
            with pytest.raises(SimulatedCrash):
                file.write(b"abcd", 0)

        assert b"ab" == memory.open("file", "read").read(0, 10)
