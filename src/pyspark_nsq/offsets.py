"""Offsets of a query: the sequence number of the next message to read, by topic and node.

The JSON form, in checkpoints and in options, is `{"orders": {"617": 1794784543198232}}`: topic,
node id, sequence number. No Spark here.
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
"""Special values in options, as in Spark's Kafka source."""

NODE_ID_MAX = 1023
SEQ_MAX = (1 << 54) - 1


class TopicNode(NamedTuple):
    """Identifies a log: each node has one for each topic."""

    topic: str
    node: int


Offsets: TypeAlias = dict[TopicNode, int]
JsonOffsets: TypeAlias = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message published at this time or later."""

    time_ns: int


Position: TypeAlias = int | AtTime | Offsets
"""EARLIEST, LATEST, a time, or offsets; EARLIEST for logs that the offsets do not contain."""


def to_json(offsets: Mapping[TopicNode, int]) -> JsonOffsets:
    """Sorted, because Spark compares offsets as text."""
    nested: JsonOffsets = {}
    for (topic, node), seq in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(node)] = seq
    return nested


def from_json(nested: Any, *, lowest: int = 0) -> Offsets:
    """Raises ConfigError if `nested` is not a valid JSON form of offsets."""
    if not isinstance(nested, dict) or not all(isinstance(each, dict) for each in nested.values()):
        raise ConfigError(f'offsets must be {{"topic": {{"node id": number}}}}, not {nested!r}')
    offsets = {
        TopicNode(topic, _node_id(node)): seq
        for topic, nodes in nested.items()
        for node, seq in nodes.items()
    }
    for (topic, node), seq in offsets.items():
        if not isinstance(seq, int) or not lowest <= seq <= SEQ_MAX:
            raise ConfigError(f"{seq!r} is not a valid offset of topic {topic} at node {node}")
    return offsets


def _node_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > NODE_ID_MAX:
        raise ConfigError(f"{text!r} is not a node id (0 to {NODE_ID_MAX})")
    return int(text)
