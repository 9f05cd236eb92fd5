"""Reading on the executors: ranges of messages from nsqd, decoded into Arrow batches.

If nsqd restarts during a read, the reader continues from the last message received, also if nsqd
has a new address. Reading the same range again returns the same rows as long as nsqd has them.

A frame is `size, type, timestamp, attempts, id, body` (`penstock.protocol.frames`). The decoder
extracts each field from the raw bytes for all frames at once; its only loop per message finds
where the frames begin. The columns `id` and `body` are taken from one Arrow array over the raw
bytes, whose elements are, for each frame, the bytes before the id, the id, and the body.
"""

import logging
import time
from collections.abc import Iterator
from struct import Struct
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.common.errors import CorruptStreamError, Error, HttpRequestError, NotConnectedError
from penstock.protocol.frames import FRAME_MESSAGE, MESSAGE_HEADER_BYTES
from pyspark_nsq.errors import DataLossError, NodeUnavailableError, NotStoredError
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.offsets import SEQ_MAX, NodeIdOffsets
from pyspark_nsq.options import SourceOptions, Topics
from pyspark_nsq.planning import Range, RangesPartition

__all__ = [
    "ARROW_SCHEMA",
    "SCHEMA",
    "ByteSource",
    "RangeReader",
    "arrow_batches",
    "decode_frames",
    "find_frame_starts",
    "read_partition",
]

log = logging.getLogger("pyspark_nsq")

RETRY_SECONDS = 0.2

SCHEMA = (
    "topic string, log string, node int, seq bigint, id string, timestamp timestamp, "
    "timestamp_ns bigint, body binary"
)
ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("log", pa.string()),
        ("node", pa.int32()),
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ns", pa.int64()),
        ("body", pa.binary()),
    ]
)

# Bytes read per Arrow batch: large enough to make the overhead per batch negligible, small enough
# to keep raw bytes and columns in the processor's cache.
BUFFER_BYTES = 2 << 20

SEQ_BITS = 54

_SIZE = Struct(">i")
_SIZE_BYTES = 4
_TYPE_AT, _TIMESTAMP_AT, _ID_AT, _ID_BYTES = 4, 8, 18, 16

Starts = npt.NDArray[np.int64]


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the rows of a partition. All ranges of a node use one connection."""
    assert isinstance(partition, RangesPartition)
    nodes = Nodes(options.access)
    for wanted, base in partition.ranges:
        yield from RangeReader(options, nodes, wanted, base).batches()


class RangeReader:
    """Reads one range. Tries the nsqd at `base` first, if given."""

    def __init__(self, options: SourceOptions, nodes: Nodes, wanted: Range, base: str = "") -> None:
        self._options = options
        self._nodes = nodes
        self._range = wanted
        self._base = base
        self._next_seq = wanted.start
        self._last_data_at = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows. Raises DataLossError, or NodeUnavailableError after `nodeTimeout`."""
        while self._next_seq < self._range.end:
            try:
                yield from self._read_rest()
            except HttpRequestError as failure:
                if failure.status is not None and failure.status < 500:
                    raise  # a client error; retrying cannot help
                self._wait_for_node(failure)
            except NotConnectedError as failure:
                self._wait_for_node(failure)

    def _read_rest(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._stream()
            self._next_seq = self._range.end
        except NotStoredError as refusal:
            self._skip_missing(refusal)

    def _stream(self) -> Iterator[pa.RecordBatch]:
        history = self._nodes.history(self._base or self._locate(), self._range.topic)
        topic, log_id, _, end = self._range
        with history.frames(log_id, self._next_seq, end) as frames:
            for batch in arrow_batches(frames, topic, log_id):
                yield batch
                self._record_progress(batch)

    def _record_progress(self, batch: pa.RecordBatch) -> None:
        last_seq = batch.column("seq")[-1].as_py()
        missing = last_seq + 1 - self._next_seq - batch.num_rows
        if missing:
            log.warning("%s: %d messages before %d are missing", self._range, missing, last_seq)
        self._next_seq = last_seq + 1
        self._last_data_at = time.monotonic()

    # Failures.

    def _skip_missing(self, refusal: NotStoredError) -> None:
        """Continue at the next available message. The skipped messages are lost, unless their
        sequence numbers were never assigned."""
        wanted, start = self._range, self._next_seq
        if refusal.next_seq is not None:  # nsqd has lost its newest messages
            self._report_loss(max(start, refusal.next_seq), wanted.end, refusal)
            self._range = wanted._replace(end=max(start, refusal.next_seq))
            return
        available_seq = (
            wanted.end if refusal.first_seq is None else min(refusal.first_seq, wanted.end)
        )
        if self._is_gap():
            log.warning("%s: gap in the log from %d to %d", wanted, start, available_seq)
        else:
            self._report_loss(start, available_seq, refusal)
        self._next_seq = available_seq

    def _is_gap(self) -> bool:
        """Whether the log has older messages. Then it was not trimmed, but skipped numbers."""
        found = self._nodes.history(self._base, self._range.topic).log()
        return found is not None and found.first_seq <= self._next_seq

    def _report_loss(self, start: int, end: int, why: Error) -> None:
        lost = f"{self._range.key}: messages {start} to {end - 1} are lost ({why})"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{lost}; failOnDataLoss=false skips them")
        log.error("%s", lost)

    def _wait_for_node(self, failure: Error) -> None:
        waited = time.monotonic() - self._last_data_at
        if waited >= self._options.node_timeout_seconds:
            self._give_up(failure)
            return
        self._base = ""  # the node may return at another address
        time.sleep(RETRY_SECONDS)

    def _give_up(self, failure: Error) -> None:
        wanted, seconds = self._range, self._options.node_timeout_seconds
        error = f"{wanted.key}: the node was unreachable for {seconds:g} s: {failure}"
        if self._options.fail_on_data_loss:
            raise NodeUnavailableError(error)
        self._report_loss(self._next_seq, wanted.end, NodeUnavailableError(error))
        self._next_seq = wanted.end

    def _locate(self) -> str:
        """Find the base URL of the log, and its id if only the node id is known. Raises
        HttpRequestError or NotConnectedError."""
        snapshot = self._nodes.snapshot(Topics((self._range.topic,)))
        offsets = {self._range.key: self._next_seq}
        (key,) = NodeIdOffsets().convert(
            offsets, snapshot.extents(), is_complete=not snapshot.failures
        )
        if key not in snapshot.logs:
            others = "; ".join(map(str, snapshot.failures)) or "no nsqd has this log"
            raise NotConnectedError(f"{key} not found: {others}")
        self._range = self._range._replace(log_id=key.log_id)
        self._base = snapshot.logs[key].base
        return self._base


# Frames to Arrow batches.


class ByteSource(Protocol):
    """A stream of bytes."""

    def readinto(self, room: memoryview, /) -> int:
        """Read into `room`. Returns the number of bytes; 0 at the end."""


def arrow_batches(
    source: ByteSource, topic: str, log_id: str, *, buffer_bytes: int = BUFFER_BYTES
) -> Iterator[pa.RecordBatch]:
    """Decode a stream of frames. Raises CorruptStreamError if it ends within a frame."""
    buffer, filled, ended = bytearray(buffer_bytes), 0, False
    while not ended:
        while filled < len(buffer) and not ended:
            count = source.readinto(memoryview(buffer)[filled:])
            filled += count
            ended = not count
        starts, used = find_frame_starts(buffer, filled)
        if len(starts):
            yield decode_frames(buffer, starts, used, topic, log_id)
        elif filled == len(buffer):
            buffer = buffer + bytes(len(buffer))  # the message does not fit into the buffer
            continue
        buffer[: filled - used] = buffer[used:filled]
        filled -= used
    if filled:
        raise CorruptStreamError(f"{filled} bytes left over after the last whole frame")


def find_frame_starts(buffer: bytearray, filled: int) -> tuple[Starts, int]:
    """Starts of all whole frames, and the end of the last one."""
    alike, at = _find_equal_frames(buffer, filled)
    starts: list[int] = []
    last_at = filled - MESSAGE_HEADER_BYTES
    size_at, found = _SIZE.unpack_from, starts.append
    while at <= last_at:
        end = at + _SIZE_BYTES + size_at(buffer, at)[0]
        if end > filled:
            break
        if end < at + MESSAGE_HEADER_BYTES:
            raise CorruptStreamError(f"a frame of {end - at} bytes is too short for a message")
        found(at)
        at = end
    return np.concatenate([alike, np.array(starts, np.int64)]), at


def _find_equal_frames(buffer: bytearray, filled: int) -> tuple[Starts, int]:
    """Starts of the leading frames that have the same size, and the end of the last one.

    Speed: many topics have messages of one size only. The start of a frame depends on the size of
    the previous one, which takes a loop in Python. For frames of one size, numpy computes all
    starts and checks that each frame has the size of the first.
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


def decode_frames(
    buffer: bytearray, starts: Starts, used: int, topic: str, log_id: str
) -> pa.RecordBatch:
    """Decode the frames at `starts`; the last one ends at `used`."""
    count = len(starts)
    if not (_field(buffer, used, ">i4")[starts + _TYPE_AT] == FRAME_MESSAGE).all():
        raise CorruptStreamError("a frame is not a message")
    timestamps_ns = _field(buffer, used, ">i8")[starts + _TIMESTAMP_AT].astype(np.int64)
    parts = _parts(buffer, starts, used)
    every_third = np.arange(0, 3 * count, 3)
    nodes, seqs = _nodes_and_seqs(buffer, starts, used)
    columns = [
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(log_id), count),
        nodes,
        seqs,
        parts.take(pa.array(every_third + 1)).view(pa.string()),
        pa.array(timestamps_ns // 1000).view(pa.timestamp("us", tz="UTC")),
        pa.array(timestamps_ns),
        parts.take(pa.array(every_third + 2)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _parts(buffer: bytearray, starts: Starts, used: int) -> pa.Array:
    """For each frame: the bytes before the id, the id, the body."""
    bounds = np.empty(3 * len(starts) + 1, np.int32)
    bounds[0:-1:3] = starts
    bounds[1::3] = starts + _ID_AT
    bounds[2::3] = starts + MESSAGE_HEADER_BYTES
    bounds[-1] = used
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def _nodes_and_seqs(buffer: bytearray, starts: Starts, used: int) -> tuple[pa.Array, pa.Array]:
    """The node ids and the sequence numbers in the message ids.

    Speed: sequence numbers increase. If the first and the last id differ by the number of frames
    minus one, there is no gap, and the ids between them need not be parsed.
    """
    count = len(starts)
    first, last = (_id_at(buffer, int(at)) for at in (starts[0], starts[-1]))
    if last - first == count - 1:
        first_seq = first & SEQ_MAX
        nodes = pa.repeat(pa.scalar(first >> SEQ_BITS, pa.int32()), count)
        return nodes, pa.array(np.arange(first_seq, first_seq + count, dtype=np.int64))
    ids = _field(buffer, used, f"V{_ID_BYTES}")[starts + _ID_AT]
    digits = bytes.fromhex(ids.tobytes().decode("ascii"))
    numbers = np.frombuffer(digits, ">u8").astype(np.uint64)
    nodes = (numbers >> np.uint64(SEQ_BITS)).astype(np.int32)
    return pa.array(nodes), pa.array((numbers & np.uint64(SEQ_MAX)).astype(np.int64))


def _id_at(buffer: bytearray, start: int) -> int:
    digits = buffer[start + _ID_AT : start + MESSAGE_HEADER_BYTES]
    try:
        return int(digits, 16)
    except ValueError:
        raise CorruptStreamError(f"{bytes(digits)!r} is not a message id") from None


def _field(buffer: bytearray, used: int, kind: str) -> npt.NDArray[np.void]:
    """View of the buffer as values of this type at every byte offset, without copying."""
    size = np.dtype(kind).itemsize
    return np.ndarray((used - size + 1,), kind, buffer, strides=(1,))
