"""Positions in a topic's log, and moving a channel to one.

A channel has a cursor on every node that has it. All nodes are asked before any cursor is moved.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.admin_api.cluster import ClusterStats
from penstock.admin_api.nsqd_api import NsqdApi
from penstock.common.durations import parse_duration
from penstock.common.errors import ConfigError, HttpRequestError

__all__ = ["Move", "absolute_position", "is_seq", "move", "plan"]

_SEQ_LIMIT = 1 << 54  # a larger number is a time
_POSITION = re.compile(r"earliest|latest|[0-9]+")


def absolute_position(text: str) -> str:
    """A position in the form that nsqd takes; a duration means that long ago. Raises
    ConfigError."""
    if _POSITION.fullmatch(text) or _is_time(text):
        return text
    try:
        ago_ns = parse_duration(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a position in the log: earliest, latest, a sequence number,"
            " a time such as 2026-11-15T08:00:00Z, or how long ago, such as 15m"
        ) from None
    return str(max(time.time_ns() - abs(ago_ns), _SEQ_LIMIT))


def is_seq(position: str) -> bool:
    """Whether this is a sequence number, which is valid on one node only."""
    return position.isdecimal() and int(position) < _SEQ_LIMIT


@dataclass(frozen=True, slots=True)
class Move:
    """A planned move of a channel on one node."""

    api: NsqdApi
    seq: int
    """Target sequence number."""
    ahead: int
    """Stored messages from `seq` on."""
    pending: int
    """Messages that the channel has not finished yet."""

    @property
    def again(self) -> int:
        """Finished messages that will be delivered again."""
        return max(self.ahead - self.pending, 0)

    @property
    def skipped(self) -> int:
        """Unfinished messages that will not be delivered."""
        return max(self.pending - self.ahead, 0)


async def plan(
    apis: Sequence[NsqdApi], stats: ClusterStats, topic: str, channel: str, position: str
) -> list[Move]:
    """Plans a move on every node that has the channel. Raises HttpRequestError if none has it, or
    if the position does not exist."""
    pending = _pending_counts(stats, topic, channel)
    moves = [
        _plan_node(api, topic, position, pending[api.address])
        for api in apis
        if api.address in pending
    ]
    if not moves:
        nodes = ", ".join(api.address for api in apis)
        raise HttpRequestError(nodes, f"there is no channel {channel} of {topic}")
    return await asyncio.gather(*moves)


async def move(moves: Sequence[Move], topic: str, channel: str) -> None:
    """Performs the moves in order. Raises HttpRequestError at the first that fails; the moves
    before it remain done."""
    for each in moves:
        await each.api.seek(topic, channel, each.seq)


async def _plan_node(api: NsqdApi, topic: str, position: str, pending: int) -> Move:
    seq = await api.seq_at(topic, position)
    log = await api.topic_log(topic)
    return Move(api, seq, log.count_from(seq), pending)


def _pending_counts(stats: ClusterStats, topic: str, channel: str) -> dict[str, int]:
    """Unfinished messages of the channel, by the node's address."""
    counts = {}
    for node in stats.nodes:
        for summary in node.topics:
            found = summary.maybe_channel(channel) if summary.topic_name == topic else None
            if found is not None:
                counts[node.address] = found.pending_count
    return counts


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text.upper()).tzinfo is not None
    except ValueError:
        return False
