"""From offsets to ranges of messages, and from ranges to the tasks that read them.

Pure: what nsqd has is handed in as numbers.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from pyspark_nsq.history import TopicLog
from pyspark_nsq.offsets import Offsets, TopicNode

__all__ = ["Range", "limited", "ranges_between", "rows_in_bytes", "split"]


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
        """How many numbers it has; some messages may be missing."""
        return self.end - self.start


def ranges_between(start: Mapping[TopicNode, int], end: Mapping[TopicNode, int]) -> list[Range]:
    """What lies between two offsets, in a fixed order. A log must be in both."""
    ranges = [Range(*key, start[key], seq) for key, seq in sorted(end.items())]
    return [each for each in ranges if each.size > 0]


def limited(start: Mapping[TopicNode, int], end: Mapping[TopicNode, int], rows_max: int) -> Offsets:
    """An end that is no more than `rows_max` from the start; every log gets on in proportion to
    what it has, by one message at least as long as there are so many to share out."""
    ranges = ranges_between(start, end)
    total = sum(each.size for each in ranges)
    if total <= rows_max:
        return dict(end)
    reached, left = dict(end), rows_max
    # The short ones first, so that what rounding up takes is taken from those that have plenty.
    for each in sorted(ranges, key=lambda each: each.size):
        share = min(-(-each.size * rows_max // total), each.size, left)
        reached[each.key] = each.start + share
        left -= share
    return reached


def rows_in_bytes(log: TopicLog, start: int, bytes_max: int) -> int:
    """About how many messages from `start` on take so many bytes in the log; one at least."""
    rows, left = 0.0, float(bytes_max)
    for segment in log.segments:
        count = segment.next_seq - segment.first_seq
        ahead = segment.next_seq - max(start, segment.first_seq)
        if ahead <= 0 or not segment.bytes:
            continue
        row_bytes = segment.bytes / count
        taken = min(float(ahead), left / row_bytes)
        rows += taken
        left -= taken * row_bytes
    return max(int(rows), 1)


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
