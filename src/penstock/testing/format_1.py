"""Batches of log format 1, which Penstock reads and no longer writes."""

import struct

from google_crc32c import value as crc32c

__all__ = ["encode_batch_1"]

_START = struct.Struct(">4sI")
_FIELDS = struct.Struct(">4sIIIQQQQ")


def encode_batch_1(
    frames: bytes, count: int, first_seq: int, position: int, timestamp_ns: int, due_ns: int
) -> bytes:
    """Encode a batch that begins at `position` of its segment."""
    fields = _FIELDS.pack(
        b"\1\0\0\0", count, len(frames), crc32c(frames), first_seq, position, timestamp_ns, due_ns
    )
    return _START.pack(b"\x9ePSB", crc32c(fields)) + fields + frames
