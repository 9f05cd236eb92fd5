"""From frames to Arrow batches, without work for a single row except finding where it begins.

A frame is `size, type, timestamp, attempts, id, body` (`penstock.protocol.frames`). Its fields are
picked out of the raw bytes for all frames at once. The columns with bytes in them come from one
Arrow array laid over the raw bytes, whose elements are in turn what comes before the id, the id,
and the body: taking every third is a copy in C++.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import CorruptStreamError
from penstock.protocol.frames import FRAME_MESSAGE, MESSAGE_HEADER_BYTES

__all__ = ["ARROW_SCHEMA", "SCHEMA", "ByteSource", "arrow_batches", "frame_starts", "to_batch"]

SCHEMA = (
    "topic string, node int, seq bigint, id string, timestamp timestamp, timestamp_ns bigint, "
    "body binary"
)
ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("node", pa.int32()),
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ns", pa.int64()),
        ("body", pa.binary()),
    ]
)

# What is read before it is made into a batch. Large enough that a batch's overhead does not count,
# small enough that raw bytes and columns stay in the processor's cache.
PIECE_BYTES = 2 << 20

SEQ_BITS = 54

_SIZE = Struct(">i")
_SIZE_BYTES = 4
_TYPE_AT, _TIMESTAMP_AT, _ID_AT, _ID_BYTES = 4, 8, 18, 16

Starts = npt.NDArray[np.int64]


class ByteSource(Protocol):
    """Where the frames come from."""

    def readinto(self, room: memoryview, /) -> int:
        """How many bytes have been put there; 0 at the end."""


def arrow_batches(
    source: ByteSource, topic: str, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[pa.RecordBatch]:
    """The frames of a source as rows. Raises CorruptStreamError if it does not end with a frame."""
    buffer, filled, ended = bytearray(piece_bytes), 0, False
    while not ended:
        while filled < len(buffer) and not ended:
            count = source.readinto(memoryview(buffer)[filled:])
            filled += count
            ended = not count
        starts, used = frame_starts(buffer, filled)
        if len(starts):
            yield to_batch(buffer, starts, used, topic)
        elif filled == len(buffer):
            buffer = buffer + bytes(len(buffer))  # one message is larger than all this
            continue
        buffer[: filled - used] = buffer[used:filled]
        filled -= used
    if filled:
        raise CorruptStreamError(f"{filled} bytes are left over after the last whole frame")


def frame_starts(buffer: bytearray, filled: int) -> tuple[Starts, int]:
    """Where each whole frame begins, and where the last one ends."""
    alike, at = _starts_of_equals(buffer, filled)
    starts: list[int] = []
    last_at = filled - MESSAGE_HEADER_BYTES
    size_at, found = _SIZE.unpack_from, starts.append
    while at <= last_at:
        end = at + _SIZE_BYTES + size_at(buffer, at)[0]
        if end > filled:
            break
        if end < at + MESSAGE_HEADER_BYTES:
            raise CorruptStreamError(f"a frame of {end - at} bytes is no message")
        found(at)
        at = end
    return np.concatenate([alike, np.array(starts, np.int64)]), at


def _starts_of_equals(buffer: bytearray, filled: int) -> tuple[Starts, int]:
    """The same for frames at the beginning that are all of one size, which many topics have only.

    Where a frame begins is known from the one before it, so there are no bounds to be found all at
    once. But it can be guessed, and the guess checked: each must have the size of the first.
    """
    if filled < MESSAGE_HEADER_BYTES:
        return np.empty(0, np.int64), 0
    frame_bytes = _SIZE_BYTES + _SIZE.unpack_from(buffer)[0]
    if frame_bytes < MESSAGE_HEADER_BYTES:
        return np.empty(0, np.int64), 0
    guessed = np.arange(0, filled - frame_bytes + 1, frame_bytes, dtype=np.int64)
    others = np.flatnonzero(_field(buffer, filled, ">i4")[guessed] != frame_bytes - _SIZE_BYTES)
    right = guessed[: others[0]] if len(others) else guessed
    return right, len(right) * frame_bytes


def to_batch(buffer: bytearray, starts: Starts, used: int, topic: str) -> pa.RecordBatch:
    """The rows of these frames, the last of which ends at `used`."""
    count = len(starts)
    if not (_field(buffer, used, ">i4")[starts + _TYPE_AT] == FRAME_MESSAGE).all():
        raise CorruptStreamError("a frame is no message")
    timestamps_ns = _field(buffer, used, ">i8")[starts + _TIMESTAMP_AT].astype(np.int64)
    parts = _parts(buffer, starts, used)
    every_third = np.arange(0, 3 * count, 3)
    node, seqs = _addresses(buffer, starts, used)
    columns = [
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(node, pa.int32()), count),
        pa.array(seqs),
        parts.take(pa.array(every_third + 1)).view(pa.string()),
        pa.array(timestamps_ns // 1000).view(pa.timestamp("us", tz="UTC")),
        pa.array(timestamps_ns),
        parts.take(pa.array(every_third + 2)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _parts(buffer: bytearray, starts: Starts, used: int) -> pa.Array:
    """Of each frame: what is before the id, the id, the body."""
    bounds = np.empty(3 * len(starts) + 1, np.int32)
    bounds[0:-1:3] = starts
    bounds[1::3] = starts + _ID_AT
    bounds[2::3] = starts + MESSAGE_HEADER_BYTES
    bounds[-1] = used
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def _addresses(buffer: bytearray, starts: Starts, used: int) -> tuple[int, Starts]:
    """The node, and the numbers of the messages.

    Numbers only grow. So if the first and the last are as far apart as they would be without a
    gap, there is none, and no other id need be looked at.
    """
    first, last = (_id_at(buffer, int(at)) for at in (starts[0], starts[-1]))
    node, first_seq = first >> SEQ_BITS, first & ((1 << SEQ_BITS) - 1)
    if last - first == len(starts) - 1:
        return node, np.arange(first_seq, first_seq + len(starts), dtype=np.int64)
    ids = _field(buffer, used, f"V{_ID_BYTES}")[starts + _ID_AT]
    digits = bytes.fromhex(ids.tobytes().decode("ascii"))
    numbers = np.frombuffer(digits, ">u8").astype(np.int64)
    return node, numbers & ((1 << SEQ_BITS) - 1)


def _id_at(buffer: bytearray, start: int) -> int:
    digits = buffer[start + _ID_AT : start + MESSAGE_HEADER_BYTES]
    try:
        return int(digits, 16)
    except ValueError:
        raise CorruptStreamError(f"{bytes(digits)!r} is no id") from None


def _field(buffer: bytearray, used: int, kind: str) -> npt.NDArray[np.void]:
    """The bytes read as a value of this kind at every place of the buffer, without copying."""
    size = np.dtype(kind).itemsize
    return np.ndarray((used - size + 1,), kind, buffer, strides=(1,))
