"""Real files: what only they can show. What all kinds share is in tests/testing/test_files.py."""

import os
from pathlib import Path

import pytest

from penstock.storage.files import RealFiles, append_to, storage_error, write_all
from penstock.testing import FaultyFiles, MemoryFiles


def test_what_is_made_is_its_users_alone(tmp_path: Path) -> None:
    files = RealFiles()
    files.open(str(tmp_path / "file"), "create").close()
    files.make_folder(str(tmp_path / "folder"))

    assert 0o600 == (tmp_path / "file").stat().st_mode & 0o777
    assert 0o700 == (tmp_path / "folder").stat().st_mode & 0o777


def test_space_set_aside_does_not_show_in_the_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = RealFiles().open(str(path), "create")
    file.write(b"x", 0)
    before = path.stat().st_blocks
    file.reserve(1, 1024 * 1024)
    reserved = path.stat()
    file.truncate(1)
    file.close()

    assert 1 == reserved.st_size
    assert reserved.st_blocks >= before
    assert path.stat().st_blocks <= before


def test_a_closed_lock_is_given_up(tmp_path: Path) -> None:
    files = RealFiles()
    files.lock(str(tmp_path)).close()
    fds = os.listdir("/proc/self/fd")
    lock = files.lock(str(tmp_path))
    with pytest.raises(BlockingIOError):
        files.lock(str(tmp_path))
    lock.close()

    assert len(fds) == len(os.listdir("/proc/self/fd"))


class TestWriteAll:
    def test_what_the_system_does_not_take_at_once_is_written_after_it(
        self, memory_files: MemoryFiles
    ) -> None:
        files = FaultyFiles(memory_files)
        file = files.open("data/file", "create")
        files.fail("write", times=2, error=None, written=2)

        assert 7 == write_all(file, [b"abc", b"defg"], 1)
        assert b"\0abcdefg" == file.read(0, 10)

    def test_a_system_that_takes_nothing_is_an_error(self, memory_files: MemoryFiles) -> None:
        files = FaultyFiles(memory_files)
        file = files.open("data/file", "create")
        files.fail("write", times=None, error=None, written=0)

        with pytest.raises(OSError, match="Input/output error"):
            write_all(file, [b"abc"], 0)


def test_appending_makes_the_file_if_need_be(memory_files: MemoryFiles) -> None:
    append_to(memory_files, "data/file", [b"a", b"b"])
    append_to(memory_files, "data/file", [b"c"])

    assert b"abc" == memory_files.open("data/file", "read").read(0, 10)


def test_an_error_says_what_failed_and_why() -> None:
    error = storage_error("write to", "data/t", OSError(28, "No space left on device"))

    assert "cannot write to data/t: disk full (No space left on device)" == str(error)
    assert "disk full (No space left on device)" == error.reason
