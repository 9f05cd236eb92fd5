"""A segment stores batches, reads runs of messages, and restores its state from its index file."""

import errno
from collections.abc import Sequence
from typing import cast

import pytest
from tests.storage.frames import bodies_in, frames

from penstock.common.errors import CorruptBatchError
from penstock.storage import index as index_module
from penstock.storage.batch import HEADER_BYTES
from penstock.storage.files import File, FilePool
from penstock.storage.segment import Segment
from penstock.testing import FaultyFiles, MemoryFiles

# A batch with one message of one byte.
BATCH_BYTES = HEADER_BYTES + 5


class Bench:
    """A segment on files that can fail."""

    def __init__(self, memory: MemoryFiles) -> None:
        self.memory = memory
        self.files = FaultyFiles(memory)
        self.segment = self.new_segment()
        self.segment.handle.create()

    def new_segment(self) -> Segment:
        return Segment(FilePool(self.files, 8), "data", 100, bytes(16))

    def append(self, *bodies: str, timestamp_ns: int = 1, due_ns: int = 0) -> None:
        self.segment.append(b"".join(frames(*bodies)), len(bodies), timestamp_ns, due_ns)

    def read(self, seq: int, max_bytes: int = 100_000) -> list[str]:
        return bodies_in(self.segment.read(seq, max_bytes))

    def rewritten(self) -> list[tuple[int, int]]:
        """Rewrite the unsynced batches; return the start and the end of every write."""
        file = self.segment.handle.open()
        writes = []

        class Recorder:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def write_parts(self, parts: Sequence[bytes], position: int) -> int:
                written = file.write_parts(parts, position)
                writes.append((position, position + written))
                return written

        self.segment.handle.file = cast("File", Recorder())
        self.segment.rewrite_unsynced(self.segment.end)
        self.segment.handle.file = file
        return writes

    def finalize(self) -> None:
        self.segment.synced_end = self.segment.end
        self.segment.finalize()

    def reloaded(self) -> Segment:
        segment = self.new_segment()
        checkpoint = segment.read_checkpoint()
        assert checkpoint is not None
        segment.restore(checkpoint)
        return segment

    def flip_byte(self, position: int) -> None:
        file = self.memory.open(self.segment.handle.path, "write")
        file.write(bytes([file.read(position, 1)[0] ^ 1]), position)


@pytest.fixture
def bench(memory_files: MemoryFiles) -> Bench:
    return Bench(memory_files)


class TestReading:
    def test_run_begins_at_the_requested_message(self, bench: Bench) -> None:
        bench.append("a", "b", "c")
        bench.append("d", "e")

        assert ["a", "b", "c", "d", "e"] == bench.read(100)
        assert ["b", "c", "d", "e"] == bench.read(101)
        assert ["e"] == bench.read(104)
        assert [] == bench.read(105)

    def test_batches_with_equal_due_time_form_one_run(self, bench: Bench) -> None:
        bench.append("a")
        bench.append("b", "c")
        bench.append("d", due_ns=50)
        bench.append("e", due_ns=50)
        bench.append("f", due_ns=60)
        bench.append("g")
        runs = bench.segment.read(100, 100_000)

        assert [(100, 3, 0), (103, 2, 50), (105, 1, 60), (106, 1, 0)] == [
            (run.first_seq, len(run.frames), run.due_ns) for run in runs
        ]

    def test_read_returns_about_max_bytes(self, bench: Bench) -> None:
        for at in range(20):
            bench.append(str(at) * 100)

        assert 1 == len(bench.read(100, 1))
        assert 4 <= len(bench.read(100, 1200)) <= 8

    def test_large_batch_is_read_completely(self, bench: Bench) -> None:
        bench.append("a" * 5000, "b" * 5000)
        bench.append("c")

        assert ["a" * 5000, "b" * 5000] == bench.read(100, 100)
        assert ["c"] == bench.read(102, 100)

    def test_read_from_every_message_with_a_sparse_index(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(index_module, "INDEX_SPACING_BYTES", 500)
        bodies = [f"{at:04}" * (1 + at % 7) for at in range(200)]
        for at in range(0, 200, 4):
            bench.append(*bodies[at : at + 4])

        assert 10 < len(bench.segment.index) < 30
        for seq in [*range(200), *reversed(range(200))]:
            assert bodies[seq] == bench.read(100 + seq, 300)[0]

    def test_many_readers_are_independent(self, bench: Bench) -> None:
        for at in range(200):
            bench.append(str(at))
        places = dict.fromkeys(range(100), 100)
        for _ in range(5):
            for reader, seq in places.items():
                runs = bench.segment.read(seq, 150 + reader)
                assert str(seq - 100) == bodies_in(runs)[0]
                places[reader] = runs[-1].next_seq

    def test_seq_at_time(self, bench: Bench) -> None:
        for at in range(10):
            bench.append("x", timestamp_ns=10 * at)

        assert [100, 100, 101, 109, 110] == [
            bench.segment.seq_at_time(time) for time in (-5, 0, 1, 90, 91)
        ]

    def test_seq_at_time_with_a_clock_set_back(self, bench: Bench) -> None:
        for time in (10, 50, 20, 60, 30):
            bench.append("x", timestamp_ns=time)

        assert 101 == bench.segment.seq_at_time(15)
        assert 103 == bench.segment.seq_at_time(55)
        assert (10, 60) == (
            bench.segment.info.first_timestamp_ns,
            bench.segment.info.last_timestamp_ns,
        )


class TestDamage:
    @pytest.fixture(autouse=True)
    def stored(self, bench: Bench) -> None:
        for body in "abc":
            bench.append(body)

    @pytest.mark.parametrize("at", [0, 20, HEADER_BYTES + 2])
    def test_damage_is_skipped_and_recorded(self, bench: Bench, at: int) -> None:
        second_at = bench.segment.end - 2 * BATCH_BYTES
        bench.flip_byte(second_at + at)

        assert ["a", "c"] == bench.read(100)
        assert ["c"] == bench.read(101)
        assert [(second_at, second_at + BATCH_BYTES)] == [
            (issue.first_byte, issue.end_byte) for issue in bench.segment.damage
        ]

    def test_damage_at_the_end(self, bench: Bench) -> None:
        bench.flip_byte(bench.segment.end - 1)

        assert ["a", "b"] == bench.read(100)
        assert [] == bench.read(102)

    def test_truncated_file_is_damage(self, bench: Bench) -> None:
        bench.memory.open(bench.segment.handle.path, "write").truncate(bench.segment.end - 1)

        assert ["a", "b"] == bench.read(100)
        assert [True] == [issue.is_damage for issue in bench.segment.damage]


class TestFailingWrites:
    @pytest.mark.parametrize("written", [0, 1, 56, 58, 60, 1000])
    def test_failed_append_leaves_nothing(self, bench: Bench, written: int) -> None:
        bench.append("a")
        size = bench.segment.end
        bench.files.fail("write", error=errno.ENOSPC, written=written)
        with pytest.raises(OSError, match="No space"):
            bench.append("b")

        assert size == bench.segment.handle.open().size()
        bench.append("c")
        assert ["a", "c"] == bench.read(100)

    def test_failed_truncate_sets_is_broken(self, bench: Bench) -> None:
        bench.append("a")
        bench.files.fail("write", written=1000)
        bench.files.fail("truncate")
        with pytest.raises(OSError, match="Input/output"):
            bench.append("b")

        assert bench.segment.is_broken
        assert ["a"] == bench.read(100)

        bench.segment.truncate_to_end()
        assert not bench.segment.is_broken
        assert bench.segment.end == bench.segment.handle.open().size()


class TestRewriting:
    def test_unsynced_batches_are_rewritten(self, bench: Bench) -> None:
        for body in "abc":
            bench.append(body)
        synced_end = bench.segment.end - 2 * BATCH_BYTES
        bench.segment.synced_end = synced_end
        writes = bench.rewritten()

        assert [(synced_end, bench.segment.end)] == writes
        assert ["a", "b", "c"] == bench.read(100)

    def test_header_is_rewritten_with_the_first_batch(self, bench: Bench) -> None:
        bench.append("a")

        assert [(0, bench.segment.end)] == bench.rewritten()

    def test_damaged_unsynced_batches_are_not_rewritten(self, bench: Bench) -> None:
        bench.append("a")
        bench.flip_byte(100)

        with pytest.raises(CorruptBatchError, match="unsynced data is damaged at byte 40"):
            bench.segment.rewrite_unsynced(bench.segment.end)


class TestIndexFile:
    @pytest.fixture(autouse=True)
    def stored(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index_module, "INDEX_SPACING_BYTES", 100)
        for at, body in enumerate("abcdef"):
            bench.append(body, timestamp_ns=at + 1)
        bench.finalize()

    def test_index_file_replaces_the_scan(self, bench: Bench) -> None:
        segment = bench.reloaded()

        assert bench.segment.info == segment.info
        assert segment.is_synced
        assert bench.segment.index.entries() == segment.index.entries()
        assert ["d", "e", "f"] == bodies_in(segment.read(103, 1000))

    def test_index_file_of_a_segment_that_has_grown(self, bench: Bench) -> None:
        bench.append("g", timestamp_ns=7)
        bench.append("h", timestamp_ns=8)
        segment = bench.reloaded()

        assert 106 == segment.next_seq
        for batch, _, _ in bench.segment.batches(segment.end, 1000):
            segment.add_scanned(batch)
        assert bench.segment.info == segment.info
        assert bench.segment.index.entries() == segment.index.entries()
        assert not segment.is_synced

    @pytest.mark.parametrize("cut", [0, 60])
    def test_damaged_index_is_rebuilt(self, bench: Bench, cut: int) -> None:
        segment = bench.reloaded()
        bench.memory.open("data/00000000000000000100.index", "write").truncate(cut)

        assert bench.segment.index.entries() == segment.index.entries()

    def test_damaged_index_file_is_written_again(self, bench: Bench) -> None:
        written = bench.reloaded().read_checkpoint()
        segment = bench.reloaded()
        path = "data/00000000000000000100.index"
        bench.memory.open(path, "write").truncate(60)
        assert segment.index.entries()
        assert 0 == segment.indexed_end
        segment.finalize()

        assert written == bench.reloaded().read_checkpoint()
        assert segment.end == segment.indexed_end
        assert bench.memory.open(path, "read").size() > 60

    def test_removal_removes_the_index_file(self, bench: Bench) -> None:
        bench.segment.remove()

        assert [] == bench.memory.list_names("data")
        assert None is bench.segment.read_checkpoint()
