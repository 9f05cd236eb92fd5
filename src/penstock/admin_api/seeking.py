"""What moving a channel would do, and doing it.

A channel has a cursor on every node that has it. All of them are looked at before any is moved.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.admin_api.nsqd_api import NsqdApi
from penstock.admin_api.stats import Snapshot
from penstock.common.errors import HttpRequestError

__all__ = ["Move", "move", "plan"]


@dataclass(frozen=True, slots=True)
class Move:
    """What is to be done on one node."""

    api: NsqdApi
    seq: int
    """Where the channel is put."""
    ahead: int
    """How many messages are stored from there on."""
    pending: int
    """How many its consumers would still have to do, if it stayed where it is."""

    @property
    def again(self) -> int:
        """Messages that were finished and will come once more."""
        return max(self.ahead - self.pending, 0)

    @property
    def skipped(self) -> int:
        """Messages that nobody has finished and that will not come."""
        return max(self.pending - self.ahead, 0)


async def plan(
    apis: Sequence[NsqdApi], snapshot: Snapshot, topic: str, channel: str, place: str
) -> list[Move]:
    """A move for every node that has the channel. Raises HttpRequestError if none has, or if there
    is no such place."""
    pending = _pending_counts(snapshot, topic, channel)
    moves = [
        _plan_one(api, topic, place, pending[api.address]) for api in apis if api.address in pending
    ]
    if not moves:
        nodes = ", ".join(api.address for api in apis)
        raise HttpRequestError(nodes, f"there is no channel {channel} of {topic}")
    return await asyncio.gather(*moves)


async def move(moves: Sequence[Move], topic: str, channel: str) -> None:
    """Moves them. Raises HttpRequestError at the first that fails; those before it are moved."""
    for each in moves:
        await each.api.seek(topic, channel, each.seq)


async def _plan_one(api: NsqdApi, topic: str, place: str, pending: int) -> Move:
    seq = await api.seq_of(topic, place)
    log = await api.log_of(topic)
    return Move(api, seq, log.count_from(seq), pending)


def _pending_counts(snapshot: Snapshot, topic: str, channel: str) -> dict[str, int]:
    """By the node's address."""
    counts = {}
    for node in snapshot.nodes:
        for figures in node.topics:
            found = figures.maybe_channel(channel) if figures.topic_name == topic else None
            if found is not None:
                counts[node.address] = found.pending_count
    return counts
