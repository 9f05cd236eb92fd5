"""What a client sends: each function renders one command.

Arguments are taken as they are. A name that is not valid, or a message over the server's limits, is
for the server to refuse.
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
    """Who we are and what we would negotiate, as JSON."""
    return b"IDENTIFY\n" + _sized(json.dumps(features, separators=(",", ":")).encode())


def auth(secret: bytes) -> bytes:
    """The secret that the auth servers are asked about."""
    return b"AUTH\n" + _sized(secret)


def sub(topic: str, channel: str) -> bytes:
    """Become a consumer."""
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes) -> bytes:
    """Publish one message."""
    return f"PUB {topic}\n".encode() + _sized(body)


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    """Publish one message, to be delivered later."""
    return f"DPUB {topic} {defer_ms}\n".encode() + _sized(body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """Publish several messages at once."""
    return f"MPUB {topic}\n".encode() + _sized(_multi_body(bodies))


def dmpub(topic: str, defer_ms: int, bodies: Sequence[bytes]) -> bytes:
    """Publish several messages at once, to be delivered later. Only Penstock knows this one."""
    return f"DMPUB {topic} {defer_ms}\n".encode() + _sized(_multi_body(bodies))


def rdy(count: int) -> bytes:
    """Allow `count` messages in flight."""
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    """The message is done with."""
    return b"FIN %b\n" % message_id


def fins(message_ids: Sequence[bytes]) -> bytes:
    """These messages, one at least, are done with: a FIN for each."""
    return b"FIN " + b"\nFIN ".join(message_ids) + b"\n"


def req(message_id: bytes, delay_ms: int) -> bytes:
    """Deliver the message again, after a delay."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    """Start the message's timeout again."""
    return b"TOUCH %b\n" % message_id


def cls() -> bytes:
    """Want no further messages."""
    return b"CLS\n"


def nop() -> bytes:
    """Be alive: the answer to a heartbeat."""
    return b"NOP\n"


def _sized(body: bytes) -> bytes:
    return _INT32.pack(len(body)) + body


def _multi_body(bodies: Sequence[bytes]) -> bytes:
    return _INT32.pack(len(bodies)) + b"".join(map(_sized, bodies))
