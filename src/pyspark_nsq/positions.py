"""From what a user calls a place (earliest, a time, ...) to the number of a message in a log."""

from collections.abc import Mapping

from pyspark_nsq.nodes import Found, Nodes
from pyspark_nsq.offsets import EARLIEST, LATEST, Offsets, TopicNode
from pyspark_nsq.options import AtTime, Position

__all__ = ["place_all"]

# A smaller number would be that of a message, not a time. It is in July 1970.
TIME_NS_MIN = 1 << 54


def place_all(nodes: Nodes, logs: Mapping[TopicNode, Found], position: Position) -> Offsets:
    """Where a position is in each of these logs. Raises HttpRequestError."""
    return {key: _place(nodes, key, found, position) for key, found in logs.items()}


def _place(nodes: Nodes, key: TopicNode, found: Found, position: Position) -> int:
    if isinstance(position, AtTime):
        history = nodes.history(found.base, key.topic)
        return history.seq_at_time(max(position.time_ns, TIME_NS_MIN))
    number = position if isinstance(position, int) else position.get(key, EARLIEST)
    return {EARLIEST: found.log.first_seq, LATEST: found.log.next_seq}.get(number, number)
