"""Conditions that Spark hands down, as bounds on what is read at all.

`topic`, `node` and `seq` are what ranges are made of, so conditions on them need not be looked at
again. Times are not, because they need not grow with the numbers: a clock can be set back. What is
left out by a time is only what lies before the first message of that time or later; Spark checks
the rest.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from pyspark_nsq.offsets import SEQ_MAX, TopicNode
from pyspark_nsq.planning import Range

__all__ = ["Bounds", "bounds_of"]

_ADDRESS: Final = (("topic",), ("node",), ("seq",))
_TIMES: Final = (("timestamp",), ("timestamp_ns",))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What rows must have: no more is said of those that are within."""

    topics: frozenset[str] | None = None
    nodes: frozenset[int] | None = None
    seq_min: int = 0
    seq_end: int = SEQ_MAX + 1
    time_ns_min: int | None = None

    def admit(self, key: TopicNode) -> bool:
        """Whether a log can have such rows."""
        return _is_among(key.topic, self.topics) and _is_among(key.node, self.nodes)

    def cut(self, whole: Range) -> Range:
        """The part of a range that can have them, which may be empty."""
        start = min(max(whole.start, self.seq_min), whole.end)
        return whole._replace(start=start, end=max(start, min(whole.end, self.seq_end)))


def bounds_of(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """What conditions say, and those that Spark has to check itself."""
    bounds, left = Bounds(), []
    for each in filters:
        bounds, is_all_said = _narrowed(bounds, each)
        if not is_all_said:
            left.append(each)
    return bounds, left


def _narrowed(bounds: Bounds, condition: Filter) -> tuple[Bounds, bool]:
    """The bounds with one more condition, and whether they say all that it says."""
    column = getattr(condition, "attribute", ())
    if column in _ADDRESS and isinstance(condition, IsNotNull):
        return bounds, True  # they never are
    if column == ("topic",) and (values := _values(condition)) is not None:
        return replace(bounds, topics=_both(bounds.topics, values)), True
    if column == ("node",) and (values := _values(condition)) is not None:
        return replace(bounds, nodes=_both(bounds.nodes, values)), True
    if column == ("seq",) and (span := _span(condition)) is not None:
        first, end = max(bounds.seq_min, span[0]), min(bounds.seq_end, span[1])
        return replace(bounds, seq_min=first, seq_end=end), True
    if column in _TIMES and isinstance(condition, GreaterThan | GreaterThanOrEqual | EqualTo):
        time_ns = max(bounds.time_ns_min or 0, _time_ns(condition.value))
        return replace(bounds, time_ns_min=time_ns), False
    return bounds, False


def _values(condition: Filter) -> Collection[Any] | None:
    """Those that a condition admits, if it names them."""
    match condition:
        case EqualTo(_, value):
            return [value]
        case In(_, values):
            return values
    return None


def _span(condition: Filter) -> tuple[int, int] | None:
    """The numbers that a condition admits, from the first to before the end, if they are a span."""
    match condition:
        case EqualTo(_, value):
            return value, value + 1
        case GreaterThanOrEqual(_, value):
            return value, SEQ_MAX + 1
        case GreaterThan(_, value):
            return value + 1, SEQ_MAX + 1
        case LessThan(_, value):
            return 0, value
        case LessThanOrEqual(_, value):
            return 0, value + 1
    return None


def _both(known: frozenset[Any] | None, values: Collection[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _is_among(value: object, known: frozenset[Any] | None) -> bool:
    return known is None or value in known


def _time_ns(value: object) -> int:
    """0, which says nothing, if it is no moment."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        since = value - _EPOCH
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    return value if isinstance(value, int) else 0
