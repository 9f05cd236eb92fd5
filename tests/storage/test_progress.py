"""Sets of ranges, and the progress of a channel."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.progress import Progress, RangeSet, RetryState, to_ranges

numbers = st.integers(0, 60)
ranges = st.tuples(numbers, numbers)


def numbers_in(ranges: RangeSet) -> set[int]:
    return {number for first, end in ranges for number in range(first, end)}


def made_of(parts: list[tuple[int, int]]) -> RangeSet:
    ranges = RangeSet()
    for first, end in parts:
        ranges.add(first, end)
    return ranges


class TestRangeSet:
    def test_adjacent_ranges_are_merged(self) -> None:
        assert [(1, 6)] == list(made_of([(1, 3), (4, 6), (3, 4)]))

    def test_empty_range_adds_nothing(self) -> None:
        assert [] == list(made_of([(3, 3), (5, 4)]))

    @given(st.lists(ranges), ranges, numbers)
    def test_matches_a_plain_set(
        self, parts: list[tuple[int, int]], asked: tuple[int, int], floor: int
    ) -> None:
        ranges = made_of(parts)
        plain = {number for first, end in parts for number in range(first, end)}
        first, end = asked
        inside = set(range(first, end))

        assert plain == numbers_in(ranges)
        assert len(plain) == ranges.total
        assert max(plain, default=-1) + 1 == ranges.end
        assert len(inside & plain) == ranges.count(first, end)
        assert (inside <= plain) == ranges.covers(first, end)
        assert to_ranges(list(inside - plain)) == ranges.gaps(first, end)

        ranges.drop_below(floor)

        above = {number for number in plain if number >= floor}
        assert above == numbers_in(ranges)
        assert len(above) == ranges.total

    @given(st.lists(ranges))
    def test_ranges_are_normalised(self, parts: list[tuple[int, int]]) -> None:
        ranges = list(made_of(parts))

        assert all(first < end for first, end in ranges)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
        assert len(ranges) == len(made_of(parts))


class TestToRanges:
    def test_no_numbers_make_no_range(self) -> None:
        assert [] == to_ranges([])

    def test_duplicate_does_not_hide_a_gap(self) -> None:
        assert [(1, 2), (3, 4)] == to_ranges([1, 1, 3])

    @given(st.lists(numbers))
    def test_ranges_contain_exactly_the_numbers(self, seqs: list[int]) -> None:
        runs = to_ranges(seqs)

        assert sorted(set(seqs)) == [number for first, end in runs for number in range(first, end)]
        assert all(before[1] < after[0] for before, after in pairwise(runs))


@given(st.lists(st.tuples(numbers, numbers)), st.lists(st.tuples(numbers, numbers)))
def test_update_equals_repeated_add(
    before: list[tuple[int, int]], added: list[tuple[int, int]]
) -> None:
    one_by_one, at_once = RangeSet(), RangeSet()
    for ranges in (one_by_one, at_once):
        for part in before:
            ranges.add(*part)
    for part in added:
        one_by_one.add(*part)
    at_once.update(added)

    assert list(one_by_one) == list(at_once)
    for number in range(25):
        is_in = at_once.covers(number, number + 1)
        assert is_in == (at_once.next_missing(number) > number)
        assert not at_once.covers(at_once.next_missing(number), at_once.next_missing(number) + 1)
    assert one_by_one.total == at_once.total


class TestFinishing:
    def test_floor_is_the_first_open_number(self) -> None:
        progress = Progress(10)
        progress.finish(12, 14)
        progress.finish(10, 11)

        assert 11 == progress.floor

        progress.finish(11, 12)

        assert 14 == progress.floor
        assert [] == list(progress.finished_ranges())

    def test_messages_below_the_floor_stay_finished(self) -> None:
        progress = Progress(10)
        progress.finish(3, 5)

        assert 10 == progress.floor
        assert progress.is_finished(0, 10)

    @given(st.lists(st.tuples(numbers, numbers)), numbers, numbers, numbers)
    def test_matches_a_plain_set(
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
        assert max(plain, default=-1) + 1 <= progress.next_unused_seq

    @given(st.lists(numbers))
    def test_finishing_ranges_equals_finishing_numbers(self, seqs: list[int]) -> None:
        in_runs, one_by_one = Progress(5), Progress(5)
        for first, end in to_ranges(seqs):
            in_runs.finish(first, end)
        for seq in seqs:
            one_by_one.finish(seq, seq + 1)

        assert one_by_one.floor == in_runs.floor
        assert list(one_by_one.finished_ranges()) == list(in_runs.finished_ranges())


class TestRetryStates:
    def test_finishing_removes_the_retry_state(self) -> None:
        progress = Progress(0)
        for seq in (1, 2, 3):
            progress.set_retry_state(seq, RetryState(seq, 0))

        progress.finish(2, 3)
        assert {1: RetryState(1, 0), 3: RetryState(3, 0)} == progress.retry_states

        progress.finish(0, 100)
        assert {} == progress.retry_states

    def test_finished_message_gets_no_retry_state(self) -> None:
        progress = Progress(5)
        progress.finish(7, 8)
        progress.set_retry_state(7, RetryState(1, 0))
        progress.set_retry_state(2, RetryState(1, 0))

        assert {} == progress.retry_states

    def test_retry_state_counts_as_used_number(self) -> None:
        progress = Progress(5)
        progress.set_retry_state(8, RetryState(1, 0))

        assert 9 == progress.next_unused_seq


def test_reset() -> None:
    progress = Progress(5)
    progress.finish(7, 9)
    progress.set_retry_state(6, RetryState(2, 0))
    progress.reset(3)

    assert (3, {}, []) == (progress.floor, progress.retry_states, list(progress.finished_ranges()))
    assert [(3, 10)] == progress.open_ranges(0, 10)
