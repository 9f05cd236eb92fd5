"""How far a query has read: for each topic and node, the number of the next message.

Numbers are those of the next message to read, everywhere. As JSON, in checkpoints and in the
options, `{"orders": {"617": 1794784543198232}}`: topic, node id, sequence number. Knows no Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from penstock.common.errors import ConfigError

__all__ = [
    "EARLIEST",
    "LATEST",
    "AtTime",
    "JsonOffsets",
    "Offsets",
    "Position",
    "TopicNode",
    "from_json",
    "to_json",
]

EARLIEST, LATEST = -2, -1
"""Instead of a number, in the options only: as in Spark's Kafka source."""

NODE_ID_MAX = 1023
SEQ_MAX = (1 << 54) - 1


class TopicNode(NamedTuple):
    """What one node has of a topic: a log."""

    topic: str
    node: int


Offsets: TypeAlias = dict[TopicNode, int]
JsonOffsets: TypeAlias = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message that was published at this time or later."""

    time_ns: int


Position: TypeAlias = int | AtTime | Offsets
"""EARLIEST, LATEST, a time, or a number for each node; nodes without one are at the earliest."""


def to_json(offsets: Mapping[TopicNode, int]) -> JsonOffsets:
    """In one order for equal offsets: Spark compares their text."""
    nested: JsonOffsets = {}
    for (topic, node), seq in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(node)] = seq
    return nested


def from_json(nested: Any, *, lowest: int = 0) -> Offsets:
    """Raises ConfigError if these are no offsets."""
    if not isinstance(nested, dict) or not all(isinstance(each, dict) for each in nested.values()):
        raise ConfigError(f'offsets are {{"topic": {{"node id": number}}}}, not {nested!r}')
    offsets = {
        TopicNode(topic, _node_id(node)): seq
        for topic, nodes in nested.items()
        for node, seq in nodes.items()
    }
    for (topic, node), seq in offsets.items():
        if not isinstance(seq, int) or not lowest <= seq <= SEQ_MAX:
            raise ConfigError(f"{seq!r} is no offset of topic {topic} at node {node}")
    return offsets


def _node_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > NODE_ID_MAX:
        raise ConfigError(f"{text!r} is no node id (0 to {NODE_ID_MAX})")
    return int(text)
