"""A message as a line of JSON.

    {"seq":1763240000123456,"id":"0f4000064393a8c0","timestamp_ns":1763240000123456789,"body":"..."}

A body that is no UTF-8 is `body_base64` instead of `body`. Keys that do not apply are left out.
"""

from base64 import b64encode

import msgspec
from msgspec import UNSET, UnsetType

from penstock.wire import frames as wire

__all__ = ["json_line"]


class _Line(msgspec.Struct):
    seq: int
    id: str
    timestamp_ns: int
    due_ns: int | UnsetType
    attempts: int | UnsetType
    deadline_ns: int | UnsetType
    client_id: str | UnsetType
    client_address: str | UnsetType
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode


def json_line(
    seq: int,
    frame: bytes,
    *,
    due_ns: int = 0,
    attempts: int | UnsetType = UNSET,
    deadline_ns: int | UnsetType = UNSET,
    client_id: str | UnsetType = UNSET,
    client_address: str | UnsetType = UNSET,
) -> bytes:
    """The line of one message, its end included."""
    line = _Line(
        seq,
        wire.message_id(frame).decode(),
        wire.timestamp_ns(frame),
        due_ns or UNSET,
        attempts,
        deadline_ns,
        client_id,
        client_address,
    )
    body = wire.body(frame)
    try:
        line.body = body.decode()
    except UnicodeDecodeError:
        line.body_base64 = b64encode(body).decode()
    return _encode(line) + b"\n"
