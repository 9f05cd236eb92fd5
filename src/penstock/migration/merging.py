"""Many channels' queues as one sequence. Pure.

NSQ's nsqd stores a message once for each channel; here it is stored once, and channels are cursors.
So the queues are merged by time, and where several have the same message next it becomes one. Each
queue keeps its own order, whatever that is: what cannot be matched is stored twice, and loses
nothing but space.

A cursor knows what its channel does not have as ranges, and many ranges take memory. Queues that
take turns too often are therefore no longer merged, but follow each other.
"""

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from penstock.migration.queue_files import Record

__all__ = ["Owned", "merged"]

TURNS_MAX = 50_000

_time_and_id = itemgetter(0, 2)


class Owned(NamedTuple):
    """A message, and the channels that are still to be given it."""

    channels: tuple[str, ...]
    record: Record


def merged(queues: Mapping[str, Iterator[Record]], turns_max: int = TURNS_MAX) -> Iterator[Owned]:
    """Every message of every queue; a queue is known by its channel."""
    heads = {
        channel: record
        for channel, queue in queues.items()
        if (record := next(queue, None)) is not None
    }
    turns = 0
    owners: tuple[str, ...] = ()
    while heads:
        if turns < turns_max:
            record = min(heads.values(), key=_time_and_id)
        else:  # the queue of the last message goes on, while it has any
            record = heads[next((each for each in owners if each in heads), next(iter(heads)))]
        new_owners = tuple(channel for channel, head in heads.items() if head == record)
        turns += new_owners != owners
        owners = new_owners
        yield Owned(owners, record)
        for channel in owners:
            following = next(queues[channel], None)
            if following is None:
                del heads[channel]
            else:
                heads[channel] = following
