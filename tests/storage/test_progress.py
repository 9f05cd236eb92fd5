"""A channel's progress is a floor, what is finished above it, and notes of what is open."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.progress import Note, Progress
from penstock.storage.ranges import runs_of

numbers = st.integers(0, 60)


class TestFinishing:
    def test_the_floor_is_the_first_open_number(self) -> None:
        progress = Progress(10)
        progress.finish(12, 14)
        progress.finish(10, 11)

        assert 11 == progress.floor

        progress.finish(11, 12)

        assert 14 == progress.floor
        assert [] == list(progress.finished_ranges())

    def test_what_is_below_the_floor_stays_finished(self) -> None:
        progress = Progress(10)
        progress.finish(3, 5)

        assert 10 == progress.floor
        assert progress.is_finished(0, 10)

    @given(st.lists(st.tuples(numbers, numbers)), numbers, numbers, numbers)
    def test_it_agrees_with_a_plain_set(
        self, parts: list[tuple[int, int]], floor: int, first: int, end: int
    ) -> None:
        progress = Progress(floor)
        plain = set(range(floor))
        for part in parts:
            progress.finish(*part)
            plain |= set(range(*part))
        asked = set(range(first, end))

        assert next(number for number in range(100) if number not in plain) == progress.floor
        assert (asked <= plain) == progress.is_finished(first, end)
        open_numbers = [
            number for part in progress.open_ranges(first, end) for number in range(*part)
        ]
        assert sorted(asked - plain) == open_numbers
        assert max(plain, default=-1) + 1 <= progress.known_end

    @given(st.lists(numbers))
    def test_one_by_one_or_in_runs_is_the_same(self, seqs: list[int]) -> None:
        in_runs, one_by_one = Progress(5), Progress(5)
        for first, end in runs_of(seqs):
            in_runs.finish(first, end)
        for seq in seqs:
            one_by_one.finish(seq, seq + 1)

        assert one_by_one.floor == in_runs.floor
        assert list(one_by_one.finished_ranges()) == list(in_runs.finished_ranges())


class TestNotes:
    def test_a_note_goes_with_its_message(self) -> None:
        progress = Progress(0)
        for seq in (1, 2, 3):
            progress.note(seq, Note(seq, 0))

        progress.finish(2, 3)
        assert {1: Note(1, 0), 3: Note(3, 0)} == progress.notes

        progress.finish(0, 100)
        assert {} == progress.notes

    def test_a_finished_message_takes_no_note(self) -> None:
        progress = Progress(5)
        progress.finish(7, 8)
        progress.note(7, Note(1, 0))
        progress.note(2, Note(1, 0))

        assert {} == progress.notes

    def test_a_noted_number_is_known(self) -> None:
        progress = Progress(5)
        progress.note(8, Note(1, 0))

        assert 9 == progress.known_end


def test_a_reset_begins_again() -> None:
    progress = Progress(5)
    progress.finish(7, 9)
    progress.note(6, Note(2, 0))
    progress.reset(3)

    assert (3, {}, []) == (progress.floor, progress.notes, list(progress.finished_ranges()))
    assert [(3, 10)] == progress.open_ranges(0, 10)
