"""Log and cursors of a topic are consistent after loading, whatever happened to either."""

from random import Random

import pytest
from tests.storage.frames import WALL_NS, frames, open_topic, read_all

from penstock.storage import DataPath, Files, Issue, LogSettings, TopicStore, close_stores
from penstock.storage.batch import SEGMENT_HEADER_BYTES
from penstock.storage.data_dir import read_format_file
from penstock.testing import FaultyFiles, MemoryFiles

FIRST_SEQ = WALL_NS // 1000
SECOND_NS = 1_000_000_000
FOLDER = "data/topics/t"
SEGMENT = f"{FOLDER}/{FIRST_SEQ:020}.log"
# Room for one batch of one short message.
SMALL = LogSettings(max_bytes_per_file=110)


def reopened(
    files: MemoryFiles, *, wall_ns: int = WALL_NS + SECOND_NS
) -> tuple[TopicStore, list[Issue]]:
    data_path = DataPath.open("data", SMALL, files)
    return data_path.open_topic("t", wall_ns=wall_ns)


@pytest.fixture
def store(memory_files: MemoryFiles) -> TopicStore:
    """Four messages in four segments, and a channel that has finished none."""
    store = open_topic(memory_files, SMALL)[1]
    for body in "abcd":
        store.log.append(frames(body), WALL_NS)
    store.cursors.create("c", FIRST_SEQ)
    return store


def reserved_below(files: Files) -> int:
    """The first sequence number that is not reserved."""
    format_file = read_format_file(files, "data")
    assert format_file is not None
    return format_file.reserved_below


def flip_byte(files: MemoryFiles, path: str, position: int) -> None:
    file = files.open(path, "write")
    file.write(bytes([file.read(position, 1)[0] ^ 1]), position)


def test_sequence_continues_after_a_crash(store: TopicStore, memory_files: MemoryFiles) -> None:
    memory_files.crash()
    found, issues = reopened(memory_files)

    assert [] == issues
    assert FIRST_SEQ + 4 == found.log.next_seq == store.log.next_seq


def test_trimmed_sequence_numbers_are_not_reused_after_two_crashes(
    store: TopicStore, memory_files: MemoryFiles
) -> None:
    """The only record of the trimmed message is the name of an empty segment."""
    store.log._roll()
    store.log.trim(lambda first, _: first < FIRST_SEQ + 3, WALL_NS)
    for _ in range(2):
        memory_files.crash()
        found, _ = reopened(memory_files)

        assert FIRST_SEQ + 4 == found.log.next_seq


@pytest.mark.parametrize("wall_ns", [WALL_NS + SECOND_NS, WALL_NS - 60 * SECOND_NS])
def test_sequence_numbers_are_skipped_after_a_power_loss(
    store: TopicStore, memory_files: MemoryFiles, wall_ns: int
) -> None:
    """Also if the clock was set back."""
    store.log.sync()
    store.cursors.sync()
    memory_files._boots += 1
    memory_files.crash()
    skipped = (FIRST_SEQ + 4, reserved_below(memory_files))
    found, issues = reopened(memory_files, wall_ns=wall_ns)

    assert skipped[1] == found.log.next_seq
    assert [skipped] == [(issue.first_seq, issue.end_seq) for issue in issues]
    assert [skipped] == found.log.gaps(FIRST_SEQ, 2 * skipped[1])
    still_open = found.cursors.progress["c"].open_ranges(FIRST_SEQ, skipped[1])
    assert [(FIRST_SEQ, FIRST_SEQ + 4)] == still_open
    found.log.append(frames("e"), WALL_NS)
    assert list("abcde") == read_all(found.log)


def test_second_power_loss_skips_further(store: TopicStore, memory_files: MemoryFiles) -> None:
    """Although messages stored between the two were never synced, and the clock did not advance."""
    store.cursors.sync()
    memory_files.lose_power(Random(0))
    between = reopened(memory_files, wall_ns=WALL_NS)[0].log
    between.append(frames("e"), WALL_NS)
    memory_files.lose_power(Random(0))
    found, _ = reopened(memory_files, wall_ns=WALL_NS)

    assert between.next_seq < found.log.next_seq


def test_skipped_sequence_numbers_stay_skipped(
    store: TopicStore, memory_files: MemoryFiles
) -> None:
    store.log.sync()
    store.cursors.sync()
    memory_files._boots += 1
    memory_files.crash()
    unused_seq = reserved_below(memory_files)
    reopened(memory_files)
    memory_files.crash()
    found, issues = reopened(memory_files, wall_ns=WALL_NS)

    assert unused_seq == found.log.next_seq
    assert [] == issues


def test_sequence_numbers_in_the_journal_are_not_reused(
    store: TopicStore, memory_files: MemoryFiles
) -> None:
    """As if the end of the log was lost, but not the journal."""
    store.cursors.finish("c", FIRST_SEQ, FIRST_SEQ + 4)
    store.cursors.flush()
    memory_files.crash()
    memory_files.remove(f"{FOLDER}/{FIRST_SEQ + 3:020}.log")
    found, _ = reopened(memory_files)

    assert FIRST_SEQ + 4 == found.log.next_seq


def test_gaps_are_finished_for_every_channel(store: TopicStore, memory_files: MemoryFiles) -> None:
    store.close()
    memory_files.remove(f"{FOLDER}/{FIRST_SEQ:020}.log")
    memory_files.remove(f"{FOLDER}/{FIRST_SEQ + 2:020}.log")
    memory_files.crash()
    progress = reopened(memory_files)[0].cursors.progress["c"]

    assert [(FIRST_SEQ + 1, FIRST_SEQ + 2), (FIRST_SEQ + 3, FIRST_SEQ + 4)] == (
        progress.open_ranges(FIRST_SEQ, FIRST_SEQ + 4)
    )


def test_damaged_end_of_unknown_length_skips_sequence_numbers(
    store: TopicStore, memory_files: MemoryFiles
) -> None:
    memory_files.crash()
    flip_byte(memory_files, f"{FOLDER}/{FIRST_SEQ + 3:020}.log", SEGMENT_HEADER_BYTES)
    unused_seq = reserved_below(memory_files)
    found, _ = reopened(memory_files)

    assert list("abc") == read_all(found.log)
    assert unused_seq == found.log.next_seq
    assert store.log.next_seq < found.log.next_seq


class TestWithoutAJournal:
    def test_all_messages_are_kept_for_new_channels(
        self, store: TopicStore, memory_files: MemoryFiles
    ) -> None:
        store.close()
        memory_files.crash()
        memory_files.remove(f"{FOLDER}/cursors.1")
        found, issues = reopened(memory_files)

        assert FIRST_SEQ == found.cursors.pause_point
        assert {} == found.cursors.progress
        assert FIRST_SEQ + 4 == found.log.next_seq
        assert [
            "the journal of the channels is missing; all messages are kept for new channels"
        ] == [issue.problem for issue in issues]

    def test_damaged_journal_keeps_all_messages_for_new_channels(
        self, store: TopicStore, memory_files: MemoryFiles
    ) -> None:
        store.close()
        memory_files.crash()
        journal = memory_files.open(f"{FOLDER}/cursors.1", "write")
        journal.write(b"?" * journal.size(), 0)
        found, issues = reopened(memory_files)

        assert FIRST_SEQ == found.cursors.pause_point
        assert all(issue.is_damage for issue in issues)
        assert 2 == len(issues)

    def test_missing_journal_without_messages(self, memory_files: MemoryFiles) -> None:
        DataPath.open("data", SMALL, memory_files).close()
        memory_files.make_folder(FOLDER)
        found, issues = reopened(memory_files)

        assert [] == issues
        assert FIRST_SEQ + 1_000_000 == found.log.next_seq == found.cursors.pause_point


def test_damaged_messages_do_not_move_the_pause_point(
    store: TopicStore, memory_files: MemoryFiles
) -> None:
    store.cursors.remove("c")
    store.cursors.set_pause_point(FIRST_SEQ + 3)
    memory_files.crash()
    flip_byte(memory_files, SEGMENT, 60)
    found, issues = reopened(memory_files)

    assert [True] == [issue.is_damage for issue in issues]
    assert FIRST_SEQ + 3 == found.cursors.pause_point


def test_close_closes_log_and_cursors(store: TopicStore) -> None:
    store.cursors.finish("c", FIRST_SEQ, FIRST_SEQ + 1)
    store.close()

    assert store.is_closed
    assert not store.cursors.has_unflushed
    assert store.log.next_seq == store.log.synced_seq


class TestClosingMany:
    TOPICS = tuple(f"t{number}" for number in range(200))

    def opened(self, files: Files) -> tuple[DataPath, list[TopicStore]]:
        data_path = DataPath.open("data", LogSettings(), files)
        return data_path, [data_path.open_topic(name, wall_ns=WALL_NS)[0] for name in self.TOPICS]

    def test_all_topics_survive_a_power_loss(self, memory_files: MemoryFiles) -> None:
        _, stores = self.opened(memory_files)
        for store in stores:
            store.log.append(frames("a"), WALL_NS)
            store.cursors.create("c", FIRST_SEQ)
            store.cursors.finish("c", FIRST_SEQ, FIRST_SEQ + 1)
        assert [] == close_stores(stores)
        memory_files.lose_power(Random(1))
        unused_seq = reserved_below(memory_files)
        _, stores = self.opened(memory_files)

        assert [["a"]] * 200 == [read_all(store.log) for store in stores]
        assert {unused_seq} == {store.cursors.progress["c"].floor for store in stores}

    def test_failed_topic_is_reported_and_does_not_affect_others(
        self, memory_files: MemoryFiles
    ) -> None:
        files = FaultyFiles(memory_files)
        data_path, stores = self.opened(files)
        stores[7].cursors.create("c", FIRST_SEQ)
        stores[7].cursors.finish("c", FIRST_SEQ, FIRST_SEQ + 1)
        files.fail("write", times=None)
        failures = close_stores(stores)

        assert ["cannot write to data/topics/t7: Input/output error"] == list(map(str, failures))
        assert all(store.is_closed for store in stores)
        files.heal()
        data_path.close()
