"""Frames, which is all that a server sends: rendered here, and read by the client's side.

    [int32 size of what follows][int32 type][data]

    type 0, response   data = text: OK, CLOSE_WAIT, _heartbeat_, or JSON
    type 1, error      data = `CODE detail`
    type 2, message    data = [int64 timestamp ns][uint16 attempts][16 bytes id][body]

All integers are big-endian. A message's id is 16 lowercase hex digits.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import ProtocolError

FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2


def response(data: bytes) -> bytes:
    """A response frame."""
    raise NotImplementedError


def error(err: ProtocolError) -> bytes:
    """An error frame: `CODE detail`."""
    raise NotImplementedError


OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
HEARTBEAT = b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"
CLOSE_WAIT = b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"


def render_messages(bodies: Sequence[bytes], first_id: int, timestamp_ns: int) -> list[bytes]:
    """The frames of a batch of new messages, whose ids count up from `first_id`."""
    raise NotImplementedError


def message_id(frame: bytes) -> bytes:
    return frame[18:34]


def message_ids(frames: Sequence[bytes]) -> list[bytes]:
    return [frame[18:34] for frame in frames]


def ids_to_ints(ids: Sequence[bytes]) -> Sequence[int]:
    """The numbers that the ids spell, all at once. Raises ValueError unless every id is hex."""
    raise NotImplementedError


def attempts(frame: bytes) -> int:
    raise NotImplementedError


def with_attempts(frame: bytes, attempts: int) -> bytes:
    """The same message, at its `attempts`th delivery; the count wraps at 65536 as the wire's does."""
    raise NotImplementedError


def timestamp_ns(frame: bytes) -> int:
    raise NotImplementedError


def body(frame: bytes) -> bytes:
    return frame[34:]
