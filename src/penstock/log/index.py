"""The sparse index of one segment: where to start looking for a message or a time. Pure.

An entry is kept for the first batch and then for one batch in every `INDEX_SPACING_BYTES`. It says
where the batch begins, its first sequence number, and the latest timestamp of all batches before
it. All three columns only ever grow, so that each can be searched; a clock that was set back makes
a search by time start earlier, never too late.

Beside a segment that is complete, or was closed cleanly, stands a file with its index and with a
`Checkpoint`, which spares the next start from reading the segment. Big-endian:

    offset  size  field
         0     4  magic
         4     4  head_crc            CRC-32C of the 44 bytes that follow it
         8     1  version
         9     3  reserved            0
        12     4  entries_crc         CRC-32C of the entries
        16     4  entries             how many
        20     8  end                 of the part of the segment that this file speaks of
        28     8  next_seq            after the last message of that part
        36     8  first_timestamp_ns  of its first batch
        44     8  last_timestamp_ns   the latest of its batches
        52        positions, first sequence numbers, latest timestamps: 8 bytes each, by column
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from google_crc32c import value as crc32c

__all__ = [
    "CHECKPOINT_BYTES",
    "INDEX_SPACING_BYTES",
    "Checkpoint",
    "SparseIndex",
    "encode_index",
    "maybe_checkpoint",
    "maybe_index",
]

# 0.02 % of the log in memory, and a search reads one piece of about this size.
INDEX_SPACING_BYTES = 128 * 1024

CHECKPOINT_BYTES = 52

_MAGIC = b"\x9ePSI"
_VERSION = 1
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
)
_ENTRY_BYTES = 24


class SparseIndex:
    """Three columns of 64-bit numbers: 24 bytes an entry, in memory and on disk."""

    __slots__ = ("_latest", "_positions", "_seqs", "next_position")

    def __init__(self) -> None:
        self._positions = array("Q")
        self._seqs = array("Q")
        self._latest = array("Q")
        self.next_position = 0
        """A batch at or after this position asks for an entry."""

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, first_seq: int, latest_timestamp_ns: int) -> None:
        """Enters a batch, which begins after all those entered before."""
        self._positions.append(position)
        self._seqs.append(first_seq)
        self._latest.append(latest_timestamp_ns)
        self.next_position = position + INDEX_SPACING_BYTES

    def position_of_seq(self, seq: int) -> int:
        """Where the last entered batch that begins at or before `seq` is."""
        return self._position(bisect_right(self._seqs, seq) - 1)

    def position_of_time(self, timestamp_ns: int) -> int:
        """A place before which every batch is older than `timestamp_ns`."""
        return self._position(bisect_left(self._latest, timestamp_ns) - 1)

    def entries(self) -> list[tuple[int, int, int]]:
        """Every entry: position, first sequence number, latest timestamp before it."""
        return list(zip(self._positions, self._seqs, self._latest, strict=True))

    def encode(self) -> bytes:
        """The columns, one after the other."""
        numbers = [*self._positions, *self._seqs, *self._latest]
        return struct.pack(f">{len(numbers)}Q", *numbers)

    @classmethod
    def decode(cls, data: bytes) -> "SparseIndex":
        """The index whose `encode` is `data`."""
        count = len(data) // _ENTRY_BYTES
        numbers = struct.unpack(f">{3 * count}Q", data)
        index = cls()
        for at in range(count):
            index.add(numbers[at], numbers[count + at], numbers[2 * count + at])
        return index

    def _position(self, entry: int) -> int:
        return self._positions[entry] if entry >= 0 else 0


class Checkpoint(NamedTuple):
    """What is known of a segment up to `end` without reading it."""

    end: int
    next_seq: int
    first_timestamp_ns: int
    last_timestamp_ns: int


def encode_index(checkpoint: Checkpoint, index: SparseIndex) -> bytes:
    """The content of the file beside a segment."""
    entries = index.encode()
    fields = _FIELDS.pack(_VERSION, crc32c(entries), len(index), *checkpoint)
    return _MAGIC + _CRC.pack(crc32c(fields)) + fields + entries


def maybe_checkpoint(data: bytes) -> Checkpoint | None:
    """What the first bytes of such a file say, or None if they are not what was written."""
    fields = _maybe_fields(data)
    return Checkpoint(*fields[3:]) if fields else None


def maybe_index(data: bytes) -> SparseIndex | None:
    """The index in the whole of such a file, or None if it is not what was written."""
    fields = _maybe_fields(data)
    entries = data[CHECKPOINT_BYTES:]
    if not fields or len(entries) != fields[2] * _ENTRY_BYTES or crc32c(entries) != fields[1]:
        return None
    return SparseIndex.decode(entries)


def _maybe_fields(data: bytes) -> tuple[int, ...] | None:
    checked = data[_CHECKED_AT:CHECKPOINT_BYTES]
    if data[:4] != _MAGIC or len(checked) != _FIELDS.size:
        return None
    fields = _FIELDS.unpack(checked)
    is_ours = _CRC.unpack_from(data, 4)[0] == crc32c(checked) and fields[0] == _VERSION
    return fields if is_ours else None
