"""Positions in a topic's log, and moving a channel to one.

A channel has a cursor on every node that has it. All nodes are asked before any cursor is moved. A
position with a log id, such as `9f86d081:1794784543198232`, belongs to one node: only the cursor on
that node is moved.
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

__all__ = [
    "Move",
    "absolute_position",
    "format_position",
    "is_seq",
    "move",
    "plan",
    "select_apis",
    "split_position",
]

_SEQ_LIMIT = 1 << 54  # a larger number is a time
_POSITION = re.compile(r"earliest|latest|([0-9a-f]{8,32}:)?[0-9]+")
_SHORT_LOG_ID_DIGITS = 8


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
            " one with a log id such as 9f86d081:1794784543198232, a time such as"
            " 2026-11-15T08:00:00Z, or how long ago, such as 15m"
        ) from None
    return str(max(time.time_ns() - abs(ago_ns), _SEQ_LIMIT))


def is_seq(position: str) -> bool:
    """Whether this is a sequence number without a log id, which is valid on one node only."""
    return position.isdecimal() and int(position) < _SEQ_LIMIT


def format_position(log_id: str, seq: int) -> str:
    """The position of a message for display, with the first digits of the log's id. An nsqd of
    another version may not have sent the id; then it is missing."""
    return f"{log_id[:_SHORT_LOG_ID_DIGITS]}:{seq}" if log_id else str(seq)


def split_position(position: str) -> tuple[str, str]:
    """The log id, which is empty if the position has none, and the rest of the position."""
    if ":" in position and _POSITION.fullmatch(position):
        log_id, _, seq = position.partition(":")
        return log_id, seq
    return "", position


async def select_apis(apis: Sequence[NsqdApi], topic: str, *positions: str) -> list[NsqdApi]:
    """The nodes to which positions apply: the node with the log that one of them names, otherwise
    all nodes. Raises HttpRequestError if no node has that log."""
    log_ids = {log_id for each in positions if (log_id := split_position(each)[0])}
    if not log_ids or len(apis) == 1:
        return list(apis)  # A single node checks the position itself.
    logs = await asyncio.gather(*(api.topic_log(topic) for api in apis))
    selected = [
        api
        for api, log in zip(apis, logs, strict=True)
        if all(log.log_id.startswith(log_id) for log_id in log_ids)
    ]
    if not selected:
        nodes = ", ".join(api.address for api in apis)
        raise HttpRequestError(nodes, f"there is no log {' and '.join(log_ids)} of {topic}")
    return selected


@dataclass(frozen=True, slots=True)
class Move:
    """A planned move of a channel on one node."""

    api: NsqdApi
    log_id: str
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
    """Plans a move on every node that has the channel and the log of the position. Raises
    HttpRequestError if there is none, or if the position does not exist."""
    pending = _pending_counts(stats, topic, channel)
    selected = [api for api in apis if api.address in pending]
    if not selected:
        nodes = ", ".join(api.address for api in apis)
        raise HttpRequestError(nodes, f"there is no channel {channel} of {topic}")
    selected = await select_apis(selected, topic, position)
    return await asyncio.gather(
        *(_plan_node(api, topic, position, pending[api.address]) for api in selected)
    )


async def move(moves: Sequence[Move], topic: str, channel: str) -> None:
    """Performs the moves in order. Raises HttpRequestError at the first that fails; the moves
    before it remain done."""
    for each in moves:
        position = f"{each.log_id}:{each.seq}" if each.log_id else str(each.seq)
        await each.api.seek(topic, channel, position)


async def _plan_node(api: NsqdApi, topic: str, position: str, pending: int) -> Move:
    seq = await api.seq_at(topic, position)
    log = await api.topic_log(topic)
    return Move(api, log.log_id, seq, log.count_from(seq), pending)


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
