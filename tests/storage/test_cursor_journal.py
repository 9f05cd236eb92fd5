"""A journal adds up to the state that it was written from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.cursor_journal import (
    BadRecord,
    Change,
    CursorState,
    Finish,
    Hold,
    Notes,
    Place,
    Record,
    Release,
    Remove,
    Reserve,
    encode_record,
    walk_journal,
)
from penstock.storage.progress import Note

CHANGES: list[Change] = [
    Reserve(100),
    Hold(100),
    Place("a", 100),
    Place("b.B-_#ephemeral", 2**54),
    Finish("a", [(101, 103), (110, 200)]),
    Notes("a", [(104, Note(3, 0)), (105, Note(65535, 2**63))]),
    Remove("b.B-_#ephemeral"),
    Release(),
]

names = st.sampled_from(["a", "b"])
numbers = st.integers(0, 50)
changes = st.lists(
    st.one_of(
        st.builds(Place, names, numbers),
        st.builds(Remove, names),
        st.builds(Finish, names, st.lists(st.tuples(numbers, numbers).map(sorted).map(tuple))),
        st.builds(Notes, names, st.lists(st.tuples(numbers, st.builds(Note, numbers, numbers)))),
        st.builds(Hold, numbers),
        st.builds(Release),
        st.builds(Reserve, numbers),
    )
)


def state_of(*records: list[Change]) -> CursorState:
    state = CursorState()
    for record in records:
        for change in record:
            state.apply(change)
    return state


def content(state: CursorState) -> object:
    return (
        state.held_from,
        state.reserved_seq,
        {
            name: (progress.floor, progress.notes, list(progress.finished_ranges()))
            for name, progress in state.progress.items()
        },
    )


class TestRecords:
    def test_the_layout_is_the_specified_one(self) -> None:
        record = encode_record([Place("ab", 5)])

        assert "9e50534a" == record[:4].hex()
        assert "010000000000000c010261620000000000000005" == record[8:].hex()

    def test_what_is_written_is_read_back(self) -> None:
        first, second = encode_record(CHANGES), encode_record([Place("c", 1)])

        assert [
            Record(0, len(first), CHANGES),
            Record(len(first), len(first) + len(second), [Place("c", 1)]),
        ] == list(walk_journal(first + second))

    def test_an_empty_journal_has_no_records(self) -> None:
        assert [] == list(walk_journal(b""))

    def test_a_record_cut_short_is_a_leftover(self) -> None:
        first, second = encode_record([Place("a", 1)]), encode_record(CHANGES)
        for size in range(1, len(second)):
            *sound, last = walk_journal(first + second[:size])

            assert 1 == len(sound)
            assert isinstance(last, BadRecord)
            assert last.is_leftover
            assert (len(first), len(first) + size) == (last.position, last.end)

    def test_a_damaged_record_costs_itself_alone(self) -> None:
        records = [encode_record([Place(name, 1)]) for name in "abc"]
        at = len(records[0])
        for position in range(at, at + len(records[1])):
            damaged = bytearray(b"".join(records))
            damaged[position] ^= 1
            found = list(walk_journal(bytes(damaged)))

            assert [Record, BadRecord, Record] == list(map(type, found))
            bad = found[1]
            assert isinstance(bad, BadRecord)
            assert not bad.is_leftover
            assert bad.finding("cursors.1").is_damage

    def test_the_last_record_damaged_is_no_leftover(self) -> None:
        damaged = bytearray(encode_record(CHANGES))
        damaged[-1] ^= 1
        (bad,) = walk_journal(bytes(damaged))

        assert isinstance(bad, BadRecord)
        assert not bad.is_leftover

    @pytest.mark.parametrize(
        "body", [b"\x63", b"\x01\x02ab", b"\x02\x02\xff\xff", b"\x03\x01a\x7f\xff\xff\xff"]
    )
    def test_changes_that_make_no_sense_are_refused(self, body: bytes) -> None:
        from google_crc32c import value as crc32c  # noqa: PLC0415

        checked = b"\x01\0\0\0" + len(body).to_bytes(4) + body
        (bad,) = walk_journal(b"\x9ePSJ" + crc32c(checked).to_bytes(4) + checked)

        assert isinstance(bad, BadRecord)


class TestState:
    def test_changes_add_up(self) -> None:
        state = state_of(CHANGES)

        assert ["a"] == list(state.progress)
        assert None is state.held_from
        assert 200 == state.known_end
        assert [(100, 101), (103, 110)] == state.progress["a"].open_ranges(0, 200)
        assert {104: Note(3, 0), 105: Note(65535, 2**63)} == state.progress["a"].notes

    def test_placing_a_channel_again_keeps_its_object(self) -> None:
        state = state_of([Place("a", 5), Finish("a", [(6, 7)])])
        progress = state.progress["a"]
        state.apply(Place("a", 3))

        assert progress is state.progress["a"]
        assert (3, []) == (progress.floor, list(progress.finished_ranges()))

    def test_a_channel_whose_beginning_is_lost_has_finished_nothing_else(self) -> None:
        state = state_of([Finish("a", [(5, 7)]), Notes("b", [(5, Note(1, 0))])])

        assert [(0, 5), (7, 10)] == state.progress["a"].open_ranges(0, 10)
        assert [(0, 10)] == state.progress["b"].open_ranges(0, 10)

    def test_a_reserved_number_never_goes_down(self) -> None:
        assert 9 == state_of([Reserve(9), Reserve(5)]).reserved_seq

    @given(changes)
    def test_a_snapshot_leads_to_the_same_state(self, made: list[Change]) -> None:
        state = state_of(made)
        (record,) = walk_journal(encode_record(state.snapshot()))

        assert isinstance(record, Record)
        assert content(state) == content(state_of(record.changes))
