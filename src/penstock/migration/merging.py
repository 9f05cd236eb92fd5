"""Many channels' queues as one sequence. Pure.

NSQ's nsqd stores a message once for each channel; here it is stored once, and channels are cursors.
So the queues are merged by time, and where several have the same message next it becomes one. Each
queue keeps its own order, whatever that is: what cannot be matched is stored twice, and loses
nothing but space.

A cursor knows what its channel does not have as ranges, and many ranges take memory. Queues that
take turns too often are therefore no longer merged from then on, but follow each other.
"""

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from penstock.migration.queue_files import Record

__all__ = ["Owned", "merged"]

# Of all channels together: each may have one more at every turn.
RANGES_MAX = 200_000


class Owned(NamedTuple):
    """A message, and the channels that are still to be given it."""

    channels: tuple[str, ...]
    record: Record


class _Head(NamedTuple):
    """What is next in a queue; the earliest comes first."""

    timestamp_ns: int
    id: bytes
    queue: int
    record: Record


def merged(queues: Mapping[str, Iterator[Record]], ranges_max: int = RANGES_MAX) -> Iterator[Owned]:
    """Every message of every queue; a queue is known by its channel."""
    channels, iterators = list(queues), list(queues.values())
    heads: list[_Head] = []
    for queue, records in enumerate(iterators):
        heads += _next_head(queue, records)
    heapify(heads)
    turns, last = 0, [-1]
    while heads and turns * len(channels) < ranges_max:
        same = _pop_same(heads)
        owners = [head.queue for head in same]
        turns += owners != last
        last = owners
        yield Owned(tuple(channels[queue] for queue in owners), same[0].record)
        for queue in owners:
            for head in _next_head(queue, iterators[queue]):
                heappush(heads, head)
    for head in sorted(heads):
        owner = (channels[head.queue],)
        yield Owned(owner, head.record)
        for record in iterators[head.queue]:
            yield Owned(owner, record)


def _next_head(queue: int, records: Iterator[Record]) -> list[_Head]:
    """One, or none if the queue is at its end."""
    record = next(records, None)
    return [] if record is None else [_Head(record.timestamp_ns, record.id, queue, record)]


def _pop_same(heads: list[_Head]) -> list[_Head]:
    """The first head, and those of other queues that are the same message in every respect."""
    same = [heappop(heads)]
    others: list[_Head] = []
    while heads and heads[0][:2] == same[0][:2]:
        head = heappop(heads)
        (same if head.record == same[0].record else others).append(head)
    for head in others:
        heappush(heads, head)
    return same
