"""From offsets to ranges of messages, and from ranges to the tasks that read them.

Pure: what nsqd has is handed in as numbers. A log may have gaps, because its oldest messages were
trimmed, or because numbers were skipped, and then by millions: what is planned, limited and split
is what is there.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from pyspark_nsq.history import Segment, TopicLog
from pyspark_nsq.offsets import Offsets, TopicNode

__all__ = ["Range", "end_within", "ranges_between", "split", "stored_parts"]


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


def split(ranges: Iterable[Range], *, parts_min: int, rows_max: int) -> list[Range]:
    """The same messages in ranges of at most `rows_max`, and in `parts_min` ranges or more, as far
    as there are messages; long ranges are split before short ones."""
    whole = list(ranges)
    total = sum(each.size for each in whole)
    parts: list[Range] = []
    for each in whole:
        share = -(-each.size * parts_min // total)
        parts += _cut(each, min(max(share, -(-each.size // rows_max)), each.size))
    return parts


def _cut(whole: Range, count: int) -> Iterable[Range]:
    bounds = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(bounds)]


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

    Every log gets on in proportion to what it has. Rows are counted; bytes are what the log's files
    let expect. Of a log that is not among `logs`, every number counts as a row.
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
        rows = _shared_out(rows, rows_max)
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


def _shared_out(rows: dict[TopicNode, int], rows_max: int) -> dict[TopicNode, int]:
    total, left = sum(rows.values()), rows_max
    if total <= rows_max:
        return rows
    shares: dict[TopicNode, int] = {}
    # The short ones first, so that what rounding up takes is taken from those that have plenty.
    for key in sorted(rows, key=lambda key: (rows[key], key)):
        shares[key] = min(-(-rows[key] * rows_max // total), left)
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
    total = sum(size for each in pieces.values() for _, size in each)
    fraction = min(1.0, bytes_max / total) if total else 1.0
    return {key: _rows_of_fraction(each, fraction) for key, each in pieces.items()}


def _rows_of_fraction(pieces: list[tuple[int, float]], fraction: float) -> int:
    left = fraction * sum(size for _, size in pieces)
    rows = 0.0
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
