"""Messages as lines of JSON.

    {"seq":1763240000123456,"id":"9a46643955d2a540","timestamp_ns":1763240000123456789,"body":"..."}

A body that is no UTF-8 is `body_base64` instead of `body`. Keys that do not apply are left out.
"""

from base64 import b64encode

import msgspec
from msgspec import UNSET, UnsetType

from penstock.protocol import frames as wire

__all__ = ["MessageLine", "encode_lines", "message_line"]


class MessageLine(msgspec.Struct, gc=False):
    """A message, and what is known of it where it was found."""

    seq: int
    id: str
    timestamp_ns: int
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    due_ns: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    deadline_ns: int | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    client_address: str | UnsetType = UNSET


def message_line(seq: int, frame: bytes, due_ns: int = 0) -> MessageLine:
    """A message as it was published; `due_ns` is the wall time until which it was deferred."""
    body = wire.body(frame)
    line = MessageLine(seq, wire.message_id(frame).decode(), wire.timestamp_ns(frame))
    try:
        line.body = body.decode()
    except UnicodeDecodeError:
        line.body_base64 = b64encode(body).decode()
    if due_ns:
        line.due_ns = due_ns
    return line


encode_lines = msgspec.json.Encoder().encode_lines
"""The bytes of lines, the end of the last one included."""
