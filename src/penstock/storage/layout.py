"""Names of the files in a data path, and issues found in them. Pure.

    DATA_PATH/
      penstock.format                      format version, node id, end of the last run
      nsqd.dat                             settings of topics and channels
      topics/
        orders/                            the folder of the topic `orders`
          00001763240000000000.log         a segment, named after its first sequence number
          00001763240000000000.index       index of the segment: a cache
          00001763240000000000.log.bad     damaged bytes that recovery took out of the segment
          00001763240000000000.log.cut     bytes of a replaced leader that were never acknowledged
          cursors.7                        the journal of the channels, seventh generation
          cursors.bad                      damaged bytes of the journal
        orders~removed-1/                  a deleted topic, until its files are removed
      importing/                           an import in progress, to become part of this data path
      shard-1/                             the data path of another nsqd of this machine

A name with `.new` added is an unfinished file; the next start removes it.
"""

import re
from dataclasses import dataclass

from penstock.common import names

__all__ = [
    "BAD_SUFFIX",
    "CURSORS_BAD_NAME",
    "CUT_SUFFIX",
    "FORMAT_NAME",
    "IMPORTING_NAME",
    "LOG_ID_BYTES",
    "METADATA_NAME",
    "NEW_SUFFIX",
    "TOPICS_NAME",
    "Issue",
    "cursors_name",
    "index_name",
    "is_nsq_queue_file",
    "is_topic_file",
    "maybe_generation",
    "maybe_index_seq",
    "maybe_removal_number",
    "maybe_segment_seq",
    "maybe_shard",
    "removed_name",
    "segment_name",
    "shard_name",
]

FORMAT_NAME = "penstock.format"
TOPICS_NAME = "topics"
METADATA_NAME = "nsqd.dat"
IMPORTING_NAME = "importing"
CURSORS_BAD_NAME = "cursors.bad"
BAD_SUFFIX = ".bad"
CUT_SUFFIX = ".cut"
NEW_SUFFIX = ".new"

# Each log has a random id of 128 bits. As text it has 32 hex digits.
LOG_ID_BYTES = 16


_SEGMENT = re.compile(r"(\d{20})\.log", re.ASCII)
_INDEX = re.compile(r"(\d{20})\.index", re.ASCII)
_SHARD = re.compile(r"shard-([1-9]\d{0,3})", re.ASCII)
# No topic's file name contains a tilde.
_REMOVED = re.compile(r"(.+)~removed-(\d+)", re.ASCII)
_CURSORS = re.compile(r"cursors\.([1-9]\d*)", re.ASCII)
_IN_TOPIC = re.compile(
    r"\d{20}\.(log|index)(\.new)?|\d{20}\.log\.(bad|cut)|cursors\.([1-9]\d*(\.new)?|bad)",
    re.ASCII,
)
_NSQD_QUEUE = re.compile(r".*\.diskqueue\..*\.dat(\..*)?", re.DOTALL)


def segment_name(first_seq: int) -> str:
    """Zero-padded, so that a sorted listing is in the order of the sequence numbers."""
    return f"{first_seq:020}.log"


def index_name(first_seq: int) -> str:
    return f"{first_seq:020}.index"


def maybe_segment_seq(name: str) -> int | None:
    """The first sequence number of a segment by its file name; None for other names."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def maybe_index_seq(name: str) -> int | None:
    """The first sequence number of the segment of an index file; None for other names."""
    match = _INDEX.fullmatch(name)
    return int(match[1]) if match else None


def cursors_name(generation: int) -> str:
    return f"cursors.{generation}"


def maybe_generation(name: str) -> int | None:
    """The generation of a cursor journal by its file name; None for other names."""
    match = _CURSORS.fullmatch(name)
    return int(match[1]) if match else None


def is_topic_file(name: str) -> bool:
    """Whether Penstock writes files of this name into the folder of a topic."""
    return _IN_TOPIC.fullmatch(name) is not None


def is_nsq_queue_file(name: str) -> bool:
    """Whether a file in the data path is a disk queue of NSQ's nsqd."""
    return _NSQD_QUEUE.fullmatch(name) is not None


def shard_name(number: int) -> str:
    """Folder of a shard. Shard 0 has none: it uses the data path itself."""
    return f"shard-{number}"


def maybe_shard(name: str) -> int | None:
    """The number of a shard by the name of its folder; None for other names."""
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match else None


def removed_name(folder: str, number: int) -> str:
    """Name of a topic's folder during its removal. The number makes it unique, because the topic
    may be created and deleted again before the first folder is removed."""
    return f"{folder}~removed-{number}"


def maybe_removal_number(folder: str) -> int | None:
    """The number in the name of a folder made by `removed_name`; None for other folders."""
    match = _REMOVED.fullmatch(folder)
    return int(match[2]) if match and names.name_of_file(match[1]) is not None else None


@dataclass(frozen=True, slots=True)
class Issue:
    """A problem that a check or the recovery found in a data path; `str` returns one line.

    `is_damage` is False for leftovers of an ordinary crash. Damage may have cost acknowledged
    messages. Bytes are positions in the file, sequence numbers those of the affected messages, both
    `[first, end)`; None if unknown or not applicable.
    """

    path: str
    problem: str
    is_damage: bool
    first_byte: int | None = None
    end_byte: int | None = None
    first_seq: int | None = None
    end_seq: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}{self._where()}"

    def _where(self) -> str:
        parts = []
        if self.first_byte is not None and self.end_byte is not None:
            parts.append(f"bytes {self.first_byte} to {self.end_byte - 1}")
        if self.first_seq is not None and self.first_seq == self.end_seq:
            pass  # no message is affected
        elif self.first_seq is not None and self.end_seq is not None:
            parts.append(f"messages {self.first_seq} to {self.end_seq - 1}")
        elif self.first_seq is not None:
            parts.append(f"messages {self.first_seq} and on")
        return f" ({', '.join(parts)})" if parts else ""
