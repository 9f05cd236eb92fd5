"""Files that are no longer needed are removed in a thread, or left to the next start."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.frames import WALL_NS, frames

from penstock.common.errors import StorageError
from penstock.storage import BackgroundRemover, DataPath, LogSettings, RealFiles, background_removal
from penstock.testing.waiting import wait_until

ONE_MESSAGE = LogSettings(max_bytes_per_file=100)


class SlowFiles(RealFiles):
    """Removes nothing before `go_on` is set; fails as often as `failures` says."""

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


def test_a_topic_is_deleted_before_its_files_are_removed(tmp_path: Path, files: SlowFiles) -> None:
    data_path = opened(tmp_path, files)
    for _ in range(2):  # the second while the first is still being removed
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        for body in "abc":
            store.log.append(frames(body), WALL_NS)
        data_path.remove_topic("t", wall_ns=WALL_NS)

    assert [] == data_path.topics()
    assert ["t~removed-1", "t~removed-2"] == sorted(
        each.name for each in (tmp_path / "topics").iterdir()
    )
    files.go_on.set()
    wait_until(lambda: not list((tmp_path / "topics").iterdir()), "the files to be removed")
    data_path.close()


def test_what_a_process_did_not_remove_the_next_one_does(tmp_path: Path, files: SlowFiles) -> None:
    data_path = opened(tmp_path, files)
    data_path.open_topic("t", wall_ns=WALL_NS)
    data_path.remove_topic("t", wall_ns=WALL_NS)
    data_path._lock.close()  # the process has ended

    again = SlowFiles()
    data_path = opened(tmp_path, again)
    data_path.open_topic("t", wall_ns=WALL_NS)
    data_path.remove_topic("t", wall_ns=WALL_NS)
    again.go_on.set()
    wait_until(lambda: not list((tmp_path / "topics").iterdir()), "the files to be removed")
    data_path.close()


def test_a_segment_is_trimmed_before_its_file_is_removed(tmp_path: Path, files: SlowFiles) -> None:
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


def test_a_file_that_cannot_be_removed_is_reported_and_tried_again(
    tmp_path: Path, files: SlowFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_removal, "RETRY_SECONDS", 0.01)
    failures: list[StorageError] = []
    files.failures = 1
    files.go_on.set()
    data_path = opened(tmp_path, files, failures)
    data_path.open_topic("t", wall_ns=WALL_NS)
    data_path.remove_topic("t", wall_ns=WALL_NS)

    wait_until(lambda: not list((tmp_path / "topics").iterdir()), "the files to be removed")
    data_path.close()
    removed = f"{tmp_path}/topics/t~removed-1"
    assert [f"cannot remove {removed}: Operation not permitted"] == [str(each) for each in failures]


def test_closing_does_not_wait_for_everything(tmp_path: Path, files: SlowFiles) -> None:
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
