"""Planning of a batch: offsets to ranges of messages, ranges to partitions. Runs on the driver.

A log may have gaps: its oldest messages were trimmed, or sequence numbers were skipped, possibly
millions. The catalog of a node has the ends of its logs, not their gaps; these are in the segments,
which take a request per log. Planning asks for the segments of a log only if a batch needs them:

- a limit would cut the log, counted by its sequence numbers or all its bytes (`ranges_to_measure`);
- the range is larger than a task (`maxRecordsPerPartition`), so that a gap could make empty tasks.

A smaller gap only makes a task smaller than planned, and the task skips it.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple, TypeAlias

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
from pyspark_nsq.nodes import ClusterSnapshot, Nodes, TopicLogLocation, ask_all
from pyspark_nsq.offsets import (
    EARLIEST,
    LATEST,
    SEQ_MAX,
    AtTime,
    LogKey,
    NodeIdOffsets,
    Offsets,
    Position,
)
from pyspark_nsq.options import SourceOptions

__all__ = [
    "FilterBounds",
    "LocatedRange",
    "Range",
    "RangesPartition",
    "Segments",
    "fetch_segments",
    "limit_end",
    "parse_filters",
    "plan_partitions",
    "ranges_between",
    "ranges_to_measure",
    "resolve_offsets",
    "split_into_tasks",
    "stored_ranges",
]

log = logging.getLogger("pyspark_nsq")

RANGES_MAX = 500
"""Maximum ranges per task, on average. Each range takes a request of some milliseconds."""

# nsqd interprets smaller numbers as sequence numbers. This time is in July 1970.
TIME_NS_MIN = 1 << 54

_KEY_COLUMNS: Final = (("topic",), ("log",), ("node",), ("seq",))
_TIME_COLUMNS: Final = (("timestamp",), ("timestamp_ns",))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


Segments: TypeAlias = Sequence[LogSegment]
"""The segments of a log, in order; a single one for the whole log if they are unknown."""


class Range(NamedTuple):
    """Messages of one log, with sequence numbers from `start` to before `end`."""

    topic: str
    log_id: str
    start: int
    end: int

    @property
    def key(self) -> LogKey:
        """The log that the range belongs to."""
        return LogKey(self.topic, self.log_id)

    @property
    def size(self) -> int:
        """Number of sequence numbers in the range."""
        return self.end - self.start


def ranges_between(start: Mapping[LogKey, int], end: Mapping[LogKey, int]) -> list[Range]:
    """The sorted ranges between two offsets. A log that only `end` contains is new, and read
    from the next batch on."""
    ranges = [Range(*key, start.get(key, seq), seq) for key, seq in sorted(end.items())]
    return [each for each in ranges if each.size > 0]


def stored_ranges(wanted: Range, segments: Segments) -> list[Range]:
    """The parts of a range that the log contains; adjacent parts are joined."""
    parts: list[Range] = []
    for segment in segments:
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
    start: Mapping[LogKey, int],
    end: Mapping[LogKey, int],
    segments: Mapping[LogKey, Segments],
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
) -> Offsets:
    """Reduce `end` so that a batch from `start` is within the limits.

    All logs have an equal share of the limit. If a log has fewer messages, the others share the
    rest. Rows are counted; bytes are estimated from the sizes of the segments. In a log without
    segments, every sequence number counts as a row.
    """
    ranges = ranges_between(start, end)
    known = {each.key: segments.get(each.key) or _one_segment(each) for each in ranges}
    parts = {each.key: stored_ranges(each, known[each.key]) for each in ranges}
    wanted = {key: sum(part.size for part in each) for key, each in parts.items()}
    rows = dict(wanted)
    if bytes_max is not None:
        rows = _rows_in_bytes(parts, known, bytes_max)
    if rows_max is not None:
        rows = _shares(rows, rows_max)
    reached = dict(end)
    for key, count in rows.items():
        if count < wanted[key]:
            reached[key] = _after(parts[key], count, start[key])
    return reached


def ranges_to_measure(
    start: Mapping[LogKey, int],
    end: Mapping[LogKey, int],
    sizes_bytes: Mapping[LogKey, int],
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
) -> list[Range]:
    """Ranges that a limit may cut: `limit_end` needs the segments of their logs.

    `sizes_bytes` are the sizes of the whole logs. Without the segments, the number of messages is
    not known, but it is at most the number of sequence numbers: if that is within the log's share
    of the limit, the range is not cut.
    """
    ranges = ranges_between(start, end)
    cut: set[LogKey] = set()
    if rows_max is not None:
        cut |= _over_share({each.key: each.size for each in ranges}, rows_max)
    if bytes_max is not None:
        cut |= _over_share({each.key: sizes_bytes.get(each.key, 0) for each in ranges}, bytes_max)
    return [each for each in ranges if each.key in cut]


def _over_share(wanted: Mapping[LogKey, int], limit: int) -> set[LogKey]:
    shares = _shares(wanted, limit)
    return {key for key, count in wanted.items() if shares[key] < count}


def _one_segment(whole: Range) -> Segments:
    return [LogSegment(whole.start, whole.end)]


def _after(parts: Iterable[Range], count: int, start: int) -> int:
    """The sequence number after `count` messages."""
    reached, left = start, count
    for part in parts:
        if left <= 0:
            break
        reached = min(part.start + left, part.end)
        left -= part.size
    return reached


def _shares(wanted: Mapping[LogKey, int], limit: int) -> dict[LogKey, int]:
    """Max-min fair shares of the limit: no log gets more than it wants, and a log that gets less
    than it wants gets at least as much as any other, except for a rounding difference of one."""
    shares: dict[LogKey, int] = {}
    left = limit
    smallest_first = sorted(wanted, key=lambda key: (wanted[key], key))
    for index, key in enumerate(smallest_first):
        shares[key] = min(wanted[key], -(-left // (len(smallest_first) - index)))
        left -= shares[key]
    return shares


def _rows_in_bytes(
    parts: Mapping[LogKey, list[Range]],
    segments: Mapping[LogKey, Segments],
    bytes_max: int,
) -> dict[LogKey, int]:
    """Number of messages of each log that make about `bytes_max` in total; at least one each."""
    pieces = {
        key: [piece for part in each for piece in _pieces(part, segments[key])]
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


def _pieces(part: Range, segments: Segments) -> Iterable[tuple[int, float]]:
    """For each segment: messages that the part has in it, and their estimated bytes."""
    for segment in segments:
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
    options: SourceOptions,
    nodes: Nodes,
    ranges: Iterable[Range],
    logs: Mapping[LogKey, TopicLogLocation],
) -> list[InputPartition]:
    """Plan the tasks for these ranges. Raises DataLossError if messages have been trimmed."""
    wanted = [part for each in ranges for part in _available(options, each, logs.get(each.key))]
    large = [each for each in wanted if each.size > options.rows_per_partition]
    segments = fetch_segments(nodes, large, logs)
    stored = [
        part
        for each in wanted
        for part in (stored_ranges(each, segments[each.key]) if each.key in segments else (each,))
    ]
    tasks = split_into_tasks(
        stored, parts_min=options.partitions_min, rows_max=options.rows_per_partition
    )
    # An empty list would make Spark create one partition with unknown contents.
    return [RangesPartition([_located(each, logs) for each in task]) for task in tasks or [[]]]


def fetch_segments(
    nodes: Nodes, ranges: Iterable[Range], logs: Mapping[LogKey, TopicLogLocation]
) -> dict[LogKey, Segments]:
    """Ask for the segments of the ranges' logs. Omits logs that are unknown, whose node fails, or
    that do not contain the end of the range."""
    asked = [each for each in ranges if each.key in logs]
    answers = ask_all(lambda each: nodes.history(logs[each.key].base, each.topic).log(), asked)
    return {
        each.key: answer.segments
        for each, answer in zip(asked, answers, strict=True)
        if isinstance(answer, TopicLogResponse)
        and answer.log_id == each.log_id
        and answer.next_seq >= each.end
    }


def _located(wanted: Range, logs: Mapping[LogKey, TopicLogLocation]) -> LocatedRange:
    found = logs.get(wanted.key)
    return LocatedRange(wanted, found.base if found is not None else "")


def _available(
    options: SourceOptions, wanted: Range, found: TopicLogLocation | None
) -> list[Range]:
    """The part of a range that has not been trimmed. If the node is unreachable or has lost its
    newest messages, the task handles that."""
    if found is None or found.log.next_seq < wanted.end or found.log.first_seq <= wanted.start:
        return [wanted]
    first_seq = min(found.log.first_seq, wanted.end)
    lost = (
        f"{wanted.key}: messages {wanted.start} to {first_seq - 1} are lost:"
        f" the log begins at {found.log.first_seq}"
    )
    if options.fail_on_data_loss:
        raise DataLossError(f"{lost}; failOnDataLoss=false skips them")
    log.error("%s", lost)
    return [wanted._replace(start=first_seq)] if first_seq < wanted.end else []


# Starting and ending offsets.


def resolve_offsets(nodes: Nodes, snapshot: ClusterSnapshot, position: Position) -> Offsets:
    """The sequence number of a position in each log. Raises HttpRequestError, and ConfigError if
    the position has a node id that several nodes have."""
    if isinstance(position, dict):
        position = _with_log_ids(position, snapshot)
    return {key: _resolve(nodes, key, found, position) for key, found in snapshot.logs.items()}


def _with_log_ids(offsets: Offsets, snapshot: ClusterSnapshot) -> Offsets:
    """Convert node ids. EARLIEST and LATEST hold for all logs with the node id."""
    numbers = {key: seq for key, seq in offsets.items() if seq >= 0 or not key.is_node_id}
    by_node = {key: seq for key, seq in offsets.items() if key not in numbers}
    converted = NodeIdOffsets().convert(numbers, snapshot.extents(), is_complete=True)
    for key, found in snapshot.logs.items():
        node_key = LogKey(key.topic, str(found.node_id))
        if node_key in by_node:
            converted.setdefault(key, by_node[node_key])
    return converted


def _resolve(nodes: Nodes, key: LogKey, found: TopicLogLocation, position: Position) -> int:
    if isinstance(position, AtTime):
        history = nodes.history(found.base, key.topic)
        return history.seq_at_time(max(position.time_ns, TIME_NS_MIN))
    number = position if isinstance(position, int) else position.get(key, EARLIEST)
    return {EARLIEST: found.log.first_seq, LATEST: found.log.high_watermark}.get(number, number)


# Filter pushdown.


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """Limits on the rows to read, from the filters that Spark pushes down.

    All messages of a range have the same topic, log and node, and sequence numbers in a row, so
    filters on these columns are applied completely.
    A filter on the time only skips messages before the first one at or after that time: timestamps
    may decrease within a log when a clock is set back. Spark checks the rest.
    """

    topics: frozenset[str] | None = None
    log_ids: frozenset[str] | None = None
    nodes: frozenset[int] | None = None
    seq_min: int = 0
    seq_end: int = SEQ_MAX + 1
    time_ns_min: int | None = None

    def admits(self, key: LogKey, node_id: int) -> bool:
        """Whether the log may contain matching rows."""
        return (
            _is_among(key.topic, self.topics)
            and _is_among(key.log_id, self.log_ids)
            and _is_among(node_id, self.nodes)
        )

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
    if column == ("log",) and (values := _values(condition)) is not None:
        return replace(bounds, log_ids=_intersect(bounds.log_ids, values)), True
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
