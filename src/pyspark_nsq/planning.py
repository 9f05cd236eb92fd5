"""From offsets to ranges of messages, and from ranges to the tasks that read them.

Pure: what nsqd has is handed in as numbers. A log may have gaps, because its oldest messages were
trimmed, or because numbers were skipped, and then by millions: what is planned, limited and split
is what is there.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

from pyspark_nsq.history import Segment, TopicLog
from pyspark_nsq.offsets import Offsets, TopicNode

__all__ = ["Range", "end_within", "ranges_between", "split", "stored_parts"]


RANGES_MAX = 500
"""Maximum ranges per task, on average. Each range takes a request of some milliseconds."""


class Range(NamedTuple):
    """Messages of a topic at a node, from number `start` to before `end`."""

    topic: str
    node: int
    start: int
    end: int

    @property
    def key(self) -> TopicNode:
        """Whose messages they are."""
        return TopicNode(self.topic, self.node)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.end - self.start


def ranges_between(start: Mapping[TopicNode, int], end: Mapping[TopicNode, int]) -> list[Range]:
    """What lies between two offsets, in a fixed order. A log that is not in the first has just
    joined, at its place in the second."""
    ranges = [Range(*key, start.get(key, seq), seq) for key, seq in sorted(end.items())]
    return [each for each in ranges if each.size > 0]


def stored_parts(wanted: Range, log: TopicLog) -> list[Range]:
    """The parts of a range that are in a log, as long as they come."""
    parts: list[Range] = []
    for segment in log.segments:
        first = max(segment.first_seq, wanted.start)
        end = min(segment.next_seq, wanted.end)
        if first >= end:
            continue
        if parts and parts[-1].end == first:
            parts[-1] = parts[-1]._replace(end=end)
        else:
            parts.append(wanted._replace(start=first, end=end))
    return parts


def split(ranges: Iterable[Range], *, parts_min: int, rows_max: int) -> list[list[Range]]:
    """Splits ranges into tasks of equal size, in the same order; a task may read many ranges.

    A task has at most `rows_max` messages. There are at least `parts_min` tasks, but no more than
    messages; many ranges make more tasks, since each range takes a request to its node.
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


def end_within(
    start: Mapping[TopicNode, int],
    end: Mapping[TopicNode, int],
    logs: Mapping[TopicNode, TopicLog],
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
) -> Offsets:
    """An end, between these two, that is within the limits.

    The limit is shared equally. A log that has less than its share is read to its end, and the
    others share the rest. Rows are counted; bytes are estimated from the sizes of the log's files.
    In a log that is not among `logs`, every number counts as a row.
    """
    ranges = ranges_between(start, end)
    parts = {
        each.key: stored_parts(each, logs[each.key]) if each.key in logs else [each]
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
    """The number that is so many messages on."""
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
    parts: Mapping[TopicNode, list[Range]], logs: Mapping[TopicNode, TopicLog], bytes_max: int
) -> dict[TopicNode, int]:
    """How many messages of each log are about `bytes_max` together; one at least of each."""
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


def _pieces(part: Range, log: TopicLog | None) -> Iterable[tuple[int, float]]:
    """How many messages of a part are in each file, and how many bytes they are likely to take."""
    for segment in log.segments if log is not None else ():
        count = min(part.end, segment.next_seq) - max(part.start, segment.first_seq)
        if count > 0:
            yield count, count * _row_bytes(segment)


def _row_bytes(segment: Segment) -> float:
    return segment.bytes / (segment.next_seq - segment.first_seq)
