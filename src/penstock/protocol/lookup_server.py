"""nsqlookupd's side of a V1 connection: a peer's bytes in, events out.

Feed what was received to `receive_data`, take events from `next_event` until it returns None, and
when the stream ends call `receive_eof`. `next_event` raises ProtocolError once, to be sent before
closing: here every error is fatal. Then the connection is dead: it takes no more bytes and gives no
more events.

The reference reads a line of any length and allocates whatever size a body announces. Here both
have a limit far above anything that nsqd sends, and a peer that exceeds it is told so.

It knows nothing of what is registered, and nothing of time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeAlias

from penstock.common.errors import ProtocolError
from penstock.common.go_struct import Convert, as_int64, as_string, read_fields
from penstock.common.names import maybe_name
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.limits import LINE_BYTES_MAX
from penstock.protocol.lookup_v1 import DRAINING, MAGIC
from penstock.protocol.text import verbatim

__all__ = [
    "Event",
    "Identify",
    "LookupServerConnection",
    "PeerInfo",
    "Ping",
    "Register",
    "Unregister",
]

# nsqd's own IDENTIFY takes some 200 bytes.
IDENTIFY_BYTES_MAX = 64 * 1024

_SIZE = Struct(">i")


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """What an nsqd says of itself, under the names on the wire."""

    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    hostname: str = ""
    topology_zone: str = ""
    topology_region: str = ""


@dataclass(frozen=True, slots=True)
class Identify:
    """Comes once, before anything is registered."""

    peer: PeerInfo


@dataclass(frozen=True, slots=True)
class Register:
    """The peer has this topic, and this channel of it unless that is empty."""

    topic: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Unregister:
    """The peer has this channel no more, or, if that is empty, this topic and its channels."""

    topic: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """The peer is there. Each one says anew whether it drains."""

    draining: bool = False


Event: TypeAlias = Identify | Register | Unregister | Ping


# The connection -----------------------------------------------------------------------------------


class LookupServerConnection:
    """One peer, from its magic to its end."""

    __slots__ = ("_buffer", "_dead", "_identified", "_shortfall", "greeted")

    def __init__(self) -> None:
        self.greeted = False  # has sent its magic
        self._buffer = ReceiveBuffer()
        self._identified = False
        self._dead = False
        # What the peer is told if its stream ends now, inside a body.
        self._shortfall: ProtocolError | None = None

    @property
    def is_within_command(self) -> bool:
        """Whether the peer has begun a command, or its magic, and not ended it."""
        return not self._dead and not self._buffer.is_empty()

    def receive_data(self, data: bytes) -> None:
        """Take what the peer sent. Nothing is parsed before `next_event`."""
        if not self._dead:
            self._buffer.append(data)

    def next_event(self) -> Event | None:
        """What the peer asks for next, or None if that is not all here."""
        if self._dead or not self._buffer.is_ready():
            return None
        try:
            if not self.greeted and not self._read_magic():
                return None
            return self._next_command()
        except ProtocolError:
            self._die()
            raise

    def receive_eof(self) -> None:
        """The stream has ended, and `next_event` has returned None.

        Raises the ProtocolError that the peer is owed if it broke off inside a body.
        """
        shortfall = self._shortfall
        self._die()
        if shortfall is not None:
            raise shortfall

    def _read_magic(self) -> bool:
        buffer = self._buffer
        magic = buffer.data[buffer.start : buffer.start + len(MAGIC)]
        if len(magic) < len(MAGIC):
            buffer.want(len(MAGIC))
            return False
        if magic != MAGIC:
            raise ProtocolError("E_BAD_PROTOCOL")
        buffer.start += len(MAGIC)
        self.greeted = True
        return True

    def _next_command(self) -> Event | None:
        buffer = self._buffer
        data, start = buffer.data, buffer.start
        newline = data.find(b"\n", start, start + LINE_BYTES_MAX)
        if newline < 0:
            if len(data) - start >= LINE_BYTES_MAX:
                raise _invalid(f"no newline within {LINE_BYTES_MAX} bytes")
            buffer.want(len(data) - start + 1)
            return None
        word, *params = data[start:newline].strip().split(b" ")
        if word == b"IDENTIFY":
            return self._maybe_identify(newline + 1)
        buffer.start = newline + 1
        decode = _DECODERS.get(word)
        if decode is None:
            raise _invalid(f"invalid command {verbatim(word)}")
        if not self._identified and decode is not _ping:
            raise _invalid("client must IDENTIFY")
        return decode(params)

    def _maybe_identify(self, size_at: int) -> Identify | None:
        if self._identified:
            raise _invalid("cannot IDENTIFY again")
        buffer = self._buffer
        body_at = size_at + _SIZE.size
        if body_at > len(buffer.data):
            self._await_body(body_at, "IDENTIFY failed to read body size")
            return None
        (size,) = _SIZE.unpack_from(buffer.data, size_at)
        if not 0 <= size <= IDENTIFY_BYTES_MAX:
            raise _bad_body(f"IDENTIFY body size {size} out of range 0-{IDENTIFY_BYTES_MAX}")
        stop = body_at + size
        if stop > len(buffer.data):
            self._await_body(stop, "IDENTIFY failed to read body")
            return None
        self._shortfall = None
        buffer.start = stop
        event = Identify(_peer_info(buffer.data[body_at:stop]))
        self._identified = True
        return event

    def _await_body(self, stop: int, shortfall: str) -> None:
        """The line stays unread, and is read again once the bytes up to `stop` are here."""
        self._shortfall = _bad_body(shortfall)
        self._buffer.want(stop - self._buffer.start)

    def _die(self) -> None:
        self._dead = True
        self._shortfall = None
        self._buffer = ReceiveBuffer()


# What follows a command's word --------------------------------------------------------------------


def _ping(params: list[bytes]) -> Ping:
    # nsq compat: whatever else follows the word says nothing.
    return Ping(draining=params[:1] == [DRAINING])


def _register(params: list[bytes]) -> Register:
    return Register(*_topic_and_channel("REGISTER", params))


def _unregister(params: list[bytes]) -> Unregister:
    return Unregister(*_topic_and_channel("UNREGISTER", params))


_DECODERS: Mapping[bytes, Callable[[list[bytes]], Event]] = {
    b"PING": _ping,
    b"REGISTER": _register,
    b"UNREGISTER": _unregister,
}


def _topic_and_channel(word: str, params: list[bytes]) -> tuple[str, str]:
    if not params:
        raise _invalid(f"{word} insufficient number of params")
    raw_topic, raw_channel = params[0], params[1] if len(params) > 1 else b""
    topic, channel = maybe_name(raw_topic), maybe_name(raw_channel)
    if topic is None:
        text = f"{word} topic name '{verbatim(raw_topic)}' is not valid"
        raise ProtocolError("E_BAD_TOPIC", text)
    if raw_channel and channel is None:
        text = f"{word} channel name '{verbatim(raw_channel)}' is not valid"
        raise ProtocolError("E_BAD_CHANNEL", text)
    return topic, channel or ""


_PEER_FIELDS: Mapping[str, Convert] = {
    "remote_address": as_string,  # nsq compat: has to be right, and is not used
    "hostname": as_string,
    "broadcast_address": as_string,
    "tcp_port": as_int64,
    "http_port": as_int64,
    "version": as_string,
    "topology_zone": as_string,
    "topology_region": as_string,
}
_REQUIRED = ("broadcast_address", "tcp_port", "http_port", "version")


def _peer_info(body: bytes) -> PeerInfo:
    try:
        fields: dict[str, Any] = read_fields(body, _PEER_FIELDS)
    except ValueError:
        raise _bad_body("IDENTIFY failed to decode JSON body") from None
    if not all(fields.get(name) for name in _REQUIRED):
        raise _bad_body("IDENTIFY missing fields")
    fields.pop("remote_address", None)
    return PeerInfo(**fields)


def _invalid(detail: str) -> ProtocolError:
    return ProtocolError("E_INVALID", detail)


def _bad_body(detail: str) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", detail)
