"""Ranges, limits, tasks and filter pushdown."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.admin_api.models import LogSegment
from pyspark_nsq.offsets import LogKey, Offsets
from pyspark_nsq.planning import (
    RANGES_MAX,
    FilterBounds,
    Range,
    Segments,
    limit_end,
    parse_filters,
    ranges_between,
    ranges_to_measure,
    split_into_tasks,
    stored_ranges,
)

A, B = LogKey("orders", "a" * 32), LogKey("orders", "b" * 32)


def log_of(*spans: tuple[int, int], row_bytes: int = 10) -> Segments:
    """The segments of a log with messages in these ranges."""
    return [LogSegment(first, end, (end - first) * row_bytes) for first, end in spans]


def range_of(start: int, end: int) -> Range:
    return Range(*A, start, end)


def test_a_new_log_is_empty_in_its_first_batch() -> None:
    assert [range_of(5, 9)] == ranges_between({A: 5}, {A: 9, B: 700})


def test_only_stored_messages_are_read() -> None:
    log = log_of((10, 20), (20, 30), (50, 60))

    assert [range_of(15, 30), range_of(50, 55)] == stored_ranges(range_of(15, 55), log)
    assert [] == stored_ranges(range_of(30, 50), log)


def test_only_logs_that_a_limit_cuts_are_measured() -> None:
    start, end = {A: 0, B: 0}, {A: 40, B: 5_000_000}
    sizes = {A: 400, B: 900}

    assert [] == ranges_to_measure(start, end, sizes)
    assert [] == ranges_to_measure(start, end, sizes, rows_max=6_000_000)
    assert [Range(*B, 0, 5_000_000)] == ranges_to_measure(start, end, sizes, rows_max=100)
    assert [Range(*B, 0, 5_000_000)] == ranges_to_measure(start, end, sizes, bytes_max=1000)
    assert [] == ranges_to_measure(start, end, sizes, bytes_max=1300)


SPANS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 200)), min_size=1, max_size=5)


@st.composite
def logs(draw: st.DrawFn) -> Segments:
    at, spans = draw(st.integers(0, 1000)), []
    for gap, length in draw(SPANS):
        spans.append((at + gap, at + gap + length))
        at += gap + length
    return log_of(*spans)


def rows_between(key: LogKey, log: Segments, start: int, end: int) -> int:
    return sum(part.size for part in stored_ranges(Range(*key, start, end), log))


@given(first=logs(), second=logs(), rows_max=st.integers(1, 500))
def test_limited_batches_reach_the_end_and_never_exceed_it(
    first: Segments, second: Segments, rows_max: int
) -> None:
    known = {A: first, B: second}
    end = {key: log[-1].next_seq for key, log in known.items()}
    at: Offsets = {key: log[0].first_seq for key, log in known.items()}
    for _ in range(
        2 + sum(rows_between(key, log, at[key], end[key]) for key, log in known.items())
    ):
        if at == end:
            break
        reached = limit_end(at, end, known, rows_max=rows_max)
        rows = [rows_between(key, log, at[key], reached[key]) for key, log in known.items()]
        assert 0 < sum(rows) <= rows_max
        at = reached

    assert end == at


def test_a_byte_limit_uses_the_average_message_size_of_each_segment() -> None:
    known = {A: log_of((0, 1000), row_bytes=10), B: log_of((0, 100), row_bytes=100)}

    reached = limit_end({A: 0, B: 0}, {A: 1000, B: 100}, known, bytes_max=2000)

    assert {A: 100, B: 10} == reached


def spread(sizes: list[int]) -> tuple[dict[LogKey, Segments], Offsets]:
    """Logs of these sizes, one for each topic, and their ends."""
    known = {
        LogKey(f"t{index:03}", "a" * 32): log_of((10, 10 + n)) for index, n in enumerate(sizes)
    }
    return known, {key: log[-1].next_seq for key, log in known.items()}


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=20), rows_max=st.integers(1, 2000))
def test_a_limit_is_shared_equally_and_logs_below_their_share_are_read_to_the_end(
    sizes: list[int], rows_max: int
) -> None:
    known, end = spread(sizes)

    reached = limit_end(dict.fromkeys(known, 10), end, known, rows_max=rows_max)

    rows = {key: seq - 10 for key, seq in reached.items()}
    clip = [rows[key] for key in known if reached[key] < end[key]]
    assert min(sum(sizes), rows_max) == sum(rows.values())
    assert all(each >= rows_max // len(sizes) for each in clip)
    assert all(each >= max(rows.values()) - 1 for each in clip)


@pytest.mark.parametrize("limit", [{"rows_max": 5_000}, {"bytes_max": 50_000}])
def test_many_small_logs_are_read_by_one_task_of_one_batch(
    limit: dict[str, int],
) -> None:
    known, end = spread([20] * 50 + [100_000])
    start: Offsets = dict.fromkeys(known, 10)

    reached = limit_end(start, end, known, **limit)
    (task,) = split_into_tasks(ranges_between(start, reached), parts_min=1, rows_max=200_000)

    assert [20] * 50 + [4_000] == [each.size for each in task]


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    parts_min=st.integers(1, 20),
    rows_max=st.integers(1, 400),
)
def test_tasks_have_equal_size_and_keep_the_order_of_ranges(
    sizes: list[int], parts_min: int, rows_max: int
) -> None:
    ranges = [Range("orders", str(index), 10, 10 + size) for index, size in enumerate(sizes)]

    tasks = split_into_tasks(ranges, parts_min=parts_min, rows_max=rows_max)

    parts = [part for task in tasks for part in task]
    numbers = [(part.log_id, seq) for part in parts for seq in range(part.start, part.end)]
    assert numbers == [(each.log_id, seq) for each in ranges for seq in range(each.start, each.end)]
    rows = [sum(part.size for part in task) for task in tasks]
    assert max(rows) <= min(rows_max, min(rows) + 1)
    needed = max(parts_min, -(-sum(sizes) // rows_max))
    assert min(needed, sum(sizes)) == len(tasks)


def test_very_many_ranges_are_split_over_several_tasks() -> None:
    ranges = [Range(f"t{index}", "a" * 32, 10, 30) for index in range(4 * RANGES_MAX)]

    tasks = split_into_tasks(ranges, parts_min=1, rows_max=200_000)

    assert [RANGES_MAX] * 4 == [len(task) for task in tasks]
    assert [] == split_into_tasks([], parts_min=4, rows_max=10)


# Filter pushdown.


SEQ, NODE, TOPIC, TIME, TIME_NS = ("seq",), ("node",), ("topic",), ("timestamp",), ("timestamp_ns",)
LOG = ("log",)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_NS = 1_767_268_800_000_000_000


@pytest.mark.parametrize(
    ("conditions", "bounds", "left"),
    [
        ([IsNotNull(SEQ), GreaterThan(SEQ, 7)], FilterBounds(seq_min=8), 0),
        ([GreaterThanOrEqual(SEQ, 7), LessThan(SEQ, 9)], FilterBounds(seq_min=7, seq_end=9), 0),
        ([LessThanOrEqual(SEQ, 9), LessThan(SEQ, 99)], FilterBounds(seq_end=10), 0),
        ([EqualTo(SEQ, 7)], FilterBounds(seq_min=7, seq_end=8), 0),
        ([In(NODE, (1, 2)), EqualTo(NODE, 2)], FilterBounds(nodes=frozenset({2})), 0),
        ([EqualTo(LOG, "x")], FilterBounds(log_ids=frozenset({"x"})), 0),
        ([In(TOPIC, ("a", "b"))], FilterBounds(topics=frozenset({"a", "b"})), 0),
        ([GreaterThan(TIME, NOON)], FilterBounds(time_ns_min=NOON_NS), 1),
        ([GreaterThan(TIME_NS, 5), EqualTo(TIME_NS, 9)], FilterBounds(time_ns_min=9), 2),
        ([LessThan(TIME, NOON)], FilterBounds(), 1),
        (
            [Not(EqualTo(NODE, 1)), StringStartsWith(TOPIC, "a"), IsNotNull(("body",))],
            FilterBounds(),
            3,
        ),
    ],
)
def test_filters_become_bounds(conditions: list[Filter], bounds: FilterBounds, left: int) -> None:
    assert (bounds, left) == (parse_filters(conditions)[0], len(parse_filters(conditions)[1]))


def test_bounds_clip_ranges() -> None:
    bounds = FilterBounds(nodes=frozenset({1}), seq_min=10, seq_end=20)

    assert bounds.admits(A, 1)
    assert not bounds.admits(A, 2)
    assert not FilterBounds(log_ids=frozenset({B.log_id})).admits(A, 1)
    assert range_of(10, 20) == bounds.clip(range_of(5, 25))
    assert 0 == bounds.clip(range_of(30, 40)).size
    assert 0 == bounds.clip(range_of(1, 5)).size
