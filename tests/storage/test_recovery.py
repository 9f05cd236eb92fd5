"""Recovery repairs and reports damaged segments, and loses no more than necessary."""

import pytest
from tests.seeds import fresh_random
from tests.storage.frames import bodies_in, frames

from penstock.storage.batch import (
    HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    StoredBatch,
    scan_batches,
)
from penstock.storage.files import FilePool
from penstock.storage.layout import Issue
from penstock.storage.segment import Segment
from penstock.storage.topic_storage import LoadedSegments, load_segments
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash
from penstock.testing.format_1 import encode_batch_1

FIRST_SEQ = 100
LOG_ID = bytes(range(16))
PATH = f"data/{FIRST_SEQ:020}.log"


def write_segment(
    files: MemoryFiles, *batches: str, first_seq: int = FIRST_SEQ, finalize: bool = False
) -> list[int]:
    """Write batches with one message per letter; return the positions of the batches and the
    end."""
    segment = Segment(FilePool(files, 8), "data", first_seq, LOG_ID)
    segment.handle.create()
    positions = [SEGMENT_HEADER_BYTES]
    for batch in batches:
        segment.append(b"".join(frames(*batch)), len(batch), 1, 0)
        positions.append(segment.end)
    if finalize:
        segment.synced_end = segment.end
        segment.finalize()
    return positions


def write_segment_1(files: MemoryFiles, letters: str, first_seq: int) -> None:
    """Write a segment of format 1 with one message per letter, and its index file."""
    segment = Segment(FilePool(files, 8), "data", first_seq, LOG_ID)
    frame_bytes = b"".join(frames(*letters))
    batch = encode_batch_1(frame_bytes, len(letters), first_seq, 0, 1, 0)
    segment.handle.create().write(batch, 0)
    segment.read_header()
    for found in scan_batches(segment.handle.open(), 0, len(batch), None):
        assert isinstance(found, StoredBatch)
        segment.add_scanned(found.header)
    segment.synced_end = segment.end
    segment.finalize()


def load(files: MemoryFiles | FaultyFiles, *, lost_power: bool = False) -> LoadedSegments:
    return load_segments(FilePool(files, 8), "data", LOG_ID, lost_power=lost_power)


def stored(loaded: LoadedSegments) -> dict[int, str]:
    """The stored letters by sequence number."""
    return {
        run.first_seq + at: body
        for segment in loaded.segments
        for run in segment.read(segment.first_seq, 100_000)
        for at, body in enumerate(bodies_in([run]))
    }


def change(files: MemoryFiles, position: int, data: bytes, path: str = PATH) -> None:
    files.open(path, "write").write(data, position)


def content(files: MemoryFiles, path: str) -> bytes:
    file = files.open(path, "read")
    return file.read(0, file.size())


class TestCleanSegments:
    def test_clean_segments_are_not_read(self, memory_files: MemoryFiles) -> None:
        positions = write_segment(memory_files, "ab", "c", finalize=True)
        # Reading the segment would detect this.
        change(memory_files, positions[0], bytes(positions[-1] - positions[0]))
        loaded = load(memory_files)

        assert [] == loaded.issues
        assert 103 == loaded.next_seq
        assert [True] == [segment.is_synced for segment in loaded.segments]

    def test_no_segments(self, memory_files: MemoryFiles) -> None:
        assert LoadedSegments([], [], 0, is_tail_lost=False) == load(memory_files)

    def test_segments_are_in_order(self, memory_files: MemoryFiles) -> None:
        write_segment(memory_files, "cd", first_seq=102, finalize=True)
        write_segment(memory_files, "ab", finalize=True)

        assert {100: "a", 101: "b", 102: "c", 103: "d"} == stored(load(memory_files))


class TestAfterACrash:
    def test_segment_without_index_file_is_scanned(self, memory_files: MemoryFiles) -> None:
        write_segment(memory_files, "ab", "c")
        loaded = load(memory_files)

        assert [] == loaded.issues
        assert {100: "a", 101: "b", 102: "c"} == stored(loaded)
        assert not loaded.segments[0].is_synced

    def test_scan_starts_at_the_end_of_the_index(self, memory_files: MemoryFiles) -> None:
        positions = write_segment(memory_files, "ab", "c", "d")
        walked = load(memory_files).segments[0].info
        grown = MemoryFiles()
        grown.make_folder("data")
        write_segment(grown, "ab", finalize=True)
        change(grown, positions[1], content(memory_files, PATH)[positions[1] :])
        # The part that the index file covers is not read.
        change(grown, positions[0], bytes(positions[1] - positions[0]))

        assert walked == load(grown).segments[0].info

    @pytest.mark.parametrize("kept", range(HEADER_BYTES + len(b"".join(frames("c", "d")))))
    def test_incomplete_batch_is_truncated(self, memory_files: MemoryFiles, kept: int) -> None:
        *_, last_at, _ = write_segment(memory_files, "a", "b", "cd")
        memory_files.open(PATH, "write").truncate(last_at + kept)
        loaded = load(memory_files)

        assert {100: "a", 101: "b"} == stored(loaded)
        assert 102 == loaded.next_seq
        assert last_at == memory_files.open(PATH, "read").size()
        assert [(last_at, last_at + kept, False)] * bool(kept) == [
            (issue.first_byte, issue.end_byte, issue.is_damage) for issue in loaded.issues
        ]
        assert [] == load(memory_files).issues

    def test_unfinished_files_are_removed(self, memory_files: MemoryFiles) -> None:
        write_segment(memory_files, "a", finalize=True)
        memory_files.open(f"data/{200:020}.log.new", "create").close()
        memory_files.open(f"data/{300:020}.index", "create").close()
        load(memory_files)

        assert [f"{100:020}.index", f"{100:020}.log"] == memory_files.list_names("data")

    def test_empty_segment_is_removed_and_its_number_kept(self, memory_files: MemoryFiles) -> None:
        write_segment(memory_files, "a", finalize=True)
        write_segment(memory_files, first_seq=500)
        loaded = load(memory_files)

        assert {100: "a"} == stored(loaded)
        assert 500 == loaded.next_seq
        assert f"{500:020}.log" not in memory_files.list_names("data")

    def test_failed_batch_is_truncated_if_the_next_segment_has_its_number(
        self, memory_files: MemoryFiles
    ) -> None:
        positions = write_segment(memory_files, "a", "x")
        write_segment(memory_files, "b", first_seq=101)
        loaded = load(memory_files)

        assert {100: "a", 101: "b"} == stored(loaded)
        assert [False] == [issue.is_damage for issue in loaded.issues]
        assert positions[1] == memory_files.open(PATH, "read").size()


class TestDamage:
    def test_damaged_bytes_are_moved_and_later_batches_kept(
        self, memory_files: MemoryFiles
    ) -> None:
        positions = write_segment(memory_files, "a", "bc", "d", "e")
        change(memory_files, positions[2] - 1, b"?")
        damaged = content(memory_files, PATH)[positions[1] : positions[2]]
        loaded = load(memory_files)

        assert {100: "a", 103: "d", 104: "e"} == stored(loaded)
        assert damaged == content(memory_files, PATH + ".bad")
        assert [
            Issue(
                PATH,
                "the frames do not match their checksum; moved to 00000000000000000100.log.bad",
                is_damage=True,
                first_byte=positions[1],
                end_byte=positions[2],
                first_seq=101,
                end_seq=103,
            )
        ] == loaded.issues
        assert [(100, 101), (103, 105)] == [
            (segment.first_seq, segment.next_seq) for segment in loaded.segments
        ]

    @pytest.mark.parametrize("offset", [0, 5, 13, 17, 25, 33, 60])
    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_damage_at_any_byte_costs_only_its_batch(
        self, memory_files: MemoryFiles, which: int, offset: int
    ) -> None:
        positions = write_segment(memory_files, "a", "b", "c")
        change(memory_files, positions[which] + offset, b"?")
        loaded = load(memory_files)
        expected = {100: "a", 101: "b", 102: "c"}
        del expected[100 + which]

        assert expected == stored(loaded)
        assert [(True, 100 + which)] == [
            (issue.is_damage, issue.first_seq) for issue in loaded.issues
        ]
        assert [] == load(memory_files).issues
        assert expected == stored(load(memory_files))

    def test_two_damaged_batches_split_into_three_segments(self, memory_files: MemoryFiles) -> None:
        positions = write_segment(memory_files, "a", "b", "c", "d", "e")
        change(memory_files, positions[1], b"?")
        change(memory_files, positions[4] - 1, b"?")
        loaded = load(memory_files)

        assert {100: "a", 102: "c", 104: "e"} == stored(loaded)
        assert [(101, 102), (103, 104)] == [
            (issue.first_seq, issue.end_seq) for issue in loaded.issues
        ]

    def test_sequence_numbers_of_a_damaged_last_batch_are_not_reused(
        self, memory_files: MemoryFiles
    ) -> None:
        positions = write_segment(memory_files, "a", "bc")
        change(memory_files, positions[2] - 1, b"?")
        loaded = load(memory_files)

        assert (103, False) == (loaded.next_seq, loaded.is_tail_lost)

    def test_damaged_last_header_sets_is_tail_lost(self, memory_files: MemoryFiles) -> None:
        positions = write_segment(memory_files, "a", "bc")
        change(memory_files, positions[1], b"?")
        loaded = load(memory_files)

        assert (101, True) == (loaded.next_seq, loaded.is_tail_lost)
        assert [(101, None)] == [(issue.first_seq, issue.end_seq) for issue in loaded.issues]

    def test_completely_damaged_segment_is_removed(self, memory_files: MemoryFiles) -> None:
        positions = write_segment(memory_files, "a")
        change(memory_files, 0, b"?" * positions[1])
        loaded = load(memory_files)

        assert {} == stored(loaded)
        assert loaded.is_tail_lost
        assert [f"{100:020}.log.bad"] == memory_files.list_names("data")

    def test_missing_synced_end_is_reported(self, memory_files: MemoryFiles) -> None:
        positions = write_segment(memory_files, "a", "bc", finalize=True)
        memory_files.open(PATH, "write").truncate(positions[1])
        loaded = load(memory_files)

        assert {100: "a"} == stored(loaded)
        assert 103 == loaded.next_seq
        assert [(True, 101, 103)] == [
            (issue.is_damage, issue.first_seq, issue.end_seq) for issue in loaded.issues
        ]

    @pytest.mark.parametrize("lost_power", [False, True])
    def test_missing_segment_is_reported_if_its_index_file_exists(
        self, memory_files: MemoryFiles, *, lost_power: bool
    ) -> None:
        write_segment(memory_files, "a", finalize=True)
        write_segment(memory_files, "bcd", first_seq=101, finalize=True)
        memory_files.remove(f"data/{101:020}.log")
        loaded = load(memory_files, lost_power=lost_power)

        assert {100: "a"} == stored(loaded)
        assert 104 == loaded.next_seq
        assert [(not lost_power, 101, 104)] == [
            (issue.is_damage, issue.first_seq, issue.end_seq) for issue in loaded.issues
        ]
        assert [] == load(memory_files).issues

    def test_swapped_index_files_are_not_used(self, memory_files: MemoryFiles) -> None:
        write_segment(memory_files, "ab", finalize=True)
        write_segment(memory_files, "cdef", first_seq=102, finalize=True)
        first, second = f"data/{100:020}.index", f"data/{102:020}.index"
        contents = content(memory_files, first), content(memory_files, second)
        change(memory_files, 0, contents[1], first)
        change(memory_files, 0, contents[0], second)
        loaded = load(memory_files)

        assert "abcdef" == "".join(stored(loaded).values())
        assert [] == loaded.issues

    def test_index_files_of_format_1_are_not_used_if_they_are_swapped(
        self, memory_files: MemoryFiles
    ) -> None:
        write_segment_1(memory_files, "ab", 100)
        write_segment_1(memory_files, "cdef", 102)
        first, second = f"data/{100:020}.index", f"data/{102:020}.index"
        contents = content(memory_files, first), content(memory_files, second)
        change(memory_files, 0, contents[1], first)
        change(memory_files, 0, contents[0], second)
        loaded = load(memory_files)

        assert "abcdef" == "".join(stored(loaded).values())
        assert [] == loaded.issues

    @pytest.mark.parametrize("damaged", [range(40), range(4), range(60)])
    def test_published_batch_of_format_1_is_not_taken_for_a_batch(
        self, memory_files: MemoryFiles, damaged: range
    ) -> None:
        """A message contains a batch of format 1 for the position where it will be stored. The
        start of the file is damaged, and the header of the batch around the message."""
        forged_at = SEGMENT_HEADER_BYTES + HEADER_BYTES + 4
        forged = encode_batch_1(b"".join(frames("forged")), 1, FIRST_SEQ, forged_at, 1, 0)
        segment = Segment(FilePool(memory_files, 8), "data", FIRST_SEQ, LOG_ID)
        segment.handle.create()
        segment.append(len(forged).to_bytes(4) + forged, 1, 1, 0)
        second = segment.end
        segment.append(b"".join(frames("b", "c")), 2, 1, 0)
        assert forged == content(memory_files, PATH)[forged_at : forged_at + len(forged)]
        for position in (*damaged, SEGMENT_HEADER_BYTES + 20):
            change(memory_files, position, b"\xff")
        loaded = load(memory_files)

        assert {101: "b", 102: "c"} == stored(loaded)
        assert [(100, 101)] == [(issue.first_seq, issue.end_seq) for issue in loaded.issues]
        saved = content(memory_files, f"{PATH}.bad")
        assert second - (0 if 0 in damaged else SEGMENT_HEADER_BYTES) == len(saved)

    def test_damage_before_the_first_batch_costs_no_message(
        self, memory_files: MemoryFiles
    ) -> None:
        segment = Segment(FilePool(memory_files, 8), "data", FIRST_SEQ, LOG_ID)
        segment.handle.create().write(b"what is this", 0)
        segment.end = len(b"what is this")
        segment.append(b"".join(frames("a", "b")), 2, 1, 0)
        (damage,) = load(memory_files).issues

        assert str(damage).endswith(f"moved to {FIRST_SEQ:020}.log.bad (bytes 0 to 11)")
        assert {100: "a", 101: "b"} == stored(load(memory_files))
        assert [] == load(memory_files).issues

    def test_repeated_sequence_numbers_are_damage(self, memory_files: MemoryFiles) -> None:
        positions = write_segment(memory_files, "abc")
        segment = Segment(FilePool(memory_files, 8), "data", FIRST_SEQ, LOG_ID)
        segment.end, segment.next_seq = positions[1], 101
        segment.append(frames("x")[0], 1, 1, 0)
        loaded = load(memory_files)

        assert {100: "a", 101: "b", 102: "c"} == stored(loaded)
        assert ["a batch repeats sequence numbers; moved to 00000000000000000100.log.bad"] == [
            issue.problem for issue in loaded.issues
        ]


def damaged_files() -> MemoryFiles:
    """Six batches: the second and the fourth are damaged, the last one is incomplete."""
    files = MemoryFiles()
    files.make_folder("data")
    positions = write_segment(files, "a", "b", "c", "d", "e", "f")
    change(files, positions[1], b"?")
    change(files, positions[4] - 1, b"?")
    files.open(PATH, "write").truncate(positions[6] - 1)
    return files


def test_interrupted_recovery_gives_the_same_result() -> None:
    expected = {100: "a", 102: "c", 104: "e"}
    for changes in range(100):
        memory = damaged_files()
        files = FaultyFiles(memory)
        files.crash_after(changes)
        try:
            assert expected == stored(load(files))
        except SimulatedCrash:
            memory.crash()
            assert expected == stored(load(memory))
        else:
            assert changes > 10
            return
    pytest.fail("recovery does not end")


@pytest.mark.parametrize("round_number", range(5))
def test_recovery_interrupted_by_a_power_loss_gives_the_same_result(round_number: int) -> None:
    random = fresh_random(
        f"test_recovery_interrupted_by_a_power_loss_gives_the_same_result {round_number}"
    )
    expected = {100: "a", 102: "c", 104: "e"}
    for changes in range(100):
        memory = damaged_files()
        memory.open(PATH, "write").sync()
        memory.sync_folder("data")
        memory.sync_folder("")
        files = FaultyFiles(memory)
        files.crash_after(changes)
        try:
            load(files)
        except SimulatedCrash:
            memory.lose_power(random)
            assert expected == stored(load(memory))
        else:
            memory.lose_power(random)
            assert expected == stored(load(memory))
            return
    pytest.fail("recovery does not end")
