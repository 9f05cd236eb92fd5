"""The cursor journal: its encoding, and the state that its records describe."""

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.cursor_journal import (
    BadJournalRecord,
    ClearPausePoint,
    CursorState,
    FinishRanges,
    JournalChange,
    JournalRecord,
    RemoveCursor,
    ReserveSeqs,
    SetCursor,
    SetLogId,
    SetPausePoint,
    SetRetryStates,
    encode_record,
    scan_journal,
)
from penstock.storage.progress import RetryState

LOG_ID = bytes(range(16))

CHANGES: list[JournalChange] = [
    ReserveSeqs(100),
    SetLogId(LOG_ID),
    SetPausePoint(100),
    SetCursor("a", 100),
    SetCursor("b.B-_#ephemeral", 2**54),
    FinishRanges("a", [(101, 103), (110, 200)]),
    SetRetryStates("a", [(104, RetryState(3, 0)), (105, RetryState(65535, 2**63))]),
    RemoveCursor("b.B-_#ephemeral"),
    ClearPausePoint(),
]

names = st.sampled_from(["a", "b"])
numbers = st.integers(0, 50)
changes = st.lists(
    st.one_of(
        st.builds(SetCursor, names, numbers),
        st.builds(RemoveCursor, names),
        st.builds(
            FinishRanges, names, st.lists(st.tuples(numbers, numbers).map(sorted).map(tuple))
        ),
        st.builds(
            SetRetryStates,
            names,
            st.lists(st.tuples(numbers, st.builds(RetryState, numbers, numbers))),
        ),
        st.builds(SetPausePoint, numbers),
        st.builds(ClearPausePoint),
        st.builds(ReserveSeqs, numbers),
        st.builds(SetLogId, st.binary(min_size=16, max_size=16)),
    )
)


def state_of(*records: list[JournalChange]) -> CursorState:
    state = CursorState()
    for record in records:
        for change in record:
            state.apply(change)
    return state


def content(state: CursorState) -> object:
    return (
        state.pause_point,
        state.reserved_below,
        state.log_id,
        {
            name: (progress.floor, progress.retry_states, list(progress.finished_ranges()))
            for name, progress in state.progress.items()
        },
    )


def with_checksum(checked: bytes) -> bytes:
    crc: int = crc32c(checked)
    return b"\x9ePSJ" + crc.to_bytes(4) + checked


def record_of(body: bytes, *, flags: int = 0, more_header: bytes = b"") -> bytes:
    """A record of format 2 with these bytes as its changes."""
    start = bytes([2, flags]) + (32 + len(more_header)).to_bytes(2) + len(body).to_bytes(4)
    return with_checksum(start + bytes(16) + more_header + body)


def record_1_of(body: bytes) -> bytes:
    """A record of format 1 with these bytes as its changes."""
    return with_checksum(b"\x01\0\0\0" + len(body).to_bytes(4) + body)


def changes_in(record: bytes) -> list[JournalChange]:
    (found,) = scan_journal(record)
    assert isinstance(found, JournalRecord), found
    return found.changes


class TestRecords:
    def test_encoding_matches_the_specification(self) -> None:
        record = encode_record([SetCursor("ab", 5)], number=7, epoch=3)

        assert "9e50534a" == record[:4].hex()
        assert "02 00 0020 00000010 0000000000000007 0000000000000003".replace(" ", "") == (
            record[8:32].hex()
        )
        assert "01 0000000b 026162 0000000000000005".replace(" ", "") == record[32:].hex()
        assert with_checksum(record[8:]) == record

    def test_number_and_epoch_are_read_back(self) -> None:
        (record,) = scan_journal(encode_record(CHANGES, number=7, epoch=3))

        assert isinstance(record, JournalRecord)
        assert (7, 3) == (record.number, record.epoch)

    def test_record_of_format_1_is_read(self) -> None:
        record = record_1_of(bytes.fromhex("010261620000000000000005") + b"\x06")
        (found,) = scan_journal(record)

        assert (
            JournalRecord(0, len(record), [SetCursor("ab", 5), ClearPausePoint()], version=1)
            == found
        )

    def test_reader_ignores_what_a_later_version_may_add(self) -> None:
        unknown_change = b"\x80" + (3).to_bytes(4) + b"abc"
        longer_change = b"\x05" + (9).to_bytes(4) + (5).to_bytes(8) + b"x"

        record = record_of(unknown_change + longer_change + unknown_change, more_header=b"more")

        assert [SetPausePoint(5)] == changes_in(record)

    @pytest.mark.parametrize(
        "record", [record_of(b"", flags=1), with_checksum(b"\x03" + bytes(23))]
    )
    def test_record_that_requires_a_later_version_is_rejected(self, record: bytes) -> None:
        (bad,) = scan_journal(record)

        assert isinstance(bad, BadJournalRecord)
        assert "unsupported record" in bad.reason

    def test_round_trip(self) -> None:
        first, second = encode_record(CHANGES), encode_record([SetCursor("c", 1)])

        assert [
            JournalRecord(0, len(first), CHANGES),
            JournalRecord(len(first), len(first) + len(second), [SetCursor("c", 1)]),
        ] == list(scan_journal(first + second))

    def test_an_empty_journal_has_no_records(self) -> None:
        assert [] == list(scan_journal(b""))

    def test_incomplete_record_is_a_leftover(self) -> None:
        first, second = encode_record([SetCursor("a", 1)]), encode_record(CHANGES)
        for size in range(1, len(second)):
            *sound, last = scan_journal(first + second[:size])

            assert 1 == len(sound)
            assert isinstance(last, BadJournalRecord)
            assert last.is_leftover
            assert (len(first), len(first) + size) == (last.position, last.end)

    def test_scan_skips_only_the_damaged_record(self) -> None:
        records = [encode_record([SetCursor(name, 1)]) for name in "abc"]
        at = len(records[0])
        for position in range(at, at + len(records[1])):
            damaged = bytearray(b"".join(records))
            damaged[position] ^= 1
            found = list(scan_journal(bytes(damaged)))

            assert [JournalRecord, BadJournalRecord, JournalRecord] == list(map(type, found))
            bad = found[1]
            assert isinstance(bad, BadJournalRecord)
            assert not bad.is_leftover
            assert bad.to_issue("cursors.1").is_damage

    def test_damaged_last_record_is_no_leftover(self) -> None:
        damaged = bytearray(encode_record(CHANGES))
        damaged[-1] ^= 1
        (bad,) = scan_journal(bytes(damaged))

        assert isinstance(bad, BadJournalRecord)
        assert not bad.is_leftover

    @pytest.mark.parametrize(
        "body", [b"\x63", b"\x01\x02ab", b"\x02\x02\xff\xff", b"\x03\x01a\x7f\xff\xff\xff"]
    )
    def test_invalid_changes_are_rejected(self, body: bytes) -> None:
        (bad,) = scan_journal(record_1_of(body))

        assert isinstance(bad, BadJournalRecord)

    @pytest.mark.parametrize(
        "change",
        [
            b"\x63\0\0\0\0",  # an unknown tag
            b"\x05\0\0\0\x04" + bytes(8),  # fields that are longer than their size
            b"\x05\0\0\0\x09" + bytes(8),  # a size beyond the end of the record
            b"\x08\0\0\0\x08" + bytes(8),  # half an id
            b"\x80\0",  # no complete size
        ],
    )
    def test_invalid_change_of_format_2_is_rejected(self, change: bytes) -> None:
        (bad,) = scan_journal(record_of(change))

        assert isinstance(bad, BadJournalRecord)


class TestState:
    def test_changes_are_applied_in_order(self) -> None:
        state = state_of(CHANGES)

        assert ["a"] == list(state.progress)
        assert None is state.pause_point
        assert 200 == state.next_unused_seq
        assert [(100, 101), (103, 110)] == state.progress["a"].open_ranges(0, 200)
        assert {104: RetryState(3, 0), 105: RetryState(65535, 2**63)} == state.progress[
            "a"
        ].retry_states

    def test_set_cursor_keeps_the_progress_object(self) -> None:
        state = state_of([SetCursor("a", 5), FinishRanges("a", [(6, 7)])])
        progress = state.progress["a"]
        state.apply(SetCursor("a", 3))

        assert progress is state.progress["a"]
        assert (3, []) == (progress.floor, list(progress.finished_ranges()))

    def test_unknown_channel_has_finished_nothing_else(self) -> None:
        state = state_of(
            [FinishRanges("a", [(5, 7)]), SetRetryStates("b", [(5, RetryState(1, 0))])]
        )

        assert [(0, 5), (7, 10)] == state.progress["a"].open_ranges(0, 10)
        assert [(0, 10)] == state.progress["b"].open_ranges(0, 10)

    def test_reserved_sequence_number_never_decreases(self) -> None:
        assert 9 == state_of([ReserveSeqs(9), ReserveSeqs(5)]).reserved_below

    @given(changes)
    def test_snapshot_creates_the_same_state(self, made: list[JournalChange]) -> None:
        state = state_of(made)
        (record,) = scan_journal(encode_record(state.snapshot()))

        assert isinstance(record, JournalRecord)
        assert content(state) == content(state_of(record.changes))
