"""Format of a segment: a header and batches of messages; scanning a segment for batches. Pure.

The header of a segment identifies the log. All numbers are big-endian.

    offset  size  field
         0     4  segment_magic
         4     4  segment_crc   CRC-32C of the 32 bytes that follow it
         8     1  version       2
         9     1  flags         none is defined: 0
        10     2  header_size   40
        12     4  reserved      0
        16    16  log_id
        32     8  first_seq     of the segment
        40        batches

A batch is a header, the wire frames of its messages and, if a flag says so, their attributes.

    offset  size  field
         0     4  magic
         4     4  header_crc    CRC-32C of the log id and of all bytes of the header that follow it
         8     1  version       2
         9     1  flags         1: the batch has attributes
        10     2  header_size   56; 64 with attributes; at most 1024
        12     4  message_count
        16     4  frames_size   bytes of frames after the header
        20     4  frames_crc    CRC-32C of the frames
        24     8  first_seq     of the first message; the others follow without a gap
        32     8  epoch         of the writer; 0 without replication
        40     8  timestamp_ns  wall time of the append
        48     8  due_ns        wall time before which no message may be delivered; 0 is at once
        56     4  attributes_size  only with attributes
        60     4  attributes_crc   only with attributes: CRC-32C of the attributes
        64        frames, then attributes

A batch has the same bytes in every copy of its log. The header has its own checksum, so that it can
be trusted without the frames: a scan can skip the frames, and an incomplete batch can be told from
a damaged one. The checksum includes the log id, so that a batch of another log (for example in a
segment that was published as a message) is never mistaken for a batch of this log when recovery
searches damaged bytes.

A later version may add fields at the end of a header; readers ignore them. They also ignore the
flags 16 to 128, and refuse a batch with another unknown flag.

Segments of format 1 are still read. They have no header, and their batches no attributes. The
version of a batch is 1, the header_size is 0, the position of the batch in its segment takes the
place of the epoch, and header_crc does not include the log id. All batches of a segment have the
same version: in a segment of format 2, a batch of version 1 is damage. `find_seed` determines which
format a segment has.

`scan_batches` accepts only bytes whose checksums match. After damaged bytes it continues at the
next valid batch, so a bad sector costs only the batches in it.
"""

import contextlib
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from penstock.common.errors import CorruptBatchError
from penstock.storage.files import File
from penstock.storage.layout import LOG_ID_BYTES, Issue

__all__ = [
    "HEADER_BYTES",
    "HEADER_BYTES_MAX",
    "MAGIC",
    "SCAN_BYTES",
    "SEGMENT_HEADER_BYTES",
    "SEGMENT_MAGIC",
    "VERSION",
    "BadBytes",
    "BatchHeader",
    "ScanBuffer",
    "SegmentHeader",
    "StoredBatch",
    "checksum_seed",
    "complete_batches",
    "decode_header",
    "encode_batch",
    "encode_segment_header",
    "find_seed",
    "maybe_segment_header",
    "read_piece",
    "scan_batches",
    "split_frames",
    "verify_frames",
]

# The first byte is neither ASCII nor the start of a UTF-8 character, so no text contains it.
MAGIC = b"\x9ePSB"
SEGMENT_MAGIC = b"\x9ePSS"
VERSION = 2

SEGMENT_HEADER_BYTES = 40
HEADER_BYTES = 56
_LONG_HEADER_BYTES = 64
HEADER_BYTES_MAX = 1024

_HAS_ATTRIBUTES = 1
_REQUIRED_FLAGS = 0x0F

_CHECKED_AT = 8
_KIND = struct.Struct(">BBH")  # version, flags, header_size
_PLAIN = _KIND.pack(VERSION, 0, HEADER_BYTES)
_WITH_ATTRIBUTES = _KIND.pack(VERSION, _HAS_ATTRIBUTES, _LONG_HEADER_BYTES)
_FIELDS = struct.Struct(
    ">"
    "4s"  # version, flags, header_size
    "I"  # message_count
    "I"  # frames_size
    "I"  # frames_crc
    "Q"  # first_seq
    "Q"  # epoch; in format 1 the position
    "Q"  # timestamp_ns
    "Q"  # due_ns
)
_ATTRIBUTES = struct.Struct(">II")  # attributes_size, attributes_crc
_START = struct.Struct(">4sI")
_pack_fields, _pack_start = _FIELDS.pack, _START.pack
_CRC = struct.Struct(">I")
_SEGMENT_FIELDS = struct.Struct(f">4s4x{LOG_ID_BYTES}sQ")
_FRAME_SIZE = struct.Struct(">I")

# Maximum messages of a cached splitter, which takes 24 bytes per message. Caching pays because
# batches of the same shape repeat.
_CACHED_SPLITTER_MAX = 1024


class SegmentHeader(NamedTuple):
    """Header of a segment."""

    log_id: bytes
    first_seq: int


def encode_segment_header(log_id: bytes, first_seq: int) -> bytes:
    """Encode the header of a segment."""
    kind = _KIND.pack(VERSION, 0, SEGMENT_HEADER_BYTES)
    checked = _SEGMENT_FIELDS.pack(kind, log_id, first_seq)
    return _pack_start(SEGMENT_MAGIC, crc32c(checked)) + checked


def maybe_segment_header(data: bytes) -> SegmentHeader | None:
    """Decode the header at the start of a segment; None if there is none or it is damaged."""
    checked = data[_CHECKED_AT:SEGMENT_HEADER_BYTES]
    if not data.startswith(SEGMENT_MAGIC) or len(checked) < _SEGMENT_FIELDS.size:
        return None
    if crc32c(checked) != _CRC.unpack_from(data, 4)[0] or checked[0] != VERSION:
        return None
    _, log_id, first_seq = _SEGMENT_FIELDS.unpack(checked)
    return SegmentHeader(log_id, first_seq)


def checksum_seed(log_id: bytes) -> int:
    """The part of the checksums of batch headers that the log id contributes.

    Functions that read batches take this seed, or None for a segment of format 1.
    """
    seed: int = crc32c(log_id)
    return seed


class BatchHeader(NamedTuple):
    """Header of a batch, and its position in the segment."""

    position: int
    first_seq: int
    message_count: int
    frames_size: int
    frames_crc: int
    timestamp_ns: int
    due_ns: int
    epoch: int = 0
    header_size: int = HEADER_BYTES
    attributes_size: int = 0
    attributes_crc: int = 0

    @property
    def next_seq(self) -> int:
        """Sequence number after the last message."""
        return self.first_seq + self.message_count

    @property
    def frames_position(self) -> int:
        """Position of the frames in the segment."""
        return self.position + self.header_size

    @property
    def end(self) -> int:
        """Position of the next batch in the segment."""
        return self.position + self.header_size + self.frames_size + self.attributes_size


class StoredBatch(NamedTuple):
    """A batch read from a segment; its checksums match."""

    header: BatchHeader
    frames: bytes
    attributes: bytes = b""
    """Encoded (`penstock.storage.attributes`); empty if no message has any."""


class _IncompleteHeaderError(CorruptBatchError):
    """The data ends within a header."""


def encode_batch(
    frames: bytes,
    count: int,
    first_seq: int,
    epoch: int,
    timestamp_ns: int,
    due_ns: int,
    seed: int,
    attributes: bytes = b"",
) -> tuple[bytes, ...]:
    """Return a batch in parts that are to be written one after the other. `seed` is the
    `checksum_seed` of the log."""
    kind = _WITH_ATTRIBUTES if attributes else _PLAIN
    fields = _pack_fields(
        kind, count, len(frames), crc32c(frames), first_seq, epoch, timestamp_ns, due_ns
    )
    if attributes:
        fields += _ATTRIBUTES.pack(len(attributes), crc32c(attributes))
        return _pack_start(MAGIC, crc32c_extend(seed, fields)), fields, frames, attributes
    return _pack_start(MAGIC, crc32c_extend(seed, fields)), fields, frames


def decode_header(data: bytes, at: int, position: int, seed: int | None) -> BatchHeader:
    """Decode the header at `data[at]`, which is at `position` in a segment with this
    `checksum_seed`.

    Raises CorruptBatchError if the header is incomplete or damaged.
    """
    if not data.startswith(MAGIC, at):
        raise CorruptBatchError("no batch header")
    checked = data[at + _CHECKED_AT : at + HEADER_BYTES]
    if len(checked) < _FIELDS.size:
        raise _IncompleteHeaderError("incomplete header")
    (header_crc,) = _CRC.unpack_from(data, at + 4)
    if seed is None:
        if crc32c(checked) != header_crc:
            raise CorruptBatchError("the header does not match its checksum")
        return _decode_format_1(checked, position)
    kind, count, size, crc, seq, epoch, timestamp, due = _FIELDS.unpack(checked)
    if kind == _PLAIN:
        if crc32c_extend(seed, checked) != header_crc:
            raise CorruptBatchError("the header does not match its checksum")
        return BatchHeader(position, seq, count, size, crc, timestamp, due, epoch)
    return _decode_long_header(data, at, position, seed)


def _decode_format_1(checked: bytes, position: int) -> BatchHeader:
    kind, count, size, crc, seq, stored_position, timestamp, due = _FIELDS.unpack(checked)
    if kind[:2] != b"\x01\0":
        raise CorruptBatchError(f"unsupported batch: version {kind[0]}, flags {kind[1]}")
    if stored_position != position:
        raise CorruptBatchError(f"the batch belongs at byte {stored_position}")
    return BatchHeader(position, seq, count, size, crc, timestamp, due)


def _decode_long_header(data: bytes, at: int, position: int, seed: int) -> BatchHeader:
    version, flags, header_size = _KIND.unpack_from(data, at + _CHECKED_AT)
    checked = data[at + _CHECKED_AT : at + header_size]
    if HEADER_BYTES <= header_size <= HEADER_BYTES_MAX and at + header_size > len(data):
        raise _IncompleteHeaderError("incomplete header")
    if crc32c_extend(seed, checked) != _CRC.unpack_from(data, at + 4)[0]:
        raise CorruptBatchError("the header does not match its checksum")
    required = flags & _REQUIRED_FLAGS
    has_attributes = required == _HAS_ATTRIBUTES
    known_size = _LONG_HEADER_BYTES if has_attributes else HEADER_BYTES
    if version != VERSION or required & ~_HAS_ATTRIBUTES or header_size < known_size:
        raise CorruptBatchError(f"unsupported batch: version {version}, flags {flags}")
    _, count, size, crc, seq, epoch, timestamp, due = _FIELDS.unpack_from(checked)
    attributes_size, attributes_crc = 0, 0
    if has_attributes:
        attributes_size, attributes_crc = _ATTRIBUTES.unpack_from(checked, _FIELDS.size)
    return BatchHeader(
        position,
        seq,
        count,
        size,
        crc,
        timestamp,
        due,
        epoch,
        header_size,
        attributes_size,
        attributes_crc,
    )


def verify_frames(batch: BatchHeader, frames: bytes) -> None:
    """Raise CorruptBatchError if size or checksum of the frames do not match the header."""
    if len(frames) != batch.frames_size:
        raise CorruptBatchError("incomplete batch")
    if crc32c(frames) != batch.frames_crc:
        raise CorruptBatchError("the frames do not match their checksum")


def _verify_attributes(batch: BatchHeader, attributes: bytes) -> None:
    if len(attributes) != batch.attributes_size:
        raise CorruptBatchError("incomplete batch")
    if attributes and crc32c(attributes) != batch.attributes_crc:
        raise CorruptBatchError("the attributes do not match their checksum")


def complete_batches(data: bytes, position: int, seed: int | None) -> Iterator[StoredBatch]:
    """Yield the complete batches in `data`, which starts at `position` of a segment.

    Raises CorruptBatchError at a damaged batch.
    """
    at, size = 0, len(data)
    while at + HEADER_BYTES <= size:
        try:
            batch = decode_header(data, at, position + at, seed)
        except _IncompleteHeaderError:
            return
        frames_at = at + batch.header_size
        end = frames_end = frames_at + batch.frames_size
        attributes = b""
        if batch.attributes_size:
            end += batch.attributes_size
            attributes = data[frames_end:end]
        if end > size:
            return
        frames = data[frames_at:frames_end]
        verify_frames(batch, frames)
        if attributes:
            _verify_attributes(batch, attributes)
        yield StoredBatch(batch, frames, attributes)
        at = end


def read_piece(file: File, position: int, end: int, max_bytes: int, seed: int | None) -> bytes:
    """Read about `max_bytes` of a segment from `position` on, but at least one complete batch.

    Raises CorruptBatchError if the first batch is damaged.
    """
    piece = file.read(position, min(max(max_bytes, HEADER_BYTES), end - position))
    try:
        batch = decode_header(piece, 0, position, seed)
    except _IncompleteHeaderError:
        piece = file.read(position, min(HEADER_BYTES_MAX, end - position))
        batch = decode_header(piece, 0, position, seed)
    if batch.end > position + len(piece):
        piece = file.read(position, batch.end - position)
        frames_end = batch.header_size + batch.frames_size
        verify_frames(batch, piece[batch.header_size : frames_end])
        _verify_attributes(batch, piece[frames_end:])
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
    """Reads a segment up to `end` in large pieces."""

    def __init__(self, file: File, end: int, seed: int | None) -> None:
        self._file = file
        self._seed = seed
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
        return decode_header(self.read(position, HEADER_BYTES_MAX), 0, position, self._seed)

    def read_batch(self, batch: BatchHeader) -> StoredBatch:
        """Read and verify a batch. Raises CorruptBatchError."""
        body = self.read(batch.frames_position, batch.end - batch.frames_position)
        frames, attributes = body[: batch.frames_size], body[batch.frames_size :]
        verify_frames(batch, frames)
        _verify_attributes(batch, attributes)
        return StoredBatch(batch, frames, attributes)


def scan_batches(
    file: File, position: int, end: int, seed: int | None
) -> Iterator[StoredBatch | BadBytes]:
    """Yield every batch between two positions, and every part that is not a batch, in order.
    A valid header of the segment is skipped."""
    buffer = ScanBuffer(file, end, seed)
    if position == 0 and maybe_segment_header(buffer.read(0, SEGMENT_HEADER_BYTES)):
        position = SEGMENT_HEADER_BYTES
    while position < end:
        # Fast path: all complete, valid batches of one read.
        with contextlib.suppress(CorruptBatchError):
            for found in complete_batches(buffer.read(position, SCAN_BYTES), position, seed):
                yield found
                position = found.header.end
        if position < end:
            scanned = _scan_one(buffer, position)
            yield scanned
            position = scanned.end if isinstance(scanned, BadBytes) else scanned.header.end


def find_seed(file: File, log_id: bytes) -> int | None:
    """The `checksum_seed` for the batches of a segment; None if the segment has format 1.

    If the start of the file is damaged, the format is that of the batches in the file. One valid
    batch of format 2 is enough, because no message body can contain one: its checksum depends on
    the log id.
    """
    start = file.read(0, len(MAGIC))
    if start == MAGIC:
        return None
    seed, size = checksum_seed(log_id), file.size()
    if start == SEGMENT_MAGIC[: len(start)]:
        return seed
    has_batch = _next_header(ScanBuffer(file, size, seed), 0) < size
    return seed if has_batch else None


def _scan_one(buffer: ScanBuffer, position: int) -> StoredBatch | BadBytes:
    batch = None
    try:
        batch = buffer.read_header(position)
        return buffer.read_batch(batch)
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
    """Whether the rest of the file is an incomplete header, or preallocated space."""
    rest = buffer.read(position, _LONG_HEADER_BYTES)
    if position == 0 and len(rest) < SEGMENT_HEADER_BYTES:
        if rest[:4] == SEGMENT_MAGIC[: len(rest)]:
            return True
    elif rest[:4] == MAGIC[: len(rest)] and len(rest) < _header_size(rest):
        return True
    while piece := buffer.read(position, SCAN_BYTES):
        if piece.strip(b"\0"):
            return False
        position += len(piece)
    return True


def _header_size(data: bytes) -> int:
    """Size of the header at the start of `data`, which may be incomplete or damaged."""
    return _LONG_HEADER_BYTES if data[8:12] == _WITH_ATTRIBUTES else HEADER_BYTES


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
