from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.deferred import MARKED_AT_ONCE_MAX, Deferred, DeferredRun


def due_runs(deferred: Deferred, wall_ns: int) -> list[DeferredRun]:
    runs = []
    deferred.mark_due(wall_ns)
    while deferred.due_count:
        runs.append(deferred.first_due())
        deferred.pop_due()
    return runs


def test_a_new_set_is_empty() -> None:
    deferred = Deferred(frames_max=None)

    assert 0 == len(deferred)
    assert deferred.next_due_ns() is None
    assert [] == due_runs(deferred, 1 << 62)


def test_a_run_becomes_due_as_a_whole_at_its_time() -> None:
    deferred = Deferred(frames_max=None)
    deferred.add(100, 7, [b"a", b"b"])

    assert 2 == len(deferred)
    assert 100 == deferred.next_due_ns()
    assert [] == due_runs(deferred, 99)
    assert [(7, 2, [b"a", b"b"])] == [
        (run.first_seq, run.length, run.frames) for run in due_runs(deferred, 100)
    ]
    assert 0 == len(deferred)
    assert deferred.next_due_ns() is None


def test_runs_are_ordered_by_due_time_then_by_insertion() -> None:
    deferred = Deferred(frames_max=None)
    for due_ns, first_seq in [(300, 1), (100, 9), (200, 2), (100, 5)]:
        deferred.add(due_ns, first_seq, [b"x"])

    assert [9, 5, 2] == [run.first_seq for run in due_runs(deferred, 250)]
    assert 300 == deferred.next_due_ns()


def test_a_due_run_is_not_deferred_and_stays_until_pop_due() -> None:
    deferred = Deferred(frames_max=None)
    deferred.add(100, 7, [b"a", b"b"])
    deferred.mark_due(100)

    assert deferred.first_due() == deferred.first_due()
    assert (0, 2) == (len(deferred), deferred.due_count)
    assert deferred.next_due_ns() is None
    assert not deferred.remove(7)
    assert not deferred.set_due_now(7)
    assert [b"a"] == deferred.peek_due(1)[0].frames
    deferred.pop_due()
    assert (0, 0) == (len(deferred), deferred.due_count)


def test_unmarked_runs_can_be_marked_again() -> None:
    deferred = Deferred(frames_max=None)
    for first_seq in range(3):
        deferred.add(100, first_seq, [b"x"])
    deferred.mark_due(100)
    deferred.pop_due()
    deferred.unmark_due()

    assert (2, 0) == (len(deferred), deferred.due_count)
    assert 100 == deferred.next_due_ns()
    assert [1, 2] == [run.first_seq for run in due_runs(deferred, 100)]


def test_frames_beyond_the_limit_are_not_kept() -> None:
    deferred = Deferred(frames_max=3)
    deferred.add(100, 0, [b"a", b"b"])
    deferred.add(101, 2, [b"c", b"d"])
    deferred.add(102, 4, [b"e"])
    deferred.add(103, 5, [b"f"])

    assert 6 == len(deferred)
    assert [[b"a", b"b"], None, [b"e"], None] == [run.frames for run in due_runs(deferred, 200)]


def test_frames_beyond_the_byte_limit_are_not_kept() -> None:
    deferred = Deferred(frames_max=10, bytes_max=5)
    deferred.add(100, 0, [b"aa", b"bb"])
    deferred.add(101, 2, [b"cc"])
    deferred.remove(0)
    deferred.add(102, 3, [b"ddd"])
    assert [[b"bb"], None, [b"ddd"]] == [run.frames for run in due_runs(deferred, 102)]

    deferred.add(103, 4, [b"eeeee"])
    assert [[b"eeeee"]] == [run.frames for run in due_runs(deferred, 103)]


def test_mark_due_is_bounded() -> None:
    deferred = Deferred(frames_max=None)
    deferred.add_stored([(100, seq, 1) for seq in range(MARKED_AT_ONCE_MAX + 1)])
    deferred.mark_due(100)

    assert (1, MARKED_AT_ONCE_MAX) == (len(deferred), deferred.due_count)
    assert 100 == deferred.next_due_ns()
    deferred.mark_due(100)
    assert (0, MARKED_AT_ONCE_MAX + 1) == (len(deferred), deferred.due_count)


def test_many_stored_runs_are_added_at_once() -> None:
    deferred = Deferred(frames_max=None)
    deferred.add_stored([(300, 1, 2), (100, 9, 1)])
    deferred.add_stored([(200, 5, 1)])

    assert 4 == len(deferred)
    assert [(9, 1, None), (5, 1, None), (1, 2, None)] == [
        (run.first_seq, run.length, run.frames) for run in due_runs(deferred, 300)
    ]


def test_popped_runs_make_room_for_frames() -> None:
    deferred = Deferred(frames_max=1)
    deferred.add(100, 0, [b"a"])
    deferred.add(101, 1, [b"b"])
    due_runs(deferred, 101)
    deferred.add(102, 2, [b"c"])

    assert [[b"c"]] == [run.frames for run in due_runs(deferred, 102)]


def test_clear_drops_everything_and_makes_room() -> None:
    deferred = Deferred(frames_max=1)
    deferred.add(100, 0, [b"a"])
    deferred.add(99, 1, [b"b"])
    deferred.mark_due(99)
    deferred.clear()

    assert (0, 0) == (len(deferred), deferred.due_count)
    assert deferred.next_due_ns() is None
    deferred.add(100, 2, [b"c"])
    assert [[b"c"]] == [run.frames for run in due_runs(deferred, 100)]


@given(
    frames_max=st.none() | st.integers(0, 6),
    runs=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3)), max_size=12),
    checks=st.lists(st.integers(0, 20), max_size=4).map(sorted),
)
def test_it_is_a_stable_sort_by_due_time(
    frames_max: int | None, runs: list[tuple[int, int]], checks: list[int]
) -> None:
    deferred = Deferred(frames_max)
    numbered = [(-number, *run) for number, run in enumerate(runs)]
    for first_seq, due_ns, length in numbered:
        deferred.add(due_ns, first_seq, [b"x"] * length)
    waiting = sorted(numbered, key=lambda run: run[1])

    for wall_ns in [*checks, 20]:
        expected = [first_seq for first_seq, due_ns, _ in waiting if due_ns <= wall_ns]
        waiting = waiting[len(expected) :]

        assert expected == [run.first_seq for run in due_runs(deferred, wall_ns)]
        assert sum(length for _, _, length in waiting) == len(deferred)
    assert 0 == deferred._frames_held
