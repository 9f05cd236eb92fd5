"""Planning of a batch: offsets to ranges of messages, ranges to partitions. Runs on the driver.

A log may have gaps: its oldest messages were trimmed, or sequence numbers were skipped, possibly
millions. Planning, limits and splitting consider only messages that are in the log.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.admin_api.models import LogSegment, TopicLogResponse
from pyspark_nsq.errors import DataLossError
from pyspark_nsq.nodes import Nodes, TopicLogLocation
from pyspark_nsq.offsets import EARLIEST, LATEST, SEQ_MAX, AtTime, Offsets, Position, TopicNode
from pyspark_nsq.options import SourceOptions

__all__ = [
    "FilterBounds",
    "LocatedRange",
    "Range",
    "RangesPartition",
    "limit_end",
    "parse_filters",
    "plan_partitions",
    "ranges_between",
    "resolve_offsets",
    "split_into_tasks",
    "stored_ranges",
]

log = logging.getLogger("pyspark_nsq")

RANGES_MAX = 500
"""Maximum ranges per task, on average. Each range takes a request of some milliseconds."""

# nsqd interprets smaller numbers as sequence numbers. This time is in July 1970.
TIME_NS_MIN = 1 << 54

_KEY_COLUMNS: Final = (("topic",), ("node",), ("seq",))
_TIME_COLUMNS: Final = (("timestamp",), ("timestamp_ns",))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Range(NamedTuple):
    """Messages of one log, with sequence numbers from `start` to before `end`."""

    topic: str
    node: int
    start: int
    end: int

    @property
    def key(self) -> TopicNode:
        """The log that the range belongs to."""
        return TopicNode(self.topic, self.node)

    @property
    def size(self) -> int:
        """Number of sequence numbers in the range."""
        return self.end - self.start


def ranges_between(start: Mapping[TopicNode, int], end: Mapping[TopicNode, int]) -> list[Range]:
    """The sorted ranges between two offsets. A log that only `end` contains is new, and read
    from the next batch on."""
    ranges = [Range(*key, start.get(key, seq), seq) for key, seq in sorted(end.items())]
    return [each for each in ranges if each.size > 0]


def stored_ranges(wanted: Range, topic_log: TopicLogResponse) -> list[Range]:
    """The parts of a range that the log contains; adjacent parts are joined."""
    parts: list[Range] = []
    for segment in topic_log.segments:
        first = max(segment.first_seq, wanted.start)
        end = min(segment.next_seq, wanted.end)
        if first >= end:
            continue
        if parts and parts[-1].end == first:
            parts[-1] = parts[-1]._replace(end=end)
        else:
            parts.append(wanted._replace(start=first, end=end))
    return parts


def split_into_tasks(
    ranges: Iterable[Range], *, parts_min: int, rows_max: int
) -> list[list[Range]]:
    """Split ranges into tasks of equal size, in the same order; a task may read many ranges.

    A task has at most `rows_max` messages. There are at least `parts_min` tasks, unless there are
    fewer messages. Many ranges make more tasks, because each range takes a request to its node.
    """
    whole = list(ranges)
    total = sum(each.size for each in whole)
    count = min(max(parts_min, ceil(total / rows_max), ceil(len(whole) / RANGES_MAX)), total)
    bounds = [total * index // count for index in range(1, count + 1)]
    tasks: list[list[Range]] = [[] for _ in bounds]
    index, done = 0, 0
    for each in whole:
        start = each.start
        while start < each.end:
            end = min(each.end, start + bounds[index] - done)
            tasks[index].append(each._replace(start=start, end=end))
            done += end - start
            start = end
            if done == bounds[index]:
                index += 1
    return tasks


# Limits -------------------------------------------------------------------------------------------


def limit_end(
    start: Mapping[TopicNode, int],
    end: Mapping[TopicNode, int],
    logs: Mapping[TopicNode, TopicLogResponse],
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
) -> Offsets:
    """Reduce `end` so that a batch from `start` is within the limits.

    All logs have an equal share of the limit. If a log has fewer messages, the others share the
    rest. Rows are counted; bytes are estimated from the sizes of the segments. In a log that `logs`
    does not contain, every sequence number counts as a row.
    """
    ranges = ranges_between(start, end)
    parts = {
        each.key: stored_ranges(each, logs[each.key]) if each.key in logs else [each]
        for each in ranges
    }
    wanted = {key: sum(part.size for part in each) for key, each in parts.items()}
    rows = dict(wanted)
    if bytes_max is not None:
        rows = _rows_in_bytes(parts, logs, bytes_max)
    if rows_max is not None:
        rows = _shares(rows, rows_max)
    reached = dict(end)
    for key, count in rows.items():
        if count < wanted[key]:
            reached[key] = _after(parts[key], count, start[key])
    return reached


def _after(parts: Iterable[Range], count: int, start: int) -> int:
    """The sequence number after `count` messages."""
    reached, left = start, count
    for part in parts:
        if left <= 0:
            break
        reached = min(part.start + left, part.end)
        left -= part.size
    return reached


def _shares(wanted: Mapping[TopicNode, int], limit: int) -> dict[TopicNode, int]:
    """Max-min fair shares of the limit: no log gets more than it wants, and a log that gets less
    than it wants gets at least as much as any other, except for a rounding difference of one."""
    shares: dict[TopicNode, int] = {}
    left = limit
    smallest_first = sorted(wanted, key=lambda key: (wanted[key], key))
    for index, key in enumerate(smallest_first):
        shares[key] = min(wanted[key], -(-left // (len(smallest_first) - index)))
        left -= shares[key]
    return shares


def _rows_in_bytes(
    parts: Mapping[TopicNode, list[Range]],
    logs: Mapping[TopicNode, TopicLogResponse],
    bytes_max: int,
) -> dict[TopicNode, int]:
    """Number of messages of each log that make about `bytes_max` in total; at least one each."""
    pieces = {
        key: [piece for part in each for piece in _pieces(part, logs.get(key))]
        for key, each in parts.items()
    }
    sizes = {key: ceil(sum(size for _, size in each)) for key, each in pieces.items()}
    shares = _shares(sizes, bytes_max)
    return {key: _rows_within(each, shares[key]) for key, each in pieces.items()}


def _rows_within(pieces: list[tuple[int, float]], size_bytes: float) -> int:
    left, rows = size_bytes, 0.0
    for count, size in pieces:
        taken = min(1.0, left / size) if size else 1.0
        rows += taken * count
        left -= taken * size
    return max(round(rows), 1) if pieces else 0


def _pieces(part: Range, topic_log: TopicLogResponse | None) -> Iterable[tuple[int, float]]:
    """For each segment: messages that the part has in it, and their estimated bytes."""
    for segment in topic_log.segments if topic_log is not None else ():
        count = min(part.end, segment.next_seq) - max(part.start, segment.first_seq)
        if count > 0:
            yield count, count * _row_bytes(segment)


def _row_bytes(segment: LogSegment) -> float:
    return segment.bytes / (segment.next_seq - segment.first_seq)


# Partitions.


class LocatedRange(NamedTuple):
    """A range, and the base URL of its node at planning time; empty if unknown."""

    range: Range
    base: str


@dataclass
class RangesPartition(InputPartition):
    """The ranges that a task reads, in order."""

    ranges: list[LocatedRange]


def plan_partitions(
    options: SourceOptions, ranges: Iterable[Range], logs: Mapping[TopicNode, TopicLogLocation]
) -> list[InputPartition]:
    """Plan the tasks for these ranges. Raises DataLossError if messages have been trimmed."""
    stored = [part for each in ranges for part in _stored(options, each, logs.get(each.key))]
    tasks = split_into_tasks(
        stored, parts_min=options.partitions_min, rows_max=options.rows_per_partition
    )
    # An empty list would make Spark create one partition with unknown contents.
    return [RangesPartition([_located(each, logs) for each in task]) for task in tasks or [[]]]


def _located(wanted: Range, logs: Mapping[TopicNode, TopicLogLocation]) -> LocatedRange:
    found = logs.get(wanted.key)
    return LocatedRange(wanted, found.base if found is not None else "")


def _stored(options: SourceOptions, wanted: Range, found: TopicLogLocation | None) -> list[Range]:
    """If the node is unreachable or has lost its newest messages, the task handles that."""
    if found is None or found.log.next_seq < wanted.end:
        return [wanted]
    first_seq = found.log.first_seq
    if wanted.start < first_seq:
        lost = (
            f"topic {wanted.topic}, node {wanted.node}: messages {wanted.start} to "
            f"{min(first_seq, wanted.end) - 1} are lost: the log begins at {first_seq}"
        )
        if options.fail_on_data_loss:
            raise DataLossError(f"{lost}; failOnDataLoss=false skips them")
        log.error("%s", lost)
    return stored_ranges(wanted, found.log)


# Starting and ending offsets.


def resolve_offsets(
    nodes: Nodes, logs: Mapping[TopicNode, TopicLogLocation], position: Position
) -> Offsets:
    """The sequence number of a position in each log. Raises HttpRequestError."""
    return {key: _resolve(nodes, key, found, position) for key, found in logs.items()}


def _resolve(nodes: Nodes, key: TopicNode, found: TopicLogLocation, position: Position) -> int:
    if isinstance(position, AtTime):
        history = nodes.history(found.base, key.topic)
        return history.seq_at_time(max(position.time_ns, TIME_NS_MIN))
    number = position if isinstance(position, int) else position.get(key, EARLIEST)
    return {EARLIEST: found.log.first_seq, LATEST: found.log.next_seq}.get(number, number)


# Filter pushdown.


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """Limits on the rows to read, from the filters that Spark pushes down.

    Ranges consist of `topic`, `node` and `seq`, so filters on these columns are applied completely.
    A filter on the time only skips messages before the first one at or after that time: timestamps
    may decrease within a log when a clock is set back. Spark checks the rest.
    """

    topics: frozenset[str] | None = None
    nodes: frozenset[int] | None = None
    seq_min: int = 0
    seq_end: int = SEQ_MAX + 1
    time_ns_min: int | None = None

    def admits(self, key: TopicNode) -> bool:
        """Whether the log may contain matching rows."""
        return _is_among(key.topic, self.topics) and _is_among(key.node, self.nodes)

    def clip(self, whole: Range) -> Range:
        """The part of a range that may contain matching rows; possibly empty."""
        start = min(max(whole.start, self.seq_min), whole.end)
        return whole._replace(start=start, end=max(start, min(whole.end, self.seq_end)))


def parse_filters(filters: Iterable[Filter]) -> tuple[FilterBounds, list[Filter]]:
    """Convert filters to bounds; also return the filters that Spark must still check."""
    bounds, left = FilterBounds(), []
    for each in filters:
        bounds, is_complete = _apply_filter(bounds, each)
        if not is_complete:
            left.append(each)
    return bounds, left


def _apply_filter(bounds: FilterBounds, condition: Filter) -> tuple[FilterBounds, bool]:
    """Narrow the bounds by a filter; also return whether they cover the filter completely."""
    column = getattr(condition, "attribute", ())
    if column in _KEY_COLUMNS and isinstance(condition, IsNotNull):
        return bounds, True  # these columns are never null
    if column == ("topic",) and (values := _values(condition)) is not None:
        return replace(bounds, topics=_intersect(bounds.topics, values)), True
    if column == ("node",) and (values := _values(condition)) is not None:
        return replace(bounds, nodes=_intersect(bounds.nodes, values)), True
    if column == ("seq",) and (span := _span(condition)) is not None:
        first, end = max(bounds.seq_min, span[0]), min(bounds.seq_end, span[1])
        return replace(bounds, seq_min=first, seq_end=end), True
    if column in _TIME_COLUMNS and isinstance(
        condition, GreaterThan | GreaterThanOrEqual | EqualTo
    ):
        time_ns = max(bounds.time_ns_min or 0, _time_ns(condition.value))
        return replace(bounds, time_ns_min=time_ns), False
    return bounds, False


def _values(condition: Filter) -> Collection[Any] | None:
    """The values that the filter accepts, if it lists them."""
    match condition:
        case EqualTo(_, value):
            return [value]
        case In(_, values):
            return values
    return None


def _span(condition: Filter) -> tuple[int, int] | None:
    """The first accepted number and the end, if the filter accepts one contiguous range."""
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


def _intersect(known: frozenset[Any] | None, values: Collection[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _is_among(value: object, known: frozenset[Any] | None) -> bool:
    return known is None or value in known


def _time_ns(value: object) -> int:
    """Nanoseconds since 1970; 0, which is no limit, if the value is not a time."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        since = value - _EPOCH
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    return value if isinstance(value, int) else 0
