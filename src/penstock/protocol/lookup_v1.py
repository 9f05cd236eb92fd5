"""nsqlookupd's V1 protocol, both sides: nsqd's commands and the parser of responses; nsqlookupd's
`LookupServerConnection` and its events.

A connection begins with `MAGIC`. Commands are lines; IDENTIFY is followed by a sized JSON body. The
server answers each command, in order, with

    4 bytes, big-endian    size of the data
    data                   `OK`, a JSON object, or an error

Only the text distinguishes an error from other data. After an error the server closes the
connection, except after E_REGISTER_FAILED.

Penstock adds four things. `ping(draining=True)` tells nsqlookupd that this nsqd accepts no more
messages; NSQ ignores parameters of PING. E_REGISTER_FAILED is the response to a REGISTER
when the limit on names is reached; NSQ's nsqd ignores responses to REGISTER. If an nsqd sends its
`node_id` with IDENTIFY, the response lists the node ids of the other nsqds as `used_node_ids`, and
names one that has the same id in `node_id_used_by`; NSQ ignores unknown fields. If an nsqd leads a
replicated node, it sends the names of `cluster` and `node`, and its `epoch`: nsqlookupd then ends
the connections of earlier leaders of the node.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeAlias

from penstock.common.errors import ProtocolError
from penstock.common.go_json import Convert, as_int64, as_string, read_fields, to_json
from penstock.common.go_text import to_bytes, verbatim
from penstock.common.names import maybe_name
from penstock.common.node_id import NODE_IDS
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.events import LINE_BYTES_MAX

__all__ = [
    "DRAINING",
    "MAGIC",
    "OK",
    "Event",
    "IdentifyPeer",
    "LookupServerConnection",
    "NsqdInfo",
    "Ping",
    "Register",
    "ResponseReader",
    "Unregister",
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

# The largest regular response is that to IDENTIFY, a few hundred bytes; an error may repeat a line.
RESPONSE_BYTES_MAX = 64 * 1024

# nsqd's IDENTIFY takes about 200 bytes. NSQ allocates any size.
IDENTIFY_BYTES_MAX = 64 * 1024

_SIZE = Struct(">i")
_REGISTER_FAILED = "E_REGISTER_FAILED"
_ERROR = re.compile(rb"E_[A-Z_]+(?= |\Z)")


# Client: commands ---------------------------------------------------------------------------------


def identify(peer: Mapping[str, object]) -> bytes:
    """IDENTIFY. Required fields: `broadcast_address`, `tcp_port`, `http_port`, `version`."""
    return b"IDENTIFY\n" + response(to_json(dict(peer)))


def register(topic: str, channel: str = "") -> bytes:
    """Register this nsqd for a topic, and for a channel of it if given."""
    return _line("REGISTER", topic, channel)


def unregister(topic: str, channel: str = "") -> bytes:
    """Unregister this nsqd from a channel, or from a topic with all its channels."""
    return _line("UNREGISTER", topic, channel)


def ping(*, draining: bool = False) -> bytes:
    """Heartbeat; `draining` must be repeated in each one."""
    return b"PING " + DRAINING + b"\n" if draining else b"PING\n"


def _line(*words: str) -> bytes:
    return " ".join(filter(None, words)).encode() + b"\n"


# Client: responses --------------------------------------------------------------------------------


def response(data: bytes) -> bytes:
    """A response: the size, then the data."""
    return _SIZE.pack(len(data)) + data


def register_failed(reason: Exception) -> ProtocolError:
    """E_REGISTER_FAILED, the only error that does not close the connection."""
    return ProtocolError(_REGISTER_FAILED, f"REGISTER failed {reason}", fatal=False)


def error(failure: ProtocolError) -> bytes:
    """The response that reports an error."""
    return response(to_bytes(str(failure)))


OK = response(b"OK")


class ResponseReader:
    """Parser of the server's bytes."""

    __slots__ = ("_buffer", "_size_max")

    def __init__(self, size_max: int = RESPONSE_BYTES_MAX) -> None:
        self._buffer = ReceiveBuffer()
        self._size_max = size_max

    def receive_data(self, data: bytes) -> None:
        """Buffer received bytes."""
        self._buffer.append(data)

    def next_response(self) -> bytes | None:
        """The data of the next response, or None if it is incomplete.

        Raises ProtocolError: the server's error, or E_INVALID if the bytes are not a response. If
        it is fatal, close the connection.
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
        return _raise_if_error(data[start + _SIZE.size : stop])


def _raise_if_error(data: bytes) -> bytes:
    if _ERROR.match(data):
        code, _, detail = verbatim(data).partition(" ")
        raise ProtocolError(code, detail, fatal=code != _REGISTER_FAILED)
    return data


# Server: events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdInfo:
    """An nsqd's IDENTIFY, with the protocol's field names."""

    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    hostname: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    node_id: int | None = None
    cluster: str = ""
    """Cluster of a replicated node; empty if the nsqd is not replicated."""
    node: str = ""
    epoch: int = 0

    def is_same_replicated_node(self, other: "NsqdInfo") -> bool:
        """Whether both are members of one replicated node."""
        return bool(self.cluster) and (self.cluster, self.node) == (other.cluster, other.node)


@dataclass(frozen=True, slots=True)
class IdentifyPeer:
    """IDENTIFY of an nsqd. nsqd sends it once, before any REGISTER."""

    peer: NsqdInfo


@dataclass(frozen=True, slots=True)
class Register:
    """Register the nsqd for a topic, and for a channel of it unless `channel` is empty."""

    topic: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Unregister:
    """Unregister the nsqd from a channel; if `channel` is empty, from the topic and all its
    channels."""

    topic: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat. Each one tells whether the nsqd is draining."""

    draining: bool = False


Event: TypeAlias = IdentifyPeer | Register | Unregister | Ping


# Server: connection -------------------------------------------------------------------------------


class LookupServerConnection:
    """Parser of one nsqd's bytes.

    Pass received bytes to `receive_data`, take events from `next_event` until it returns None, and
    call `receive_eof` when the stream ends. `next_event` raises ProtocolError at most once, to be
    sent before closing: all errors here are fatal. The connection then ignores further bytes and
    returns no more events.

    NSQ reads lines of any length and allocates any announced body size. Here both are
    limited, far above what nsqd sends; exceeding a limit is an error.
    """

    __slots__ = ("_buffer", "_is_closed", "_is_identified", "_shortfall", "has_magic")

    def __init__(self) -> None:
        self.has_magic = False
        self._buffer = ReceiveBuffer()
        self._is_identified = False
        self._is_closed = False
        # The error to send if the stream ends now, inside a body.
        self._shortfall: ProtocolError | None = None

    @property
    def is_inside_command(self) -> bool:
        """Whether a command, or the magic, is incomplete."""
        return not self._is_closed and not self._buffer.is_empty()

    def receive_data(self, data: bytes) -> None:
        """Buffer received bytes for `next_event`."""
        if not self._is_closed:
            self._buffer.append(data)

    def next_event(self) -> Event | None:
        """The next event, or None if it is incomplete."""
        if self._is_closed or not self._buffer.is_ready():
            return None
        try:
            if not self.has_magic and not self._read_magic():
                return None
            return self._next_command()
        except ProtocolError:
            self._close()
            raise

    def receive_eof(self) -> None:
        """End the stream; call it after `next_event` has returned None.

        Raises the ProtocolError to send if the stream ends inside a body.
        """
        shortfall = self._shortfall
        self._close()
        if shortfall is not None:
            raise shortfall

    def _read_magic(self) -> bool:
        self.has_magic = self._buffer.skip_magic(MAGIC)
        return self.has_magic

    def _next_command(self) -> Event | None:
        buffer = self._buffer
        data, start = buffer.data, buffer.start
        newline = data.find(b"\n", start, start + LINE_BYTES_MAX)
        if newline < 0:
            if len(data) - start >= LINE_BYTES_MAX:
                raise _invalid(f"no newline within {LINE_BYTES_MAX} bytes")
            buffer.want(len(data) - start + 1)
            return None
        name, *params = data[start:newline].strip().split(b" ")
        if name == b"IDENTIFY":
            return self._maybe_identify(newline + 1)
        buffer.start = newline + 1
        decode = _DECODERS.get(name)
        if decode is None:
            raise _invalid(f"invalid command {verbatim(name)}")
        if not self._is_identified and decode is not _ping:
            raise _invalid("client must IDENTIFY")
        return decode(params)

    def _maybe_identify(self, size_at: int) -> IdentifyPeer | None:
        if self._is_identified:
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
        event = IdentifyPeer(_parse_identify(buffer.data[body_at:stop]))
        self._is_identified = True
        return event

    def _await_body(self, stop: int, shortfall: str) -> None:
        """Wait for the bytes up to `stop`; the line is parsed again then."""
        self._shortfall = _bad_body(shortfall)
        self._buffer.want(stop - self._buffer.start)

    def _close(self) -> None:
        self._is_closed = True
        self._shortfall = None
        self._buffer = ReceiveBuffer()


# Server: parameters -------------------------------------------------------------------------------


def _ping(params: list[bytes]) -> Ping:
    # nsq compat: other parameters are ignored.
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


def _topic_and_channel(command: str, params: list[bytes]) -> tuple[str, str]:
    if not params:
        raise _invalid(f"{command} insufficient number of params")
    raw_topic, raw_channel = params[0], params[1] if len(params) > 1 else b""
    topic, channel = maybe_name(raw_topic), maybe_name(raw_channel)
    if topic is None:
        text = f"{command} topic name '{verbatim(raw_topic)}' is not valid"
        raise ProtocolError("E_BAD_TOPIC", text)
    if raw_channel and channel is None:
        text = f"{command} channel name '{verbatim(raw_channel)}' is not valid"
        raise ProtocolError("E_BAD_CHANNEL", text)
    return topic, channel or ""


def _as_node_id(value: object) -> int | None:
    """The node id in an IDENTIFY; None if the value is invalid, which is no error: NSQ ignores the
    field."""
    try:
        node_id = as_int64(value)
    except ValueError:
        return None
    return node_id if 0 <= node_id < NODE_IDS else None


def _as_epoch(value: object) -> int:
    """The epoch in an IDENTIFY; 0 if the value is invalid."""
    try:
        return as_int64(value)
    except ValueError:
        return 0


def _as_optional_name(value: object) -> str:
    """A field that NSQ ignores; empty if the value is invalid."""
    return value if isinstance(value, str) else ""


_PEER_FIELDS: Mapping[str, Convert] = {
    "remote_address": as_string,  # nsq compat: must have the right type, and is not used
    "hostname": as_string,
    "broadcast_address": as_string,
    "tcp_port": as_int64,
    "http_port": as_int64,
    "version": as_string,
    "topology_zone": as_string,
    "topology_region": as_string,
    "node_id": _as_node_id,
    "cluster": _as_optional_name,
    "node": _as_optional_name,
    "epoch": _as_epoch,
}
_REQUIRED = ("broadcast_address", "tcp_port", "http_port", "version")


def _parse_identify(body: bytes) -> NsqdInfo:
    try:
        fields: dict[str, Any] = read_fields(body, _PEER_FIELDS)
    except ValueError:
        raise _bad_body("IDENTIFY failed to decode JSON body") from None
    if not all(fields.get(name) for name in _REQUIRED):
        raise _bad_body("IDENTIFY missing fields")
    fields.pop("remote_address", None)
    return NsqdInfo(**fields)


def _invalid(detail: str) -> ProtocolError:
    return ProtocolError("E_INVALID", detail)


def _bad_body(detail: str) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", detail)
