"""Frames, which a server sends: rendering for the server, parsing for the client.

    [int32 size of what follows][int32 type][data]

    type 0, response   data = text: OK, CLOSE_WAIT, _heartbeat_, or JSON
    type 1, error      data = `CODE detail`
    type 2, message    data = [int64 timestamp ns][uint16 attempts][16 bytes id][body]

Integers are big-endian; an id is 16 hex digits. A message is rendered once, when it is published;
these bytes are stored and delivered. The functions that read fields of a frame do not validate it:
they are for frames that were rendered here.
"""

import struct
from binascii import hexlify
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.common.errors import ProtocolError
from penstock.common.go_text import to_bytes, verbatim
from penstock.protocol.buffer import ReceiveBuffer

__all__ = [
    "CLOSE_WAIT",
    "FRAME_BYTES_MAX",
    "FRAME_ERROR",
    "FRAME_MESSAGE",
    "FRAME_RESPONSE",
    "HEARTBEAT",
    "MESSAGE_HEADER_BYTES",
    "OK",
    "ErrorFrame",
    "Frame",
    "FrameReader",
    "MessageFrame",
    "ResponseFrame",
    "attempts",
    "body",
    "error",
    "ids_to_ints",
    "message_id",
    "message_ids",
    "render_messages",
    "response",
    "timestamp_counts",
    "timestamp_ns",
    "with_attempts",
]

FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2

# Default maximum for a client. A server may allow messages larger than the default of 1 MiB, but a
# size above this more likely means that the server does not speak NSQ.
FRAME_BYTES_MAX = 64 * 1024 * 1024

_SIZE_AND_TYPE = Struct(">ii")
_TYPE_BYTES = 4
_SIZE_BYTES = 4

_MESSAGE_HEADER = Struct(
    ">"
    "i"  # size of what follows
    "i"  # type, FRAME_MESSAGE
    "q"  # timestamp, ns
    "H"  # attempts
    "16s"  # id
)
_pack_header = _MESSAGE_HEADER.pack
MESSAGE_HEADER_BYTES = _MESSAGE_HEADER.size
_BODY_OVERHEAD = MESSAGE_HEADER_BYTES - _SIZE_BYTES
_TIMESTAMP = Struct(">q")
_ATTEMPTS = Struct(">H")
_TIMESTAMP_AT = 8
_ATTEMPTS_AT = 16
_ID_AT = 18
_MESSAGE_DATA = Struct(">qH16s")


def response(data: bytes) -> bytes:
    return _SIZE_AND_TYPE.pack(len(data) + _TYPE_BYTES, FRAME_RESPONSE) + data


def error(err: ProtocolError) -> bytes:
    """An error frame: `CODE detail`, or only the code."""
    data = to_bytes(str(err))
    return _SIZE_AND_TYPE.pack(len(data) + _TYPE_BYTES, FRAME_ERROR) + data


OK = response(b"OK")
CLOSE_WAIT = response(b"CLOSE_WAIT")
HEARTBEAT = response(b"_heartbeat_")


# Messages -----------------------------------------------------------------------------------------

# Formatting an id costs nearly as much as the rest of a frame. In larger batches the last three
# digits come from a table, and the others are formatted once per 4096 ids.
_SMALL_BATCH_MAX = 6
_COUNTING_DIGITS = [b"%03x" % number for number in range(4096)]
_BATCH_HEADER = Struct(">iiqH13s3s")


def render_messages(bodies: Sequence[bytes], first_id: int, timestamp_ns: int) -> list[bytes]:
    """Frames of new messages (attempt 1) with consecutive ids from `first_id`."""
    if len(bodies) == 1:  # the usual case: skipping the loop saves a quarter of the time
        size = len(bodies[0]) + _BODY_OVERHEAD
        header = _pack_header(size, FRAME_MESSAGE, timestamp_ns, 1, hexlify(first_id.to_bytes(8)))
        return [header + bodies[0]]
    if len(bodies) > _SMALL_BATCH_MAX:
        return _render_many(bodies, first_id, timestamp_ns)
    frames = []
    id = first_id
    for body in bodies:
        size = len(body) + _BODY_OVERHEAD
        digits = hexlify(id.to_bytes(8))
        frames.append(_pack_header(size, FRAME_MESSAGE, timestamp_ns, 1, digits) + body)
        id += 1
    return frames


def _render_many(bodies: Sequence[bytes], first_id: int, timestamp_ns: int) -> list[bytes]:
    pack = _BATCH_HEADER.pack
    frames: list[bytes] = []
    remaining = iter(bodies)
    while len(frames) < len(bodies):
        shared, counting = divmod(first_id + len(frames), len(_COUNTING_DIGITS))
        prefix = b"%013x" % shared
        run = _COUNTING_DIGITS[counting : counting + len(bodies)]
        frames += [
            pack(len(body) + _BODY_OVERHEAD, FRAME_MESSAGE, timestamp_ns, 1, prefix, digits) + body
            for digits, body in zip(run, remaining, strict=False)
        ]
    return frames


def message_id(frame: bytes) -> bytes:
    return frame[18:34]


_id_of = itemgetter(slice(18, 34))


def message_ids(frames: Sequence[bytes]) -> list[bytes]:
    return list(map(_id_of, frames))


def ids_to_ints(ids: Sequence[bytes]) -> tuple[int, ...]:
    """Convert ids to integers, all in one call.

    Raises ValueError unless every id is 16 lowercase hex digits: uppercase digits would allow two
    ids for one number.
    """
    digits = b"".join(ids)
    try:
        numbers = struct.unpack(f">{len(ids)}Q", bytes.fromhex(digits.decode("ascii")))
    except (ValueError, struct.error):
        raise ValueError("an id is not 16 hex digits") from None
    if digits != digits.lower():
        raise ValueError("an id has uppercase hex digits")
    return numbers


def attempts(frame: bytes) -> int:
    """Number of deliveries, including this one."""
    number: int = _ATTEMPTS.unpack_from(frame, _ATTEMPTS_AT)[0]
    return number


def with_attempts(frame: bytes, attempts: int) -> bytes:
    """The frame with another number of attempts, which wraps at 65536 as in NSQ."""
    return frame[:_ATTEMPTS_AT] + _ATTEMPTS.pack(attempts & 0xFFFF) + frame[_ID_AT:]


def timestamp_ns(frame: bytes) -> int:
    """Time of the publish."""
    number: int = _TIMESTAMP.unpack_from(frame, _TIMESTAMP_AT)[0]
    return number


_timestamp_of = itemgetter(slice(8, 16))


def timestamp_counts(frames: Iterable[bytes]) -> list[tuple[int, int]]:
    """Each distinct timestamp with its number of frames; all messages of a batch share one."""
    counts = Counter(map(_timestamp_of, frames))
    timestamps_ns = struct.unpack(f">{len(counts)}q", b"".join(counts))
    return list(zip(timestamps_ns, counts.values(), strict=True))


def body(frame: bytes) -> bytes:
    return frame[MESSAGE_HEADER_BYTES:]


# Parsing, for clients -----------------------------------------------------------------------------


class ResponseFrame(NamedTuple):
    """The response to a command, or a heartbeat."""

    data: bytes


class ErrorFrame(NamedTuple):
    """A command failed. The server then closes the connection, unless the code is E_FIN_FAILED,
    E_REQ_FAILED or E_TOUCH_FAILED."""

    code: str
    detail: str


class MessageFrame(NamedTuple):
    """A delivered message."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


Frame: TypeAlias = ResponseFrame | ErrorFrame | MessageFrame

_Made = TypeVar("_Made")


class FrameReader:
    """Parser of a server's bytes. It cannot be used after an error."""

    __slots__ = ("_buffer", "_size_max")

    def __init__(self, size_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = ReceiveBuffer()
        self._size_max = size_max

    def receive_data(self, data: bytes) -> None:
        """Buffer received bytes."""
        self._buffer.append(data)

    def next_frame(self) -> Frame | None:
        """The next frame, or None if it is incomplete.

        Raises ProtocolError if the bytes are not frames.
        """
        buffer = self._buffer
        if not buffer.is_ready():
            return None
        data, start = buffer.data, buffer.start
        data_at = start + _SIZE_AND_TYPE.size
        if data_at > len(data):
            buffer.want(_SIZE_AND_TYPE.size)
            return None
        size, kind = _SIZE_AND_TYPE.unpack_from(data, start)
        if not _TYPE_BYTES <= size <= self._size_max:
            if data[start : start + _TYPE_BYTES] == b"HTTP":
                raise _not_a_frame("it is HTTP, which has another port")  # 4151 instead of 4150
            raise _not_a_frame(f"size {size} out of range {_TYPE_BYTES}-{self._size_max}")
        stop = start + _SIZE_BYTES + size
        if stop > len(data):
            buffer.want(stop - start)
            return None
        buffer.start = stop
        return _parse_frame(kind, data[data_at:stop])

    def next_messages(self, make: Callable[[int, int, bytes, bytes], _Made]) -> list[_Made]:
        """The consecutive messages that are next, as results of `make(timestamp_ns, attempts, id,
        body)`.

        Stops before a frame of another type, an incomplete frame and an invalid one: `next_frame`
        handles these.
        """
        buffer = self._buffer
        if not buffer.is_ready():
            return []
        data, start = buffer.data, buffer.start
        header_stop_max, size_max = len(data) - MESSAGE_HEADER_BYTES, self._size_max
        unpack = _MESSAGE_HEADER.unpack_from
        made: list[_Made] = []
        while start <= header_stop_max:
            size, kind, timestamp_ns, attempts, id = unpack(data, start)
            stop = start + _SIZE_BYTES + size
            if kind != FRAME_MESSAGE or stop > len(data) or not _BODY_OVERHEAD <= size <= size_max:
                break
            body = data[start + MESSAGE_HEADER_BYTES : stop]
            made.append(make(timestamp_ns, attempts, id, body))
            start = stop
        buffer.start = start
        return made

    def take_oks(self, count_max: int) -> int:
        """Remove the consecutive OKs that are next; returns their number."""
        buffer = self._buffer
        if not buffer.is_ready():
            return 0
        count, data, start = 0, buffer.data, buffer.start
        while count < count_max and data.startswith(OK, start):
            start += len(OK)
            count += 1
        buffer.start = start
        return count

    def take_unread(self) -> bytes:
        """Remove and return the unparsed bytes, when TLS or compression starts."""
        return self._buffer.take_all()


def _parse_frame(kind: int, data: bytes) -> Frame:
    if kind == FRAME_MESSAGE:
        if len(data) < _MESSAGE_DATA.size:
            raise _not_a_frame(f"message of {len(data)} bytes is too short")
        timestamp, attempt, message_id = _MESSAGE_DATA.unpack_from(data)
        return MessageFrame(timestamp, attempt, message_id, data[_MESSAGE_DATA.size :])
    if kind == FRAME_RESPONSE:
        return ResponseFrame(data)
    if kind == FRAME_ERROR:
        code, _, detail = verbatim(data).partition(" ")
        return ErrorFrame(code, detail)
    if kind.to_bytes(_TYPE_BYTES, signed=kind < 0) + data == b"E_BAD_PROTOCOL":
        # nsqlookupd's error responses have no frame type.
        raise _not_a_frame("it is the TCP port of nsqlookupd, which is for nsqd")
    raise _not_a_frame(f"type {kind} is unknown")


def _not_a_frame(reason: str) -> ProtocolError:
    return ProtocolError("E_INVALID", f"not a frame: {reason}")
