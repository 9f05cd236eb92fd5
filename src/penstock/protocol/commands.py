"""Commands, which a client sends: one function renders one command.

Arguments are not checked; the server rejects invalid names and messages above its limits.
"""

import json
from collections.abc import Mapping, Sequence
from struct import Struct

__all__ = [
    "MAGIC",
    "auth",
    "cls",
    "dmpub",
    "dpub",
    "fin",
    "fins",
    "identify",
    "mpub",
    "nop",
    "pub",
    "rdy",
    "req",
    "sub",
    "touch",
]

_INT32 = Struct(">i")

MAGIC = b"  V2"
"""The first bytes on a connection."""


def identify(features: Mapping[str, object]) -> bytes:
    """Client metadata and features to negotiate."""
    return b"IDENTIFY\n" + _sized(json.dumps(features, separators=(",", ":")).encode())


def auth(secret: bytes) -> bytes:
    """The secret for the auth servers."""
    return b"AUTH\n" + _sized(secret)


def sub(topic: str, channel: str) -> bytes:
    """Subscribe to a channel."""
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes) -> bytes:
    """Publish one message."""
    return f"PUB {topic}\n".encode() + _sized(body)


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    """Publish one deferred message."""
    return f"DPUB {topic} {defer_ms}\n".encode() + _sized(body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """Publish several messages."""
    return f"MPUB {topic}\n".encode() + _sized(_multi_body(bodies))


def dmpub(topic: str, defer_ms: int, bodies: Sequence[bytes]) -> bytes:
    """Publish several deferred messages. An extension of Penstock."""
    return f"DMPUB {topic} {defer_ms}\n".encode() + _sized(_multi_body(bodies))


def rdy(count: int) -> bytes:
    """Set the maximum number of messages in flight."""
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    """Finish a message."""
    return b"FIN %b\n" % message_id


def fins(message_ids: Sequence[bytes]) -> bytes:
    """Finish messages, at least one: a FIN for each."""
    return b"FIN " + b"\nFIN ".join(message_ids) + b"\n"


def req(message_id: bytes, delay_ms: int) -> bytes:
    """Requeue a message."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    """Restart the timeout of a message."""
    return b"TOUCH %b\n" % message_id


def cls() -> bytes:
    """Stop deliveries."""
    return b"CLS\n"


def nop() -> bytes:
    """The response to a heartbeat."""
    return b"NOP\n"


def _sized(body: bytes) -> bytes:
    return _INT32.pack(len(body)) + body


def _multi_body(bodies: Sequence[bytes]) -> bytes:
    return _INT32.pack(len(bodies)) + b"".join(map(_sized, bodies))
