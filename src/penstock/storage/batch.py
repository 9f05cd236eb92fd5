"""Format of a batch of messages in a segment, and scanning a segment for batches. Pure.

A batch is a header followed by the wire frames of its messages. All numbers are big-endian.

    offset  size  field
         0     4  magic
         4     4  header_crc    CRC-32C of the 48 bytes of the header that follow it
         8     1  version
         9     1  flags         none is defined: 0
        10     2  reserved      0
        12     4  message_count
        16     4  frames_size   bytes of frames after the header
        20     4  frames_crc    CRC-32C of the frames
        24     8  first_seq     of the first message; the others follow without a gap
        32     8  position      of this batch in its segment
        40     8  timestamp_ns  wall time of the append
        48     8  due_ns        wall time before which no message may be delivered; 0 is at once
        56        frames

The header has its own checksum, so that it can be trusted without the frames: a scan can skip the
frames, and an incomplete batch can be told from a damaged one. The header contains its own
position, so that a copy (for example a segment published as a message) is never mistaken for a
batch when recovery searches damaged bytes.

`scan_batches` accepts only bytes whose checksums match. After damaged bytes it continues at the
next valid batch, so a bad sector costs only the batches in it.
"""

import contextlib
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from google_crc32c import value as crc32c

from penstock.common.errors import CorruptBatchError
from penstock.storage.files import File
from penstock.storage.layout import Issue

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "SCAN_BYTES",
    "VERSION",
    "BadBytes",
    "BatchHeader",
    "ScanBuffer",
    "StoredBatch",
    "complete_batches",
    "decode_header",
    "encode_batch",
    "read_piece",
    "scan_batches",
    "split_frames",
    "verify_frames",
]

# The first byte is neither ASCII nor the start of a UTF-8 character, so no text contains it.
MAGIC = b"\x9ePSB"
VERSION = 1
_KIND = bytes([VERSION, 0, 0, 0])
HEADER_BYTES = 56

_CHECKED_AT = 8
_FIELDS = struct.Struct(
    ">"
    "4s"  # version, flags, reserved
    "I"  # message_count
    "I"  # frames_size
    "I"  # frames_crc
    "Q"  # first_seq
    "Q"  # position
    "Q"  # timestamp_ns
    "Q"  # due_ns
)
_START = struct.Struct(">4sI")
_pack_fields, _pack_start = _FIELDS.pack, _START.pack
_CRC = struct.Struct(">I")
_FRAME_SIZE = struct.Struct(">I")

# Maximum messages of a cached splitter, which takes 24 bytes per message. Caching pays because
# batches of the same shape repeat.
_CACHED_SPLITTER_MAX = 1024


class BatchHeader(NamedTuple):
    """Header of a batch."""

    position: int
    first_seq: int
    message_count: int
    frames_size: int
    frames_crc: int
    timestamp_ns: int
    due_ns: int

    @property
    def next_seq(self) -> int:
        """Sequence number after the last message."""
        return self.first_seq + self.message_count

    @property
    def frames_position(self) -> int:
        """Position of the frames in the segment."""
        return self.position + HEADER_BYTES

    @property
    def end(self) -> int:
        """Position of the next batch in the segment."""
        return self.position + HEADER_BYTES + self.frames_size


class StoredBatch(NamedTuple):
    """A batch read from a segment; its checksums match."""

    header: BatchHeader
    frames: bytes


def encode_batch(
    frames: bytes, count: int, first_seq: int, position: int, timestamp_ns: int, due_ns: int
) -> tuple[bytes, bytes, bytes]:
    """Return a batch in three parts that are to be written one after the other: the header in two
    parts, then `frames`."""
    fields = _pack_fields(
        _KIND, count, len(frames), crc32c(frames), first_seq, position, timestamp_ns, due_ns
    )
    return _pack_start(MAGIC, crc32c(fields)), fields, frames


def decode_header(data: bytes, at: int, position: int) -> BatchHeader:
    """Decode the header at `data[at]`, which is at `position` in its segment.

    Raises CorruptBatchError if the header is incomplete or damaged.
    """
    if not data.startswith(MAGIC, at):
        raise CorruptBatchError("no batch header")
    checked = data[at + _CHECKED_AT : at + HEADER_BYTES]
    if len(checked) < _FIELDS.size:
        raise CorruptBatchError("incomplete header")
    if crc32c(checked) != _CRC.unpack_from(data, at + 4)[0]:
        raise CorruptBatchError("the header does not match its checksum")
    kind, count, size, crc, seq, stored_position, timestamp, due = _FIELDS.unpack(checked)
    if not kind.startswith(_KIND[:2]):
        raise CorruptBatchError(f"unsupported batch: version {kind[0]}, flags {kind[1]}")
    if stored_position != position:
        raise CorruptBatchError(f"the batch belongs at byte {stored_position}")
    return BatchHeader(position, seq, count, size, crc, timestamp, due)


def verify_frames(batch: BatchHeader, frames: bytes) -> None:
    """Raise CorruptBatchError if size or checksum of the frames do not match the header."""
    if len(frames) != batch.frames_size:
        raise CorruptBatchError("incomplete batch")
    if crc32c(frames) != batch.frames_crc:
        raise CorruptBatchError("the frames do not match their checksum")


def complete_batches(data: bytes, position: int) -> Iterator[StoredBatch]:
    """Yield the complete batches in `data`, which starts at `position` of a segment.

    Raises CorruptBatchError at a damaged batch.
    """
    at, size = 0, len(data)
    while at + HEADER_BYTES <= size:
        batch = decode_header(data, at, position + at)
        end = at + HEADER_BYTES + batch.frames_size
        if end > size:
            return
        frames = data[at + HEADER_BYTES : end]
        verify_frames(batch, frames)
        yield StoredBatch(batch, frames)
        at = end


def read_piece(file: File, position: int, end: int, max_bytes: int) -> bytes:
    """Read about `max_bytes` of a segment from `position` on, but at least one complete batch.

    Raises CorruptBatchError if the first batch is damaged.
    """
    piece = file.read(position, min(max(max_bytes, HEADER_BYTES), end - position))
    batch = decode_header(piece, 0, position)
    if batch.end > position + len(piece):
        piece = file.read(position, batch.end - position)
        verify_frames(batch, piece[HEADER_BYTES:])
    return piece


def split_frames(batch: BatchHeader, frames: bytes) -> list[bytes]:
    """Split the frames of a batch, one per message."""
    count, total = batch.message_count, len(frames)
    prefix = frames[:4]
    size = 4 + int.from_bytes(prefix)
    if count == 1 and size == total:
        return [frames]
    # Messages of equal size are common. Splitting them with one call takes a fifth of the time.
    if size * count == total and all(
        frames[offset::size] == prefix[offset : offset + 1] * count for offset in range(4)
    ):
        splitter = _cached_frame_splitter if count <= _CACHED_SPLITTER_MAX else _frame_splitter
        return list(splitter(size, count).unpack(frames))
    return _split_unequal_frames(count, frames)


def _frame_splitter(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


_cached_frame_splitter = lru_cache(maxsize=16)(_frame_splitter)


def _split_unequal_frames(count: int, frames: bytes) -> list[bytes]:
    split = []
    frame_size = _FRAME_SIZE.unpack_from
    at, total = 0, len(frames)
    while at + 4 <= total:
        end = at + 4 + frame_size(frames, at)[0]
        split.append(frames[at:end])
        at = end
    if at != total or len(split) != count:
        raise CorruptBatchError(f"the batch does not contain {count} complete frames")
    return split


# Bytes per read: large enough that reading costs little compared with the checksums.
SCAN_BYTES = 1024 * 1024

_TORN = "incomplete batch"


class BadBytes(NamedTuple):
    """A part of a segment that is not a valid batch.

    `is_leftover` means that a failed or interrupted write left these bytes, so that they were never
    acknowledged. `batch` is the header, if it is valid.
    """

    position: int
    end: int
    reason: str
    is_leftover: bool
    batch: BatchHeader | None

    @classmethod
    def from_batch(cls, batch: BatchHeader, reason: str, *, is_leftover: bool) -> "BadBytes":
        """Reject a batch whose checksums match."""
        return cls(batch.position, batch.end, reason, is_leftover, batch)

    def to_issue(self, path: str) -> Issue:
        """Describe these bytes as an issue of the segment at `path`."""
        return Issue(
            path,
            self.reason,
            is_damage=not self.is_leftover,
            first_byte=self.position,
            end_byte=self.end,
            first_seq=self.batch.first_seq if self.batch else None,
            end_seq=self.batch.next_seq if self.batch else None,
        )


class ScanBuffer:
    """Reads a file up to `end` in large pieces."""

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._data = b""
        self._start = 0
        self.end = end

    def read(self, position: int, size: int) -> bytes:
        """Read `size` bytes from `position` on; fewer only at the end."""
        size = min(size, self.end - position)
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            self._data = self._file.read(position, max(size, min(SCAN_BYTES, self.end - position)))
            self._start, at = position, 0
        return self._data[at : at + size]

    def read_header(self, position: int) -> BatchHeader:
        """Read the header at `position`. Raises CorruptBatchError if it is not valid."""
        return decode_header(self.read(position, HEADER_BYTES), 0, position)

    def read_frames(self, batch: BatchHeader) -> bytes:
        """Read and verify the frames of a batch. Raises CorruptBatchError."""
        frames = self.read(batch.frames_position, batch.frames_size)
        verify_frames(batch, frames)
        return frames


def scan_batches(file: File, position: int, end: int) -> Iterator[StoredBatch | BadBytes]:
    """Yield every batch between two positions, and every part that is not a batch, in order."""
    buffer = ScanBuffer(file, end)
    while position < end:
        # Fast path: all complete, valid batches of one read.
        with contextlib.suppress(CorruptBatchError):
            for found in complete_batches(buffer.read(position, SCAN_BYTES), position):
                yield found
                position = found.header.end
        if position < end:
            scanned = _scan_one(buffer, position)
            yield scanned
            position = scanned.end if isinstance(scanned, BadBytes) else scanned.header.end


def _scan_one(buffer: ScanBuffer, position: int) -> StoredBatch | BadBytes:
    batch = None
    try:
        batch = buffer.read_header(position)
        return StoredBatch(batch, buffer.read_frames(batch))
    except CorruptBatchError as error:
        reason = str(error)
    if batch is None:
        end = _next_header(buffer, position)
        is_leftover = end == buffer.end and _is_unwritten(buffer, position)
    else:
        # The header is valid, so the end of the batch is known.
        end = min(batch.end, buffer.end)
        is_leftover = batch.end > buffer.end
    return BadBytes(position, end, _TORN if is_leftover else reason, is_leftover, batch)


def _is_unwritten(buffer: ScanBuffer, position: int) -> bool:
    """Whether the rest of the file is the start of a header, or preallocated space."""
    rest = buffer.read(position, HEADER_BYTES)
    if len(rest) < HEADER_BYTES and rest[:4] == MAGIC[: len(rest)]:
        return True
    while piece := buffer.read(position, SCAN_BYTES):
        if piece.strip(b"\0"):
            return False
        position += len(piece)
    return True


def _next_header(buffer: ScanBuffer, position: int) -> int:
    """Position of the next valid header after `position`, or the end."""
    position += 1
    while position < buffer.end:
        piece = buffer.read(position, SCAN_BYTES)
        if not piece:
            break
        at = piece.find(MAGIC)
        while at >= 0:
            if _is_header(buffer, position + at):
                return position + at
            at = piece.find(MAGIC, at + 1)
        # The magic may begin in this piece and end in the next one.
        position += max(1, len(piece) - len(MAGIC) + 1)
    return buffer.end


def _is_header(buffer: ScanBuffer, position: int) -> bool:
    try:
        buffer.read_header(position)
    except CorruptBatchError:
        return False
    return True
