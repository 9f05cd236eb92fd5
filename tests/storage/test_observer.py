"""A store observer is told about every change of the files of a data path."""

import pytest
from tests.storage.frames import WALL_NS, frames

from penstock.common.errors import StorageError
from penstock.storage import DataPath, LogSettings, TopicStore
from penstock.testing import FaultyFiles, MemoryFiles

# Room for two batches of one short message.
SMALL = LogSettings(max_bytes_per_file=170)


class Recorder:
    """Records the calls, with the state of the store at that time."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def topic_created(self, name: str, store: TopicStore) -> None:
        self.calls.append(("created", name, store.name))

    def topic_removed(self, name: str, log_id: str) -> None:
        self.calls.append(("removed", name, log_id))

    def appended(self, store: TopicStore) -> None:
        self.calls.append(("appended", store.name, store.log.next_seq))

    def journal_written(self, store: TopicStore) -> None:
        cursors = store.cursors
        self.calls.append(("journal", store.name, cursors.generation, cursors.journal_end))

    def segment_removed(self, store: TopicStore, first_seq: int) -> None:
        self.calls.append(("trimmed", store.name, first_seq, store.log.first_seq))

    def damage_found(self, store: TopicStore) -> None:
        self.calls.append(("damage", store.name))

    def take(self) -> list[tuple[object, ...]]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def files(memory_files: MemoryFiles) -> FaultyFiles:
    return FaultyFiles(memory_files)


def open_observed(files: FaultyFiles, epoch: int = 0) -> tuple[DataPath, Recorder]:
    observer = Recorder()
    return DataPath.open("data", SMALL, files, epoch=epoch, observer=observer), observer


class TestTopics:
    def test_new_and_existing_topics(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        data_path.open_topic("new", wall_ns=WALL_NS)
        assert [("created", "new", "new")] == observer.take()
        data_path.close()

        data_path, observer = open_observed(files)
        data_path.open_topic("new", wall_ns=WALL_NS)
        assert [("created", "new", "new")] == observer.take()

    def test_removal_is_reported_once_the_folder_is_renamed(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        observer.take()
        data_path.remove_topic("t")

        assert [("removed", "t", store.log.log_id)] == observer.take()

    def test_failed_removal_is_not_reported(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        data_path.open_topic("t", wall_ns=WALL_NS)
        observer.take()
        files.fail("rename")
        with pytest.raises(StorageError):
            data_path.remove_topic("t")

        assert [] == observer.take()

    def test_topic_that_was_not_opened(self, files: FaultyFiles) -> None:
        data_path, _ = open_observed(files)
        data_path.open_topic("t", wall_ns=WALL_NS)
        data_path.close()
        data_path, observer = open_observed(files)
        data_path.remove_topic("t")

        assert [("removed", "t", "")] == observer.take()


class TestWrites:
    def test_appends(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        log = data_path.open_topic("t", wall_ns=WALL_NS)[0].log
        observer.take()
        first = log.next_seq
        log.append(frames("a", "b"), 1)
        log.append(frames("c"), 1)

        assert [("appended", "t", first + 2), ("appended", "t", first + 3)] == observer.take()

    def test_failed_append_is_not_reported(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        log = data_path.open_topic("t", wall_ns=WALL_NS)[0].log
        log.append(frames("a"), 1)
        observer.take()
        files.fail("write")
        with pytest.raises(StorageError):
            log.append(frames("b"), 1)

        assert [] == observer.take()

    def test_journal_records(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        observer.take()
        cursors, first = store.cursors, store.log.next_seq
        generation = cursors.generation
        cursors.create("c", first)
        cursors.finish("c", first, first + 1)
        end = cursors.journal_end
        assert [("journal", "t", generation, end)] == observer.take()
        cursors.flush()
        assert [("journal", "t", generation, cursors.journal_end)] == observer.take()
        assert end < cursors.journal_end

    def test_new_journal_generation(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        cursors = data_path.open_topic("t", wall_ns=WALL_NS)[0].cursors
        generation = cursors.generation
        while cursors.generation == generation:
            observer.take()
            cursors.reserve_below(cursors.next_unused_seq + 1)

        assert [("journal", "t", generation + 1, cursors.journal_end)] == observer.take()

    def test_trimmed_segments(self, files: FaultyFiles) -> None:
        data_path, observer = open_observed(files)
        log = data_path.open_topic("t", wall_ns=WALL_NS)[0].log
        first = log.next_seq
        for body in "abcde":
            log.append(frames(body), 1)
        observer.take()
        log.trim(lambda _first, _end: False, WALL_NS)

        assert [("trimmed", "t", first, first + 4), ("trimmed", "t", first + 2, first + 4)] == (
            observer.take()
        )
