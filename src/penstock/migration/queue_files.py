"""Queue files of NSQ's nsqd: their names, their format, and a reader that skips damaged records.

    orders.diskqueue.meta.dat              depth, read position and write position of the topic
    orders.diskqueue.000000.dat            messages, as a sequence of records
    orders:billing.diskqueue.000007.dat    messages of a channel; on Windows with ; for :
    orders.diskqueue.000003.dat.bad        a file that nsqd could not read completely

The meta file is text of three lines: the depth; file and byte of the read position; file and byte
of the write position. Files before the write position are complete. A record has big-endian numbers
and an id of 16 hex digits:

    [int32 size of what follows][int64 timestamp, ns][uint16 attempts][16 bytes id][body]

`attempts` is the number of deliveries so far.

A record has no checksum, and only the end of the previous record marks its start. NSQ's nsqd
abandons the rest of a file at an impossible size. `RecordReader` searches for the next record that
is followed by another one or by the end of the file, so that damage to one record loses only that
one. It holds one chunk of the file in memory, or one record if that is larger.
"""

import re
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from penstock.common import names
from penstock.storage.files import File

__all__ = [
    "BAD_SUFFIX",
    "HEADER_BYTES",
    "Meta",
    "QueueFile",
    "QueueName",
    "QueuePosition",
    "QueueRecord",
    "RecordReader",
    "parse_file_name",
    "parse_meta",
    "parse_record",
    "parse_record_size",
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
    """The queue of a channel, or of a topic if `channel` is None."""

    topic: str
    channel: str | None

    def __str__(self) -> str:
        return self.topic if self.channel is None else f"{self.topic}:{self.channel}"


class QueueFile(NamedTuple):
    """A parsed file name. `number` is None for the meta file."""

    queue: QueueName
    number: int | None
    is_bad: bool


class QueuePosition(NamedTuple):
    """A position in a queue."""

    file: int
    byte: int


class Meta(NamedTuple):
    """Content of the meta file, which after a crash is older than the queue files."""

    depth: int
    read: QueuePosition
    write: QueuePosition


class QueueRecord(NamedTuple):
    """A stored message."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def parse_file_name(name: str) -> QueueFile | None:
    """Parse a file name; None if it is not a queue file."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    queue = QueueName(match["topic"], match["channel"])
    if not all(names.is_valid(part) for part in queue if part is not None):
        return None
    number = None if match["number"] == "meta" else int(match["number"])
    return QueueFile(queue, number, is_bad=bool(match["bad"]))


def parse_meta(content: bytes) -> Meta | None:
    """Parse a meta file; None if it is incomplete."""
    match = _META.fullmatch(content.decode("ascii", "replace"))
    if match is None:
        return None
    depth, read_file, read_byte, write_file, write_byte = map(int, match.groups())
    return Meta(depth, QueuePosition(read_file, read_byte), QueuePosition(write_file, write_byte))


def parse_record_size(header: bytes) -> int | None:
    """Size of the record with this header; None if the header is invalid. Valid are a size with
    room for a header, and an id of 16 hex digits, which arbitrary bytes hardly ever are."""
    if len(header) < HEADER_BYTES or header[14:].strip(_HEX_DIGITS):
        return None
    size = int.from_bytes(header[:_SIZE_BYTES], signed=True)
    return _SIZE_BYTES + size if _SIZE_BYTES + size >= HEADER_BYTES else None


def parse_record(data: bytes) -> QueueRecord:
    """Parse a record whose header was checked."""
    _, timestamp_ns, attempts, id = _HEADER.unpack_from(data)
    return QueueRecord(timestamp_ns, attempts, id, data[HEADER_BYTES:])


# Reading ------------------------------------------------------------------------------------------

# Small, because one file per channel is open at a time, for up to thousands of channels.
CHUNK_BYTES = 64 * 1024

# Lookahead, to find overlapping matches.
_ID = re.compile(rb"(?=[0-9a-f]{16})")
_ID_AT = 14
_ID_BYTES = 16


class RecordReader:
    """Reads the records of an open file."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._end = file.size()
        self._chunk = b""
        self._chunk_at = 0

    def records(
        self, start: int, on_damage: Callable[[int, int], None]
    ) -> Iterator[tuple[int, QueueRecord]]:
        """(position, record) of every record from `start` on. `on_damage(first, end)` is called, in
        order, for each range of bytes that is not a record. Raises OSError."""
        position, end = start, self._maybe_end(start)
        while position < self._end:
            following = None if end is None else self._maybe_end(end)
            if end is not None and (following is not None or end == self._end):
                yield position, self._record(position, end)
                position, end = end, following
                continue
            resumed = self._find_next_record(position + (1 if end is None else HEADER_BYTES))
            if end is not None and self._has_plausible_end(end, resumed):
                yield position, self._record(position, end)
                position = end
            on_damage(position, resumed)
            position, end = resumed, self._maybe_end(resumed)

    def bytes_between(self, first: int, end: int) -> Iterator[bytes]:
        """The bytes of a range, in chunks."""
        for at in range(first, end, CHUNK_BYTES):
            yield self._file.read(at, min(CHUNK_BYTES, end - at))

    def _record(self, position: int, end: int) -> QueueRecord:
        return parse_record(self._bytes(position, end - position))

    def _maybe_end(self, position: int) -> int | None:
        """End of the record at `position`; None if there is no complete record."""
        size = parse_record_size(self._bytes(position, HEADER_BYTES))
        return None if size is None or position + size > self._end else position + size

    def _has_plausible_end(self, end: int, resumed: int) -> bool:
        """Whether the size of a record is credible although no record follows until `resumed`. It
        is not if `resumed` is before `end`, or too close to it for a damaged record."""
        return end <= resumed and (resumed - end >= HEADER_BYTES or resumed == self._end)

    def _is_valid(self, position: int) -> bool:
        end = self._maybe_end(position)
        return end is not None and (end == self._end or self._maybe_end(end) is not None)

    def _find_next_record(self, position: int) -> int:
        """Position of the next valid record, or the end of the file."""
        while position + HEADER_BYTES <= self._end:
            window = self._file.read(position, CHUNK_BYTES)
            for match in _ID.finditer(window, _ID_AT):
                if self._is_valid(candidate := position + match.start() - _ID_AT):
                    return candidate
            # The last bytes may be the start of an id.
            position += max(len(window) - _ID_AT - _ID_BYTES + 1, 1)
        return self._end

    def _bytes(self, position: int, size: int) -> bytes:
        at = position - self._chunk_at
        if at < 0 or at + size > len(self._chunk):
            self._chunk = self._file.read(position, max(size, CHUNK_BYTES))
            self._chunk_at, at = position, 0
        return self._chunk[at : at + size]
