"""Conditions become bounds; what the bounds do not say, Spark checks."""

from datetime import UTC, datetime

import pytest
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

from pyspark_nsq.filters import Bounds, bounds_of
from pyspark_nsq.offsets import TopicNode
from pyspark_nsq.planning import Range

SEQ, NODE, TOPIC, TIME, TIME_NS = ("seq",), ("node",), ("topic",), ("timestamp",), ("timestamp_ns",)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_NS = 1_767_268_800_000_000_000


@pytest.mark.parametrize(
    ("conditions", "bounds", "left"),
    [
        ([IsNotNull(SEQ), GreaterThan(SEQ, 7)], Bounds(seq_min=8), 0),
        ([GreaterThanOrEqual(SEQ, 7), LessThan(SEQ, 9)], Bounds(seq_min=7, seq_end=9), 0),
        ([LessThanOrEqual(SEQ, 9), LessThan(SEQ, 99)], Bounds(seq_end=10), 0),
        ([EqualTo(SEQ, 7)], Bounds(seq_min=7, seq_end=8), 0),
        ([In(NODE, (1, 2)), EqualTo(NODE, 2)], Bounds(nodes=frozenset({2})), 0),
        ([In(TOPIC, ("a", "b"))], Bounds(topics=frozenset({"a", "b"})), 0),
        ([GreaterThan(TIME, NOON)], Bounds(time_ns_min=NOON_NS), 1),
        ([GreaterThan(TIME_NS, 5), EqualTo(TIME_NS, 9)], Bounds(time_ns_min=9), 2),
        ([LessThan(TIME, NOON)], Bounds(), 1),
        ([Not(EqualTo(NODE, 1)), StringStartsWith(TOPIC, "a"), IsNotNull(("body",))], Bounds(), 3),
    ],
)
def test_conditions_and_bounds(conditions: list[Filter], bounds: Bounds, left: int) -> None:
    assert (bounds, left) == (bounds_of(conditions)[0], len(bounds_of(conditions)[1]))


def test_bounds_cut_ranges() -> None:
    bounds = Bounds(nodes=frozenset({1}), seq_min=10, seq_end=20)

    assert bounds.admit(TopicNode("orders", 1))
    assert not bounds.admit(TopicNode("orders", 2))
    assert Range("orders", 1, 10, 20) == bounds.cut(Range("orders", 1, 5, 25))
    assert 0 == bounds.cut(Range("orders", 1, 30, 40)).size
    assert 0 == bounds.cut(Range("orders", 1, 1, 5)).size
