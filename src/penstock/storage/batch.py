"""How a batch of messages is laid out in a segment. Pure: bytes in, bytes out.

A batch is a header and then the wire frames of its messages, one after the other, as they are.
All numbers are big-endian.

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

The header has a checksum of its own so that it can be trusted before the frames are there: walking
a segment need not read them, and a batch that was cut short is told from one that is damaged. It
says its own position so that a copy, say a segment that somebody published as a message, is never
taken for a batch when recovery searches damaged bytes.

`walk` scans a segment file batch by batch. It accepts only bytes whose checksums match. After
damaged bytes it continues at the next valid batch, so a bad sector costs only the batches in it.
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
    "Batch",
    "ScanBuffer",
    "StoredBatch",
    "complete_batches",
    "decode_header",
    "encode_batch",
    "scan_batches",
    "split_frames",
    "verify_frames",
]

# Its first byte is no ASCII and starts no UTF-8 character, so that text does not contain it.
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

# What cuts so many messages of one size takes 24 bytes for each of them, and batches of a shape
# that came before come again.
_KEPT_CUTTER_MAX = 1024


class Batch(NamedTuple):
    """What a batch's header says."""

    position: int
    first_seq: int
    message_count: int
    frames_size: int
    frames_crc: int
    timestamp_ns: int
    due_ns: int

    @property
    def next_seq(self) -> int:
        """The number after that of the last message."""
        return self.first_seq + self.message_count

    @property
    def frames_position(self) -> int:
        """Where in the segment the frames begin."""
        return self.position + HEADER_BYTES

    @property
    def end(self) -> int:
        """Where in the segment the next batch begins."""
        return self.position + HEADER_BYTES + self.frames_size


class StoredBatch(NamedTuple):
    """A batch, verified."""

    batch: Batch
    frames: bytes


def encode_batch(
    frames: bytes, count: int, first_seq: int, position: int, timestamp_ns: int, due_ns: int
) -> tuple[bytes, bytes, bytes]:
    """What is to be written one after the other: a header in two parts, and `frames`."""
    fields = _pack_fields(
        _KIND, count, len(frames), crc32c(frames), first_seq, position, timestamp_ns, due_ns
    )
    return _pack_start(MAGIC, crc32c(fields)), fields, frames


def decode_header(data: bytes, at: int, position: int) -> Batch:
    """The header that begins at `data[at]` and at `position` in its segment.

    Raises CorruptBatchError if that is not a whole, undamaged header.
    """
    if not data.startswith(MAGIC, at):
        raise CorruptBatchError("no batch begins here")
    checked = data[at + _CHECKED_AT : at + HEADER_BYTES]
    if len(checked) < _FIELDS.size:
        raise CorruptBatchError("the header is cut short")
    if crc32c(checked) != _CRC.unpack_from(data, at + 4)[0]:
        raise CorruptBatchError("the header does not match its checksum")
    kind, count, size, crc, seq, said_position, timestamp, due = _FIELDS.unpack(checked)
    if not kind.startswith(_KIND[:2]):
        raise CorruptBatchError(
            f"the batch is of an unknown kind: version {kind[0]}, flags {kind[1]}"
        )
    if said_position != position:
        raise CorruptBatchError(f"the batch belongs at byte {said_position}")
    return Batch(position, seq, count, size, crc, timestamp, due)


def verify_frames(batch: Batch, frames: bytes) -> None:
    """Raises CorruptBatchError unless these are the bytes that the batch was written with."""
    if len(frames) != batch.frames_size:
        raise CorruptBatchError("the batch is cut short")
    if crc32c(frames) != batch.frames_crc:
        raise CorruptBatchError("the frames do not match their checksum")


def complete_batches(data: bytes, position: int) -> Iterator[StoredBatch]:
    """The batches that `data`, from `position` of a segment, holds whole.

    Raises CorruptBatchError where one is damaged.
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


def split_frames(batch: Batch, frames: bytes) -> list[bytes]:
    """The frames of the batch's messages, one by one."""
    count, total = batch.message_count, len(frames)
    prefix = frames[:4]
    size = 4 + int.from_bytes(prefix)
    if count == 1 and size == total:
        return [frames]
    # Messages of one size are common, and cut by one call they cost a fifth of the loop.
    if size * count == total and all(
        frames[offset::size] == prefix[offset : offset + 1] * count for offset in range(4)
    ):
        cutter = _kept_cutter if count <= _KEPT_CUTTER_MAX else _new_cutter
        return list(cutter(size, count).unpack(frames))
    return _split_unequal_frames(count, frames)


def _new_cutter(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


_kept_cutter = lru_cache(maxsize=16)(_new_cutter)


def _split_unequal_frames(count: int, frames: bytes) -> list[bytes]:
    split = []
    frame_size = _FRAME_SIZE.unpack_from
    at, total = 0, len(frames)
    while at + 4 <= total:
        end = at + 4 + frame_size(frames, at)[0]
        split.append(frames[at:end])
        at = end
    if at != total or len(split) != count:
        raise CorruptBatchError(f"the batch does not hold {count} whole frames")
    return split


# Large enough that reading costs little beside checking, small beside any segment.
SCAN_BYTES = 1024 * 1024

_TORN = "a batch was not written to its end"


class BadBytes(NamedTuple):
    """A stretch of a segment that is no batch.

    `is_leftover` is said of what a write left that failed or was interrupted, and so was never
    acknowledged. If the header could be read, `batch` is what it says.
    """

    position: int
    end: int
    reason: str
    is_leftover: bool
    batch: Batch | None

    @classmethod
    def of(cls, batch: Batch, reason: str, *, is_leftover: bool) -> "BadBytes":
        """A batch that is sound in itself but cannot stay."""
        return cls(batch.position, batch.end, reason, is_leftover, batch)

    def to_issue(self, path: str) -> Issue:
        """These bytes as a issue about the segment at `path`."""
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
    """The bytes of a file from a position up to `end`, read in large pieces."""

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._data = b""
        self._start = 0
        self.end = end

    def bytes_at(self, position: int, size: int) -> bytes:
        """`size` bytes from `position` on; fewer only at the end."""
        size = min(size, self.end - position)
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            self._data = self._file.read(position, max(size, min(SCAN_BYTES, self.end - position)))
            self._start, at = position, 0
        return self._data[at : at + size]

    def batch_at(self, position: int) -> Batch:
        """The batch whose header is at `position`; raises CorruptBatchError if there is none."""
        return decode_header(self.bytes_at(position, HEADER_BYTES), 0, position)

    def frames_of(self, batch: Batch) -> bytes:
        """The frames of a batch, verified. Raises CorruptBatchError if they were changed."""
        frames = self.bytes_at(batch.frames_position, batch.frames_size)
        verify_frames(batch, frames)
        return frames


def scan_batches(file: File, position: int, end: int) -> Iterator[StoredBatch | BadBytes]:
    """Every batch between two positions and every stretch that is none, in order."""
    buffer = ScanBuffer(file, end)
    while position < end:
        # The common case by the piece; what is damaged, cut short or larger than that, with care.
        with contextlib.suppress(CorruptBatchError):
            for found in complete_batches(buffer.bytes_at(position, SCAN_BYTES), position):
                yield found
                position = found.batch.end
        if position < end:
            looked = _look(buffer, position)
            yield looked
            position = looked.end if isinstance(looked, BadBytes) else looked.batch.end


def _look(buffer: ScanBuffer, position: int) -> StoredBatch | BadBytes:
    batch = None
    try:
        batch = buffer.batch_at(position)
        return StoredBatch(batch, buffer.frames_of(batch))
    except CorruptBatchError as error:
        reason = str(error)
    if batch is None:
        end = _next_header(buffer, position)
        is_leftover = end == buffer.end and _is_unwritten(buffer, position)
    else:
        # The header is sound, so it can be relied on for where the batch ends.
        end = min(batch.end, buffer.end)
        is_leftover = batch.end > buffer.end
    return BadBytes(position, end, _TORN if is_leftover else reason, is_leftover, batch)


def _is_unwritten(buffer: ScanBuffer, position: int) -> bool:
    """Whether all that follows is the start of a header, or space that was never written to."""
    rest = buffer.bytes_at(position, HEADER_BYTES)
    if len(rest) < HEADER_BYTES and rest[:4] == MAGIC[: len(rest)]:
        return True
    while piece := buffer.bytes_at(position, SCAN_BYTES):
        if piece.strip(b"\0"):
            return False
        position += len(piece)
    return True


def _next_header(buffer: ScanBuffer, position: int) -> int:
    """Where the next sound header after `position` is, or the end."""
    position += 1
    while position < buffer.end:
        piece = buffer.bytes_at(position, SCAN_BYTES)
        if not piece:
            break
        at = piece.find(MAGIC)
        while at >= 0:
            if _is_header(buffer, position + at):
                return position + at
            at = piece.find(MAGIC, at + 1)
        # A magic may straddle this piece and the next.
        position += max(1, len(piece) - len(MAGIC) + 1)
    return buffer.end


def _is_header(buffer: ScanBuffer, position: int) -> bool:
    try:
        buffer.batch_at(position)
    except CorruptBatchError:
        return False
    return True
