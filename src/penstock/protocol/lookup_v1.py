"""nsqlookupd's V1 protocol, as nsqd speaks it: commands out, responses in.

A connection begins with `MAGIC`. Commands are lines, IDENTIFY's followed by a sized JSON body; each
is answered, in order, by

    4 bytes, big-endian    size of the data
    data                   `OK`, a JSON object, or an error

with nothing to tell an error from other data but its text: `ResponseReader` does. An error is the
last thing that the server says, but for E_REGISTER_FAILED.

Two things are our own. `ping(draining=True)` tells a Penstock nsqlookupd that this nsqd takes no
more messages; another one ignores what follows the word, and answers as ever. E_REGISTER_FAILED is
what a Penstock nsqlookupd answers when it has as many names as it may have; a stock nsqd does not
look at the answer to a REGISTER, and goes on.

The other side of all this is `penstock.protocol.lookup_server`.
"""

import re
from collections.abc import Mapping
from struct import Struct

from penstock.common.errors import ProtocolError
from penstock.common.go_struct import write_fields
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.text import to_bytes, verbatim

__all__ = [
    "DRAINING",
    "MAGIC",
    "OK",
    "ResponseReader",
    "error",
    "identify",
    "ping",
    "register",
    "register_failed",
    "response",
    "unregister",
]

MAGIC = b"  V1"
"""The first bytes on a connection."""

DRAINING = b"draining"

# The largest response is the server's own IDENTIFY, some hundred bytes; an error may repeat a line.
RESPONSE_BYTES_MAX = 64 * 1024

_SIZE = Struct(">i")
_REGISTER_FAILED = "E_REGISTER_FAILED"
_ERROR = re.compile(rb"E_[A-Z_]+(?= |\Z)")


# Commands -----------------------------------------------------------------------------------------


def identify(peer: Mapping[str, object]) -> bytes:
    """Who we are. nsqlookupd insists on `broadcast_address`, `tcp_port`, `http_port`, `version`."""
    return b"IDENTIFY\n" + response(write_fields(peer))


def register(topic: str, channel: str = "") -> bytes:
    """We have this topic, or this channel of it, which implies the topic."""
    return _line("REGISTER", topic, channel)


def unregister(topic: str, channel: str = "") -> bytes:
    """We have this channel no more, or this topic, with all of its channels."""
    return _line("UNREGISTER", topic, channel)


def ping(*, draining: bool = False) -> bytes:
    """We are still here; and, while that is so, draining."""
    return b"PING " + DRAINING + b"\n" if draining else b"PING\n"


def _line(*words: str) -> bytes:
    return " ".join(filter(None, words)).encode() + b"\n"


# Responses ----------------------------------------------------------------------------------------


def response(data: bytes) -> bytes:
    """Data after its size."""
    return _SIZE.pack(len(data)) + data


def register_failed(reason: Exception) -> ProtocolError:
    """The one error after which a connection goes on."""
    return ProtocolError(_REGISTER_FAILED, f"REGISTER failed {reason}", fatal=False)


def error(refusal: ProtocolError) -> bytes:
    """What a peer is told."""
    return response(to_bytes(str(refusal)))


OK = response(b"OK")


class ResponseReader:
    """A server's bytes in, the data of its responses out."""

    __slots__ = ("_buffer", "_size_max")

    def __init__(self, size_max: int = RESPONSE_BYTES_MAX) -> None:
        self._buffer = ReceiveBuffer()
        self._size_max = size_max

    def receive_data(self, data: bytes) -> None:
        """Take what the server sent."""
        self._buffer.append(data)

    def next_response(self) -> bytes | None:
        """The data of the next response, or None if it is not all here.

        Raises ProtocolError: the server's, or E_INVALID for what cannot be a response. Unless it is
        not fatal, that is the end of the conversation.
        """
        buffer = self._buffer
        if not buffer.is_ready():
            return None
        data, start = buffer.data, buffer.start
        if len(data) - start < _SIZE.size:
            buffer.want(_SIZE.size)
            return None
        (size,) = _SIZE.unpack_from(data, start)
        if not 0 <= size <= self._size_max:
            raise ProtocolError("E_INVALID", f"not a response: size {size} out of range")
        stop = start + _SIZE.size + size
        if stop > len(data):
            buffer.want(stop - start)
            return None
        buffer.start = stop
        return _without_error(data[start + _SIZE.size : stop])


def _without_error(data: bytes) -> bytes:
    if _ERROR.match(data):
        code, _, detail = verbatim(data).partition(" ")
        raise ProtocolError(code, detail, fatal=code != _REGISTER_FAILED)
    return data
