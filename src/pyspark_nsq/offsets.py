"""Offsets of a query: the sequence number of the next message to read, by topic and log.

The JSON form, in checkpoints and in options, is
`{"orders": {"7c1f04b2a9de4f0c8b1a55d02e6f9310": 1794784543198232}}`: topic, log id, sequence
number. Earlier versions wrote the node id (`{"orders": {"617": 1794784543198232}}`), which
`NodeIdOffsets` converts. No Spark here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from penstock.common.errors import ConfigError

__all__ = [
    "EARLIEST",
    "LATEST",
    "AtTime",
    "JsonOffsets",
    "LogExtent",
    "LogKey",
    "NodeIdOffsets",
    "Offsets",
    "Position",
    "from_json",
    "to_json",
]

EARLIEST, LATEST = -2, -1
"""Special values in options, as in Spark's Kafka source."""

NODE_ID_MAX = 1023
SEQ_MAX = (1 << 54) - 1

_LOG_ID = re.compile("[0-9a-f]{32}")
_NODE_ID = re.compile("[0-9]{1,4}")
_SHORT_DIGITS = 8


class LogKey(NamedTuple):
    """Identifies the log of a topic on a node: by its log id or, in offsets that an earlier version
    has written, by the decimal id of the node."""

    topic: str
    log_id: str

    @property
    def is_node_id(self) -> bool:
        """Whether the key has a node id, which must be converted."""
        return len(self.log_id) <= 4

    @property
    def short_id(self) -> str:
        """The first digits of the log id, for display."""
        return self.log_id[:_SHORT_DIGITS]

    def __str__(self) -> str:
        kind = "node" if self.is_node_id else "log"
        return f"topic {self.topic}, {kind} {self.short_id}"


Offsets: TypeAlias = dict[LogKey, int]
JsonOffsets: TypeAlias = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message published at this time or later."""

    time_ns: int


Position: TypeAlias = int | AtTime | Offsets
"""EARLIEST, LATEST, a time, or offsets; EARLIEST for logs that the offsets do not contain."""


def to_json(offsets: Mapping[LogKey, int]) -> JsonOffsets:
    """Sorted, because Spark compares offsets as text."""
    nested: JsonOffsets = {}
    for (topic, log_id), seq in sorted(offsets.items()):
        nested.setdefault(topic, {})[log_id] = seq
    return nested


def from_json(nested: Any, *, lowest: int = 0) -> Offsets:
    """Raises ConfigError if `nested` is not a valid JSON form of offsets."""
    if not isinstance(nested, dict) or not all(isinstance(each, dict) for each in nested.values()):
        raise ConfigError(f'offsets must be {{"topic": {{"log id": number}}}}, not {nested!r}')
    offsets = {
        LogKey(topic, _log_id(text)): seq
        for topic, logs in nested.items()
        for text, seq in logs.items()
    }
    for key, seq in offsets.items():
        if not isinstance(seq, int) or not lowest <= seq <= SEQ_MAX:
            raise ConfigError(f"{seq!r} is not a valid offset of {key}")
    return offsets


def _log_id(text: str) -> str:
    if _LOG_ID.fullmatch(text):
        return text
    if not _NODE_ID.fullmatch(text) or int(text) > NODE_ID_MAX:
        raise ConfigError(
            f"{text!r} is not a log id (32 hex digits), nor a node id (0 to {NODE_ID_MAX}) of an"
            " earlier version"
        )
    return str(int(text))


# Conversion of node ids.


class LogExtent(NamedTuple):
    """Node and sequence numbers of a log. `base` is the URL of its nsqd."""

    base: str
    node_id: int
    first_seq: int
    next_seq: int


class NodeIdOffsets:
    """Replaces node ids in offsets by log ids.

    The log must have the node id and the topic. If several logs have them, or if nodes are
    unreachable, the log must also contain the sequence number or end at it. A result is final, so
    that the offsets of one batch are converted alike.
    """

    def __init__(self) -> None:
        self._found: dict[LogKey, LogKey] = {}

    def convert(
        self,
        offsets: Mapping[LogKey, int],
        extents: Mapping[LogKey, LogExtent],
        *,
        is_complete: bool,
    ) -> Offsets:
        """Convert the keys whose log is among `extents`; the others remain.

        `is_complete` says that all nodes have answered. Raises ConfigError if the log cannot be
        determined.
        """
        converted: Offsets = {}
        for key, seq in offsets.items():
            if key.is_node_id and key not in self._found:
                taken = {*offsets, *self._found.values()}
                found = _find_log(key, seq, extents, taken, is_complete=is_complete)
                if found is not None:
                    self._found[key] = found
            converted[self._found.get(key, key)] = seq
        return converted


def _find_log(
    key: LogKey,
    seq: int,
    extents: Mapping[LogKey, LogExtent],
    taken: set[LogKey],
    *,
    is_complete: bool,
) -> LogKey | None:
    logs = [
        other
        for other, extent in extents.items()
        if other.topic == key.topic and str(extent.node_id) == key.log_id and other not in taken
    ]
    having = [each for each in logs if extents[each].first_seq <= seq <= extents[each].next_seq]
    if len(having) == 1:
        return having[0]
    if len(logs) <= 1 or not is_complete:
        return logs[0] if logs and is_complete else None
    bases = " and ".join(sorted(extents[each].base for each in logs))
    raise ConfigError(
        f"{bases} both have node id {key.log_id}, and the offset {seq} of {key}, which an earlier"
        " version has written, does not show which of them was read: run the query once with the"
        " option nsqd=ADDRESS of the node that was read, then with all nodes"
    )
