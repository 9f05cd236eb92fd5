"""Indexes of one segment, by sequence number, time and due time, and the index file. Pure.

The sparse index has an entry for the first batch and then for one batch per `INDEX_SPACING_BYTES`:
the batch's position, its first sequence number, and the latest timestamp of all earlier batches.
All three columns are ascending, so each can be searched. If the clock was set back, a search by
time starts earlier, never too late.

A second index lists the batches with a due time, so that a channel finds its deferred messages
without reading the segment.

A segment that is complete or was closed cleanly has an index file with both indexes and a
`Checkpoint`, so that the next start need not read the segment. Big-endian:

    offset  size  field
         0     4  magic
         4     4  head_crc            CRC-32C of the log id, the segment's first sequence number
                                      (8 bytes) and the 52 bytes that follow this field
         8     1  version             3
         9     3  reserved            0
        12     4  entries_crc         CRC-32C of the entries
        16     4  entries             how many
        20     8  end                 of the part of the segment that this file covers
        28     8  next_seq            after the last message of that part
        36     8  first_timestamp_ns  of its first batch
        44     8  last_timestamp_ns   the latest of its batches
        52     4  deferred_crc        CRC-32C of the deferred batches
        56     4  deferred            how many batches have a due time
        60        positions, first sequence numbers, latest timestamps: 8 bytes each, by column
                  then of the deferred batches: first sequence numbers, next sequence numbers,
                  due times: 8 bytes each, by column

The checksum includes the log id and the first sequence number, so that the index file of another
segment is never used. A segment of format 1 has an index file of version 2, whose head_crc includes
neither; the functions take None as its `seed`.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

__all__ = [
    "CHECKPOINT_BYTES",
    "INDEX_SPACING_BYTES",
    "Checkpoint",
    "DeferredBatch",
    "DeferredIndex",
    "SparseIndex",
    "encode_index",
    "index_seed",
    "maybe_checkpoint",
    "maybe_deferred",
    "maybe_index",
]

# The index takes 0.02 % of the size of the log in memory; a search reads about this many bytes.
INDEX_SPACING_BYTES = 128 * 1024

CHECKPOINT_BYTES = 60

# Maximum deferred batches in one list of `DeferredIndex.between`.
DEFERRED_CHUNK = 1024

_MAGIC = b"\x9ePSI"
_VERSION = 3
_VERSION_OF_FORMAT_1 = 2
_CHECKED_AT = 8
_CRC = struct.Struct(">I")
_FIELDS = struct.Struct(
    ">"
    "B"  # version
    "3x"  # reserved
    "I"  # entries_crc
    "I"  # entries
    "Q"  # end
    "Q"  # next_seq
    "Q"  # first_timestamp_ns
    "Q"  # last_timestamp_ns
    "I"  # deferred_crc
    "I"  # deferred
)
_ENTRY_BYTES = 24


class SparseIndex:
    """Three columns of 64-bit numbers: 24 bytes per entry, in memory and on disk."""

    __slots__ = ("_latest", "_positions", "_seqs", "next_position")

    def __init__(self) -> None:
        self._positions = array("Q")
        self._seqs = array("Q")
        self._latest = array("Q")
        self.next_position = 0
        """The next batch at or after this position gets an entry."""

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, first_seq: int, latest_timestamp_ns: int) -> None:
        """Add an entry for a batch that follows all batches added before."""
        self._positions.append(position)
        self._seqs.append(first_seq)
        self._latest.append(latest_timestamp_ns)
        self.next_position = position + INDEX_SPACING_BYTES

    def position_of_seq(self, seq: int) -> int:
        """Position of the last indexed batch that begins at or before `seq`."""
        return self._position(bisect_right(self._seqs, seq) - 1)

    def position_of_time(self, timestamp_ns: int) -> int:
        """A position before which all batches are older than `timestamp_ns`."""
        return self._position(bisect_left(self._latest, timestamp_ns) - 1)

    def matches(self, first_seq: int, end: int) -> bool:
        """Whether this can be the index of a segment with this first message and this end."""
        if not self._positions:
            return not end
        return self._seqs[0] == first_seq and self._positions[-1] < end

    def entries(self) -> list[tuple[int, int, int]]:
        """All entries: position, first sequence number, latest timestamp of the earlier batches."""
        return list(zip(self._positions, self._seqs, self._latest, strict=True))

    def encode(self) -> bytes:
        """Encode the columns, one after the other."""
        return _encode_columns(self._positions, self._seqs, self._latest)

    @classmethod
    def decode(cls, data: bytes) -> "SparseIndex":
        """Decode the result of `encode`."""
        index = cls()
        index._positions, index._seqs, index._latest = _decode_columns(data)
        if index._positions:
            index.next_position = index._positions[-1] + INDEX_SPACING_BYTES
        return index

    def _position(self, entry: int) -> int:
        return self._positions[max(entry, 0)] if self._positions else 0


class DeferredBatch(NamedTuple):
    """Messages `[first_seq, next_seq)`, stored as one batch with a due time (wall time)."""

    first_seq: int
    next_seq: int
    due_ns: int


class DeferredIndex:
    """The batches of a segment with a due time, in order: 24 bytes each."""

    __slots__ = ("_due", "_firsts", "_nexts")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._nexts = array("Q")
        self._due = array("Q")

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, batch: DeferredBatch) -> None:
        """Add a batch that follows all batches added before."""
        self._firsts.append(batch.first_seq)
        self._nexts.append(batch.next_seq)
        self._due.append(batch.due_ns)

    def between(self, first: int, end: int) -> Iterator[list[DeferredBatch]]:
        """Yield the batches with messages of `[first, end)`, in lists of at most
        `DEFERRED_CHUNK`."""
        low, high = bisect_right(self._nexts, first), bisect_left(self._firsts, end)
        for start in range(low, high, DEFERRED_CHUNK):
            part = slice(start, min(start + DEFERRED_CHUNK, high))
            columns = self._firsts[part], self._nexts[part], self._due[part]
            yield list(map(DeferredBatch, *columns))

    def encode(self) -> bytes:
        """Encode the columns, one after the other."""
        return _encode_columns(self._firsts, self._nexts, self._due)

    @classmethod
    def decode(cls, data: bytes) -> "DeferredIndex":
        """Decode the result of `encode`."""
        index = cls()
        index._firsts, index._nexts, index._due = _decode_columns(data)
        return index


class Checkpoint(NamedTuple):
    """Metadata of a segment up to `end`, known without reading the segment."""

    end: int
    next_seq: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    deferred_count: int
    """Number of batches with a due time."""


def index_seed(seed: int | None, first_seq: int) -> int | None:
    """The part of an index file's checksum that its segment contributes; None for format 1. `seed`
    is the `checksum_seed` of the segment's batches."""
    if seed is None:
        return None
    extended: int = crc32c_extend(seed, first_seq.to_bytes(8))
    return extended


def encode_index(
    checkpoint: Checkpoint, index: SparseIndex, deferred: DeferredIndex, seed: int | None
) -> bytes:
    """Encode an index file. `seed` is the `index_seed` of its segment."""
    entries, due = index.encode(), deferred.encode()
    fields = _FIELDS.pack(
        _version(seed), crc32c(entries), len(index), *checkpoint[:4], crc32c(due), len(deferred)
    )
    return _MAGIC + _CRC.pack(_head_crc(fields, seed)) + fields + entries + due


def maybe_checkpoint(data: bytes, seed: int | None) -> Checkpoint | None:
    """Decode the start of an index file; None if its checksum does not match."""
    head = _maybe_header(data, seed)
    return head.checkpoint if head else None


def maybe_index(data: bytes, seed: int | None) -> SparseIndex | None:
    """Decode the sparse index of an index file; None if its checksum does not match."""
    head = _maybe_header(data, seed)
    if head is None:
        return None
    entries = data[CHECKPOINT_BYTES : CHECKPOINT_BYTES + head.entries * _ENTRY_BYTES]
    if len(entries) != head.entries * _ENTRY_BYTES or crc32c(entries) != head.entries_crc:
        return None
    return SparseIndex.decode(entries)


def maybe_deferred(data: bytes, seed: int | None) -> DeferredIndex | None:
    """Decode the deferred batches of an index file; None if their checksum does not match."""
    head = _maybe_header(data, seed)
    if head is None:
        return None
    deferred = data[CHECKPOINT_BYTES + head.entries * _ENTRY_BYTES :]
    size = head.checkpoint.deferred_count * _ENTRY_BYTES
    if len(deferred) != size or crc32c(deferred) != head.deferred_crc:
        return None
    return DeferredIndex.decode(deferred)


class _IndexHeader(NamedTuple):
    """The fields at the start of an index file."""

    checkpoint: Checkpoint
    entries_crc: int
    entries: int
    deferred_crc: int


def _maybe_header(data: bytes, seed: int | None) -> _IndexHeader | None:
    checked = data[_CHECKED_AT:CHECKPOINT_BYTES]
    if data[:4] != _MAGIC or len(checked) != _FIELDS.size:
        return None
    version, entries_crc, entries, end, seq, first_ns, last_ns, deferred_crc, deferred = (
        _FIELDS.unpack(checked)
    )
    if _CRC.unpack_from(data, 4)[0] != _head_crc(checked, seed) or version != _version(seed):
        return None
    checkpoint = Checkpoint(end, seq, first_ns, last_ns, deferred)
    return _IndexHeader(checkpoint, entries_crc, entries, deferred_crc)


def _version(seed: int | None) -> int:
    return _VERSION_OF_FORMAT_1 if seed is None else _VERSION


def _head_crc(checked: bytes, seed: int | None) -> int:
    crc: int = crc32c(checked) if seed is None else crc32c_extend(seed, checked)
    return crc


def _encode_columns(*columns: "array[int]") -> bytes:
    return b"".join(map(_to_big_endian, columns))


def _decode_columns(data: bytes) -> tuple["array[int]", "array[int]", "array[int]"]:
    size = len(data) // 3
    first, second, third = (array("Q", data[at * size : (at + 1) * size]) for at in range(3))
    if sys.byteorder == "little":
        for column in (first, second, third):
            column.byteswap()
    return first, second, third


def _to_big_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()
