"""Real files, the file pool and background removal. tests/testing/test_files.py tests all kinds."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.frames import WALL_NS, frames

from penstock.common.errors import StorageError
from penstock.storage import BackgroundRemover, DataPath, LogSettings
from penstock.storage import files as files_module
from penstock.storage.files import (
    FilePool,
    Handle,
    RealFiles,
    append_and_sync,
    storage_error,
    write_all,
)
from penstock.testing import FaultyFiles, MemoryFiles
from penstock.testing.waiting import wait_until


def test_files_are_private_to_the_user(tmp_path: Path) -> None:
    files = RealFiles()
    files.open(str(tmp_path / "file"), "create").close()
    files.make_folder(str(tmp_path / "folder"))

    assert 0o600 == (tmp_path / "file").stat().st_mode & 0o777
    assert 0o700 == (tmp_path / "folder").stat().st_mode & 0o777


def test_reserved_space_does_not_change_the_size(tmp_path: Path) -> None:
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


def test_close_releases_the_lock(tmp_path: Path) -> None:
    files = RealFiles()
    files.lock(str(tmp_path)).close()
    fds = os.listdir("/proc/self/fd")
    lock = files.lock(str(tmp_path))
    with pytest.raises(BlockingIOError):
        files.lock(str(tmp_path))
    lock.close()

    assert len(fds) == len(os.listdir("/proc/self/fd"))


class TestWriteAll:
    def test_short_writes_are_continued(self, memory_files: MemoryFiles) -> None:
        files = FaultyFiles(memory_files)
        file = files.open("data/file", "create")
        files.fail("write", times=2, error=None, written=2)

        assert 7 == write_all(file, [b"abc", b"defg"], 1)
        assert b"\0abcdefg" == file.read(0, 10)

    def test_write_of_zero_bytes_is_an_error(self, memory_files: MemoryFiles) -> None:
        files = FaultyFiles(memory_files)
        file = files.open("data/file", "create")
        files.fail("write", times=None, error=None, written=0)

        with pytest.raises(OSError, match="Input/output error"):
            write_all(file, [b"abc"], 0)


def test_append_creates_the_file(memory_files: MemoryFiles) -> None:
    append_and_sync(memory_files, "data/file", [b"a", b"b"])
    append_and_sync(memory_files, "data/file", [b"c"])

    assert b"abc" == memory_files.open("data/file", "read").read(0, 10)


def test_storage_error_text() -> None:
    error = storage_error("write to", "data/t", OSError(28, "No space left on device"))

    assert "cannot write to data/t: disk full (No space left on device)" == str(error)
    assert "disk full (No space left on device)" == error.reason


@pytest.fixture
def pool(memory_files: MemoryFiles) -> FilePool:
    return FilePool(memory_files, 2)


def created(pool: FilePool, count: int) -> list[Handle]:
    handles = [pool.handle(f"data/{at}") for at in range(count)]
    for handle in handles:
        handle.create().write(handle.path.encode(), 0)
    return handles


def test_oldest_file_is_closed(pool: FilePool) -> None:
    first, second, third = created(pool, 3)

    assert 2 == len(pool)
    assert (True, False, False) == (first.file is None, second.file is None, third.file is None)


def test_closed_file_is_reopened(pool: FilePool) -> None:
    handles = created(pool, 5)

    assert [handle.path.encode() for handle in handles] == [
        handle.open().read(0, 100) for handle in handles
    ]
    assert 2 == len(pool)


def test_pinned_file_stays_open(pool: FilePool) -> None:
    first = created(pool, 1)[0]
    file = first.pin()
    others = [pool.handle(f"data/other-{at}") for at in range(3)]
    for other in others:
        other.create()

    assert file is first.file
    assert 2 == len(pool)


def test_close_waits_for_the_last_unpin(pool: FilePool) -> None:
    handle = created(pool, 1)[0]
    handle.pin()
    handle.pin()
    handle.close()
    handle.unpin()
    assert handle.file is not None

    handle.unpin()
    assert handle.file is None
    assert 0 == len(pool)


def test_limit_is_exceeded_if_all_files_are_pinned(pool: FilePool) -> None:
    for handle in created(pool, 2):
        handle.pin()
    pool.handle("data/more").create()

    assert 3 == len(pool)


ONE_MESSAGE = LogSettings(max_bytes_per_file=140)


class SlowFiles(RealFiles):
    """Waits for `go_on` before each removal; fails `failures` times."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.failures = 0

    def remove(self, path: str) -> None:
        assert self.go_on.wait(60)
        if self.failures:
            self.failures -= 1
            raise PermissionError(1, "Operation not permitted")
        super().remove(path)


@pytest.fixture
def files() -> Iterator[SlowFiles]:
    files = SlowFiles()
    yield files
    files.go_on.set()


def opened(path: Path, files: SlowFiles, failures: list[StorageError] | None = None) -> DataPath:
    told = failures if failures is not None else []
    remover = BackgroundRemover(files, told.append)
    return DataPath.open(str(path), ONE_MESSAGE, remover=remover)


def files_below(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def test_topic_is_deleted_before_its_files_are_removed(tmp_path: Path, files: SlowFiles) -> None:
    data_path = opened(tmp_path, files)
    for _ in range(2):  # the second while the first is still being removed
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        for body in "abc":
            store.log.append(frames(body), WALL_NS)
        data_path.remove_topic("t")

    assert [] == data_path.topics()
    assert ["t~removed-1", "t~removed-2"] == sorted(
        each.name for each in (tmp_path / "topics").iterdir()
    )
    files.go_on.set()
    wait_until(lambda: not list((tmp_path / "topics").iterdir()), "the files to be removed")
    data_path.close()


def test_next_start_removes_remaining_files(tmp_path: Path, files: SlowFiles) -> None:
    data_path = opened(tmp_path, files)
    data_path.open_topic("t", wall_ns=WALL_NS)
    data_path.remove_topic("t")
    data_path._lock.close()  # the process has ended

    again = SlowFiles()
    data_path = opened(tmp_path, again)
    data_path.open_topic("t", wall_ns=WALL_NS)
    data_path.remove_topic("t")
    again.go_on.set()
    wait_until(lambda: not list((tmp_path / "topics").iterdir()), "the files to be removed")
    data_path.close()


def test_segment_is_trimmed_before_its_file_is_removed(tmp_path: Path, files: SlowFiles) -> None:
    data_path = opened(tmp_path, files)
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    for body in "abc":
        store.log.append(frames(body), WALL_NS)
    store.log.trim(lambda _first, _end: False, WALL_NS)

    assert 1 == len(store.log.segments)
    assert 3 == sum(name.endswith(".log") for name in files_below(tmp_path))
    files.go_on.set()
    wait_until(
        lambda: 1 == sum(name.endswith(".log") for name in files_below(tmp_path)),
        "the files to be removed",
    )
    data_path.close()


def test_failed_removal_is_reported_and_retried(
    tmp_path: Path, files: SlowFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "RETRY_SECONDS", 0.01)
    failures: list[StorageError] = []
    files.failures = 1
    files.go_on.set()
    data_path = opened(tmp_path, files, failures)
    data_path.open_topic("t", wall_ns=WALL_NS)
    data_path.remove_topic("t")

    wait_until(lambda: not list((tmp_path / "topics").iterdir()), "the files to be removed")
    data_path.close()
    removed = f"{tmp_path}/topics/t~removed-1"
    assert [f"cannot remove {removed}: Operation not permitted"] == [str(each) for each in failures]


def test_close_waits_only_for_the_removal_in_progress(tmp_path: Path, files: SlowFiles) -> None:
    remover = BackgroundRemover(files, print)
    for name in "abc":
        (tmp_path / name).touch()
        remover.remove(str(tmp_path / name))
    closing = threading.Thread(target=remover.close)
    closing.start()
    wait_until(lambda: remover._is_closing, "the remover to be closed")
    files.go_on.set()
    closing.join()

    assert ["b", "c"] == files_below(tmp_path)
