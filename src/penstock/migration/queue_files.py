"""The files that NSQ's own nsqd keeps its queues in: their names, and what is in them. Pure.

    orders.diskqueue.meta.dat              how many messages wait in the topic, from where to where
    orders.diskqueue.000000.dat            the messages, one record after the other
    orders:billing.diskqueue.000007.dat    those of a channel; on Windows with a ; for the :
    orders.diskqueue.000003.dat.bad        a file that nsqd could not read to its end, and left

The meta file is text, of three lines: the depth; file and byte where reading goes on; file and byte
where writing goes on. A file below the one that is written to has been written to its end. A record
is as follows, its numbers big-endian, and the id 16 hex digits:

    [int32 size of what follows][int64 timestamp, ns][uint16 attempts][16 bytes id][body]

`attempts` is how often the message has been delivered: 0 if never.
"""

import re
from struct import Struct
from typing import NamedTuple

from penstock.common import names

__all__ = [
    "BAD_SUFFIX",
    "HEADER_BYTES",
    "Meta",
    "QueueFile",
    "QueueName",
    "Record",
    "Spot",
    "maybe_meta",
    "maybe_queue_file",
    "maybe_record_bytes",
    "parse_record",
]

BAD_SUFFIX = ".bad"

_FILE_NAME = re.compile(
    r"(?P<topic>[.a-zA-Z0-9_-]+(?:#ephemeral)?)"
    r"(?:[:;](?P<channel>[.a-zA-Z0-9_-]+))?"
    r"\.diskqueue\.(?P<number>\d{6,}|meta)\.dat(?P<bad>\.bad)?",
    re.ASCII,
)
_META = re.compile(r"(-?\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n?", re.ASCII)

_HEADER = Struct(
    ">"
    "i"  # size of what follows
    "q"  # timestamp, ns
    "H"  # attempts
    "16s"  # id
)
HEADER_BYTES = _HEADER.size
_SIZE_BYTES = 4
_HEX_DIGITS = b"0123456789abcdef"


class QueueName(NamedTuple):
    """Whose messages a queue has: a channel's or, without one, those that wait in the topic."""

    topic: str
    channel: str | None

    def __str__(self) -> str:
        return self.topic if self.channel is None else f"{self.topic}:{self.channel}"


class QueueFile(NamedTuple):
    """What a file's name says. Without a number it is the meta file."""

    queue: QueueName
    number: int | None
    is_bad: bool


class Spot(NamedTuple):
    """A place in a queue."""

    file: int
    byte: int


class Meta(NamedTuple):
    """What the meta file says. After a crash it is older than the rest."""

    depth: int
    read: Spot
    write: Spot


class Record(NamedTuple):
    """A message."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def maybe_queue_file(name: str) -> QueueFile | None:
    """What the name of a file says, if it is one of a queue's."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    queue = QueueName(match["topic"], match["channel"])
    if not all(names.is_valid(part) for part in queue if part is not None):
        return None
    number = None if match["number"] == "meta" else int(match["number"])
    return QueueFile(queue, number, is_bad=bool(match["bad"]))


def maybe_meta(content: bytes) -> Meta | None:
    """What a meta file says, if it is whole."""
    match = _META.fullmatch(content.decode("ascii", "replace"))
    if match is None:
        return None
    depth, read_file, read_byte, write_file, write_byte = map(int, match.groups())
    return Meta(depth, Spot(read_file, read_byte), Spot(write_file, write_byte))


def maybe_record_bytes(header: bytes) -> int | None:
    """How many bytes the record takes that begins like this, if one does: its size must have room
    for a header, and its id must be an id, which 16 arbitrary bytes hardly ever are."""
    if len(header) < HEADER_BYTES or header[14:].strip(_HEX_DIGITS):
        return None
    size = int.from_bytes(header[:_SIZE_BYTES], signed=True)
    return _SIZE_BYTES + size if _SIZE_BYTES + size >= HEADER_BYTES else None


def parse_record(data: bytes) -> Record:
    """The message of a record whose header has been looked at."""
    _, timestamp_ns, attempts, id = _HEADER.unpack_from(data)
    return Record(timestamp_ns, attempts, id, data[HEADER_BYTES:])
