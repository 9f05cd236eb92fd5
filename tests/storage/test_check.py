"""A check finds all issues of a data path and changes nothing."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.frames import WALL_NS, frame, frames

from penstock.common.errors import DataPathError
from penstock.storage import DataPath, LogSettings, check_data_path
from penstock.storage import index as index_module
from penstock.storage.batch import checksum_seed
from penstock.storage.check import stored_log_id
from penstock.storage.index import (
    Checkpoint,
    DeferredBatch,
    DeferredIndex,
    encode_index,
    index_seed,
    maybe_checkpoint,
    maybe_index,
)
from penstock.testing import MemoryFiles

SEQ = WALL_NS // 1000
FOLDER = "data/topics/t"
# Room for three batches of one short message.
SMALL = LogSettings(max_bytes_per_file=230)
FIRST = f"{FOLDER}/{SEQ:020}"
LAST = f"{FOLDER}/{SEQ + 3:020}"


def fill(files: MemoryFiles) -> DataPath:
    """Five messages in two segments, and a channel."""
    data_path = DataPath.open("data", SMALL, files)
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    for at, body in enumerate("abcde"):
        store.log.append(frames(body), WALL_NS + at)
    store.cursors.create("c", SEQ)
    store.cursors.finish("c", SEQ, SEQ + 2)
    store.cursors.flush()
    return data_path


@pytest.fixture
def closed(memory_files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> MemoryFiles:
    monkeypatch.setattr(index_module, "INDEX_SPACING_BYTES", 60)
    fill(memory_files).close()
    return memory_files


def problems(files: MemoryFiles) -> list[tuple[bool, str]]:
    return [(issue.is_damage, str(issue)) for issue in check_data_path("data", files)]


def content(files: MemoryFiles, path: str) -> bytes:
    file = files.open(path, "read")
    return file.read(0, file.size())


def replace(files: MemoryFiles, path: str, data: bytes) -> None:
    file = files.open(path, "write")
    file.truncate(0)
    file.write(data, 0)


def first_index_seed(files: MemoryFiles) -> int | None:
    log_id = stored_log_id(files, FOLDER)
    assert log_id is not None
    return index_seed(checksum_seed(log_id), SEQ)


class TestNoIssues:
    def test_closed_data_path(self, closed: MemoryFiles) -> None:
        assert [] == problems(closed)

    def test_data_path_after_a_crash(self, memory_files: MemoryFiles) -> None:
        fill(memory_files)
        memory_files.crash()

        assert [] == problems(memory_files)

    def test_data_path_without_topics(self, memory_files: MemoryFiles) -> None:
        DataPath.open("data", SMALL, memory_files).close()

        assert [] == problems(memory_files)


class TestErrors:
    def test_folder_is_not_a_data_path(self, memory_files: MemoryFiles) -> None:
        with pytest.raises(DataPathError, match="data is not a data path: it has no penstock"):
            check_data_path("data", memory_files)

    def test_data_path_in_use(self, memory_files: MemoryFiles) -> None:
        fill(memory_files)
        with pytest.raises(DataPathError, match="failed to lock data-path"):
            check_data_path("data", memory_files)

    def test_two_checks_at_once(self, closed: MemoryFiles) -> None:
        with_lock = closed.lock("data", shared=True)
        assert [] == problems(closed)
        with_lock.close()


class TestCrashLeftovers:
    """Issues that are not damage, because the next start repairs them."""

    def test_incomplete_batch(self, memory_files: MemoryFiles) -> None:
        fill(memory_files)
        memory_files.crash()
        size = len(content(memory_files, LAST + ".log"))
        memory_files.open(LAST + ".log", "write").truncate(size - 1)

        where = f"bytes {size - 61} to {size - 2}, messages {SEQ + 4} to {SEQ + 4}"
        problem = f"{LAST}.log: incomplete batch ({where})"
        assert [(False, problem)] == problems(memory_files)

    @pytest.mark.parametrize(
        ("path", "problem"),
        [
            (f"{FIRST}.log.new", "unfinished file"),
            (f"{FIRST}.log.bad", "damaged bytes were moved here"),
            ("data/topics/u~removed-1", "the removal of this topic was interrupted"),
        ],
    )
    def test_unfinished_and_damaged_files(
        self, closed: MemoryFiles, path: str, problem: str
    ) -> None:
        if path.endswith("removed"):
            closed.make_folder(path)
        else:
            closed.open(path, "create").close()

        assert [(False, f"{path}: {problem}")] == problems(closed)

    def test_incomplete_index_file(self, closed: MemoryFiles) -> None:
        closed.open(FIRST + ".index", "write").truncate(60)

        problem = "the index file is not valid; it will be made again from the segment"
        assert [(False, f"{FIRST}.index: {problem}")] == problems(closed)

    def test_incomplete_journal_record(self, closed: MemoryFiles) -> None:
        size = len(content(closed, f"{FOLDER}/cursors.1"))
        closed.open(f"{FOLDER}/cursors.1", "write").write(b"\x9ePSJ", size)

        where = f"bytes {size} to {size + 3}"
        problem = f"{FOLDER}/cursors.1: incomplete record ({where})"
        assert [(False, problem)] == problems(closed)

    def test_topic_creation_was_interrupted(self, closed: MemoryFiles) -> None:
        closed.make_folder("data/topics/u")

        assert [(False, "data/topics/u: there is no journal of the channels")] == problems(closed)


@pytest.mark.usefixtures("damaged_on_purpose")
class TestDamage:
    @pytest.mark.parametrize("kind", [".log", ".index"])
    def test_every_flipped_bit_is_detected(self, closed: MemoryFiles, kind: str) -> None:
        sound = content(closed, FIRST + kind)
        for bit in range(8 * len(sound)):
            damaged = bytearray(sound)
            damaged[bit // 8] ^= 1 << bit % 8
            replace(closed, FIRST + kind, bytes(damaged))

            assert [(kind == ".log", True)] == [
                (is_damage, line.startswith(FIRST + kind)) for is_damage, line in problems(closed)
            ]

    def test_every_flipped_bit_of_the_journal_is_detected(self, closed: MemoryFiles) -> None:
        sound = content(closed, f"{FOLDER}/cursors.1")
        for bit in range(8 * len(sound)):
            damaged = bytearray(sound)
            damaged[bit // 8] ^= 1 << bit % 8
            replace(closed, f"{FOLDER}/cursors.1", bytes(damaged))

            assert problems(closed)

    def test_truncated_segment(self, closed: MemoryFiles) -> None:
        size = len(content(closed, FIRST + ".log"))
        closed.open(FIRST + ".log", "write").truncate(size - 61)

        where = f"bytes {size - 61} to {size - 1}, messages {SEQ + 2} to {SEQ + 2}"
        problem = "the segment is shorter than its index file says"
        assert [(True, f"{FIRST}.log: {problem} ({where})")] == problems(closed)

    def test_missing_segment_in_the_middle_is_no_damage(self, closed: MemoryFiles) -> None:
        """It may have been trimmed."""
        closed.remove(FIRST + ".log")
        closed.remove(FIRST + ".index")

        assert [] == problems(closed)

    def test_missing_journal(self, closed: MemoryFiles) -> None:
        closed.remove(f"{FOLDER}/cursors.1")

        assert [(True, f"{FOLDER}: there is no journal of the channels")] == problems(closed)

    @pytest.mark.parametrize(
        "change",
        [
            lambda checkpoint: checkpoint._replace(next_seq=checkpoint.next_seq + 1),
            lambda checkpoint: checkpoint._replace(first_timestamp_ns=5),
            lambda checkpoint: checkpoint._replace(last_timestamp_ns=5),
            lambda checkpoint: checkpoint._replace(end=checkpoint.end - 1),
        ],
    )
    def test_index_file_with_wrong_checkpoint(
        self, closed: MemoryFiles, change: Callable[[Checkpoint], Checkpoint]
    ) -> None:
        data, seed = content(closed, FIRST + ".index"), first_index_seed(closed)
        checkpoint, index = maybe_checkpoint(data, seed), maybe_index(data, seed)
        assert checkpoint is not None
        assert index is not None
        replace(
            closed, FIRST + ".index", encode_index(change(checkpoint), index, DeferredIndex(), seed)
        )

        assert [True] == [is_damage for is_damage, _ in problems(closed)]

    def test_swapped_index_files(self, closed: MemoryFiles) -> None:
        first, last = content(closed, FIRST + ".index"), content(closed, LAST + ".index")
        replace(closed, FIRST + ".index", last)
        replace(closed, LAST + ".index", first)

        problem = "the index file is not valid; it will be made again from the segment"
        assert [(False, f"{path}.index: {problem}") for path in (FIRST, LAST)] == problems(closed)

    def test_missing_segment(self, closed: MemoryFiles) -> None:
        closed.remove(LAST + ".log")

        problem = "the segment is missing, but its index file exists"
        where = f"messages {SEQ + 3} to {SEQ + 4}"
        assert [(True, f"{LAST}.log: {problem} ({where})")] == problems(closed)

    def test_index_file_with_wrong_entries(self, closed: MemoryFiles) -> None:
        data, seed = content(closed, FIRST + ".index"), first_index_seed(closed)
        checkpoint, index = maybe_checkpoint(data, seed), maybe_index(data, seed)
        assert checkpoint is not None
        assert index is not None
        index._positions[1] += 1
        replace(closed, FIRST + ".index", encode_index(checkpoint, index, DeferredIndex(), seed))

        assert [(True, f"{FIRST}.index: the index file does not match its segment")] == (
            problems(closed)
        )

    def test_index_file_with_wrong_deferred_batch(self, closed: MemoryFiles) -> None:
        data, seed = content(closed, FIRST + ".index"), first_index_seed(closed)
        checkpoint, index, deferred = (
            maybe_checkpoint(data, seed),
            maybe_index(data, seed),
            DeferredIndex(),
        )
        assert checkpoint is not None
        assert index is not None
        deferred.add(DeferredBatch(SEQ, SEQ + 1, WALL_NS))
        replace(closed, FIRST + ".index", encode_index(checkpoint, index, deferred, seed))

        assert [(True, f"{FIRST}.index: the index file does not match its segment")] == (
            problems(closed)
        )

    def test_frames_with_wrong_sizes(self, memory_files: MemoryFiles) -> None:
        data_path = DataPath.open("data", SMALL, memory_files)
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        store.log.append([struct.pack(">I", 99) + b"short"], WALL_NS)
        data_path.close()

        assert [True] == [is_damage for is_damage, _ in problems(memory_files)]
        assert "does not contain 1 complete frames" in problems(memory_files)[0][1]

    def test_gap_in_the_sequence_numbers(self, memory_files: MemoryFiles) -> None:
        data_path = DataPath.open("data", SMALL, memory_files)
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        store.log.append([frame(b"a")], WALL_NS)
        store.log._segments[0].next_seq += 5
        store.log.append([frame(b"b")], WALL_NS)
        memory_files.crash()

        assert [True] == [is_damage for is_damage, _ in problems(memory_files)]
        assert f"sequence numbers do not continue after {SEQ}" in problems(memory_files)[0][1]

    def test_sequence_numbers_of_the_next_segment_are_a_leftover(
        self, memory_files: MemoryFiles
    ) -> None:
        data_path = DataPath.open("data", SMALL, memory_files)
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        for body in "abc":
            store.log.append(frames(body), WALL_NS)
        other = store.log._segments[0]
        store.log.append(frames("d"), WALL_NS)
        other.append(frames("x")[0], 1, WALL_NS, 0)
        memory_files.crash()

        assert [False] == [is_damage for is_damage, _ in problems(memory_files)]
        assert "a batch has sequence numbers of the next segment" in problems(memory_files)[0][1]


def test_check_changes_nothing(data_path: str) -> None:
    opened = DataPath.open(data_path, SMALL)
    opened.open_topic("t", wall_ns=WALL_NS)[0].log.append(frames("a"), WALL_NS)
    opened.close()

    def contents() -> list[tuple[Path, bytes, int]]:
        found = sorted(path for path in Path(data_path).rglob("*") if path.is_file())
        return [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in found]

    before = contents()

    assert [] == check_data_path(data_path)
    assert before == contents()
