"""A set of ranges is a set of numbers, whatever is done to it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.ranges import RangeSet, runs_of

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
    def test_ranges_that_touch_become_one(self) -> None:
        assert [(1, 6)] == list(made_of([(1, 3), (4, 6), (3, 4)]))

    def test_an_empty_range_adds_nothing(self) -> None:
        assert [] == list(made_of([(3, 3), (5, 4)]))

    @given(st.lists(ranges), ranges, numbers)
    def test_it_agrees_with_a_plain_set(
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
        assert runs_of(list(inside - plain)) == ranges.gaps(first, end)

        ranges.drop_below(floor)

        above = {number for number in plain if number >= floor}
        assert above == numbers_in(ranges)
        assert len(above) == ranges.total

    @given(st.lists(ranges))
    def test_it_has_one_form(self, parts: list[tuple[int, int]]) -> None:
        ranges = list(made_of(parts))

        assert all(first < end for first, end in ranges)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
        assert len(ranges) == len(made_of(parts))


class TestRunsOf:
    def test_no_numbers_make_no_run(self) -> None:
        assert [] == runs_of([])

    def test_a_number_that_comes_twice_does_not_hide_one_that_is_missing(self) -> None:
        assert [(1, 2), (3, 4)] == runs_of([1, 1, 3])

    @given(st.lists(numbers))
    def test_runs_hold_the_numbers_and_no_others(self, seqs: list[int]) -> None:
        runs = runs_of(seqs)

        assert sorted(set(seqs)) == [number for first, end in runs for number in range(first, end)]
        assert all(before[1] < after[0] for before, after in pairwise(runs))


@given(st.lists(st.tuples(numbers, numbers)), st.lists(st.tuples(numbers, numbers)))
def test_many_ranges_at_once_are_the_same_as_one_by_one(
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
        assert is_in == (at_once.first_outside(number) > number)
        assert not at_once.covers(at_once.first_outside(number), at_once.first_outside(number) + 1)
    assert one_by_one.total == at_once.total
