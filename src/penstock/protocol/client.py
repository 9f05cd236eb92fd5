"""The client's side of a connection: a server's bytes in, events and commands out.

Pass received bytes to `receive_data`, take events from `next_event` until it returns None, and send
the result of `data_to_send` after each of these calls and after each command:

    connection = ClientConnection(Opening({"client_id": "me"}), make_message)
    socket.sendall(connection.data_to_send())           # magic and IDENTIFY
    connection.receive_data(socket.recv(65536))
    connection.next_event()                             # Opened, after the negotiation

Before `Opened`, the connection performs IDENTIFY, TLS, compression, AUTH and SUB, as far as they
are requested and granted. It answers heartbeats itself.

The caller passes a receipt (any object) with each publish and gets it back with the response. A
server answers publishes in the order in which they were sent, so that an OK or an error belongs to
the oldest receipt. This module knows neither time nor sockets.
"""

import json
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from penstock.common.errors import ProtocolError
from penstock.protocol import commands
from penstock.protocol.compression import Layer, LayerStack
from penstock.protocol.frames import FRAME_BYTES_MAX, ErrorFrame, Frame, FrameReader, ResponseFrame

__all__ = [
    "Agreed",
    "ClientConnection",
    "CloseWait",
    "Confirmed",
    "Delivered",
    "Event",
    "Opened",
    "Opening",
    "Rejected",
    "Tls",
]

_Message = TypeVar("_Message")
_Receipt = TypeVar("_Receipt")

# Errors after which the server keeps the connection open.
_NOT_FATAL = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})


class Tls(Layer, Protocol):
    """A layer that also sends bytes of its own, for its handshake."""

    def pending(self) -> bytes:
        """Bytes to send that do not come from `encode`."""
        ...


# Configuration and events -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opening:
    """Settings to negotiate before the connection is usable."""

    features: Mapping[str, object] = field(default_factory=dict)
    """Fields of IDENTIFY."""
    auth_secret: bytes = b""
    """Sent if the server requires AUTH."""
    topic: str = ""
    """Topic and channel to subscribe to; empty for a producer."""
    channel: str = ""
    make_tls: Callable[[], Tls] | None = None
    """Required if `features` request TLS. If the server offers none, the connection fails."""
    make_compression: Mapping[str, Callable[[int], Layer]] = field(default_factory=dict)
    """Factories of the layers `snappy` and `deflate`, called with the negotiated level."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Negotiated settings. The defaults are for a server without feature negotiation."""

    version: str = ""
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6
    auth_required: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The negotiation is complete: commands may be sent."""

    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Delivered(Generic[_Message]):
    """Results of `make_message`, in the order received."""

    messages: list[_Message]


@dataclass(frozen=True, slots=True)
class Confirmed(Generic[_Receipt]):
    """The publishes of these receipts are stored."""

    receipts: list[_Receipt]


@dataclass(frozen=True, slots=True)
class Rejected(Generic[_Receipt]):
    """The server sent an error. If it is fatal, the server closes the connection."""

    error: ProtocolError
    receipt: _Receipt | None = None
    """Receipt of the failed publish; None if another command failed."""


@dataclass(frozen=True, slots=True)
class CloseWait:
    """The response to CLS: no more messages follow."""


Event: TypeAlias = (
    Opened | Delivered[_Message] | Confirmed[_Receipt] | Rejected[_Receipt] | CloseWait
)


class ClientConnection(Generic[_Message, _Receipt]):
    """One connection to an nsqd, without I/O."""

    __slots__ = (
        "_frames",
        "_handshake",
        "_layers",
        "_make_message",
        "_opened",
        "_opening",
        "_outgoing",
        "_receipts",
        "_tls",
        "agreed",
    )

    def __init__(
        self,
        opening: Opening,
        make_message: Callable[[int, int, bytes, bytes], _Message],
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """`make_message` is called with timestamp_ns, attempts, id and body."""
        self.agreed = Agreed()
        self._opening = opening
        self._make_message = make_message
        self._frames = FrameReader(frame_bytes_max)
        self._layers = LayerStack()
        self._tls: Tls | None = None  # the lowest layer
        self._outgoing: list[bytes] = []
        self._receipts: deque[_Receipt] = deque()
        self._opened = False
        self._handshake = self._open()
        next(self._handshake)

    # Receiving.

    def receive_data(self, data: bytes) -> None:
        """Buffer received bytes. Raises CorruptStreamError if a layer cannot decode them."""
        if self._layers:
            self._layers.receive(data)
            self._read_layers()
        else:
            self._frames.receive_data(data)

    def next_event(self) -> Event[_Message, _Receipt] | None:
        """The next event, or None if it is incomplete.

        Raises ProtocolError if the server does not speak NSQ; the connection is then unusable.
        """
        frames = self._frames
        while True:
            messages = frames.next_messages(self._make_message)
            if messages:
                return Delivered(messages)
            frame = frames.next_frame()
            if frame is None:
                return None
            event = self._event_of(frame)
            if event is not None:
                return event

    @property
    def unconfirmed(self) -> int:
        """Number of publishes without a response."""
        return len(self._receipts)

    @property
    def oldest_unconfirmed(self) -> _Receipt | None:
        """The receipt of the publish that the server answers next; None if all are answered."""
        return self._receipts[0] if self._receipts else None

    def take_unconfirmed(self) -> list[_Receipt]:
        """Remove and return the receipts of publishes without a response, after the connection is
        lost. The server may have stored these publishes."""
        receipts = list(self._receipts)
        self._receipts.clear()
        return receipts

    # Sending.

    def data_to_send(self) -> bytes:
        """Remove and return the bytes to send."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def send(self, rendered: bytes) -> None:
        """Send commands that are not publishes: FIN, REQ, TOUCH, RDY, CLS, NOP."""
        self._outgoing.append(self._layers.encode(rendered) if self._layers else rendered)

    def publish(self, rendered: bytes, receipt: _Receipt) -> None:
        """Send a PUB, MPUB, DPUB or DMPUB. The event for its response, `Confirmed` or `Rejected`,
        contains `receipt`."""
        self._receipts.append(receipt)
        self.send(rendered)

    # Events.

    def _event_of(self, frame: Frame) -> Event[_Message, _Receipt] | None:
        if isinstance(frame, ErrorFrame):
            return self._rejected(frame)
        assert isinstance(frame, ResponseFrame), "`next_messages` takes messages"
        if frame.data == b"_heartbeat_":
            self.send(commands.nop())
            return None
        if not self._opened:
            return self._continue_opening(frame.data)
        if frame.data == b"OK" and self._receipts:
            return Confirmed(self._take_confirmed())
        if frame.data == b"CLOSE_WAIT":
            return CloseWait()
        raise _unexpected("unexpected response", frame.data)

    def _take_confirmed(self) -> list[_Receipt]:
        """The oldest receipt, and one for each further OK already received."""
        receipts = [self._receipts.popleft()]
        more = self._frames.take_oks(len(self._receipts))
        receipts += [self._receipts.popleft() for _ in range(more)]
        return receipts

    def _rejected(self, frame: ErrorFrame) -> Rejected[_Receipt]:
        fatal = frame.code not in _NOT_FATAL
        receipt = self._receipts.popleft() if fatal and self._receipts else None
        return Rejected(ProtocolError(frame.code, frame.detail, fatal=fatal), receipt)

    # Opening.

    def _continue_opening(self, answer: bytes) -> Opened | None:
        try:
            self._handshake.send(answer)
        except StopIteration:
            self._opened = True
            return Opened(self.agreed)
        return None

    def _open(self) -> Generator[None, bytes, None]:
        """Negotiate, as a generator: each yield waits for the next response."""
        opening = self._opening
        features = {"feature_negotiation": True, **opening.features}
        self._outgoing.append(commands.MAGIC)
        self.send(commands.identify(features))
        self.agreed = agreed = _parse_agreed((yield))
        if features.get("tls_v1"):
            if not agreed.tls:
                raise ProtocolError(
                    "E_INVALID", "nsqd does not offer TLS, which the client requires"
                )
            assert opening.make_tls is not None, "make_tls is missing"
            self._tls = opening.make_tls()
            self._add_layer(self._tls)
            _expect_ok("TLS", (yield))
        for name in ("snappy", "deflate"):
            if getattr(agreed, name):
                self._add_layer(opening.make_compression[name](agreed.deflate_level))
                _expect_ok(name, (yield))
        if agreed.auth_required:
            if not opening.auth_secret:
                raise ProtocolError("E_AUTH_FIRST", "nsqd requires AUTH, and no auth_secret is set")
            self.send(commands.auth(opening.auth_secret))
            yield
        if opening.topic:
            self.send(commands.sub(opening.topic, opening.channel))
            _expect_ok("SUB", (yield))

    def _add_layer(self, layer: Layer) -> None:
        unread = self._frames.take_unread()
        self._layers.push(layer)
        layer.receive(unread)
        self._read_layers()

    def _read_layers(self) -> None:
        try:
            while piece := self._layers.read():
                self._frames.receive_data(piece)
        finally:
            # Reading continues a TLS handshake; if it fails, the alert must be sent.
            if self._tls is not None:
                self._outgoing.append(self._tls.pending())


def _parse_agreed(answer: bytes) -> Agreed:
    """Raises ProtocolError if this is not a response to IDENTIFY."""
    if answer == b"OK":  # no feature negotiation
        return Agreed()
    try:
        fields = json.loads(answer)
        return Agreed(
            version=str(fields.get("version", "")),
            max_rdy_count=int(fields.get("max_rdy_count", 2500)),
            msg_timeout_ms=int(fields.get("msg_timeout", 60_000)),
            max_msg_timeout_ms=int(fields.get("max_msg_timeout", 900_000)),
            tls=bool(fields.get("tls_v1")),
            snappy=bool(fields.get("snappy")),
            deflate=bool(fields.get("deflate")),
            deflate_level=int(fields.get("deflate_level", 6)),
            auth_required=bool(fields.get("auth_required")),
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _unexpected("unexpected response to IDENTIFY", answer) from None


def _expect_ok(what: str, answer: bytes) -> None:
    if answer != b"OK":
        raise _unexpected(f"unexpected response to {what}", answer)


def _unexpected(what: str, data: bytes) -> ProtocolError:
    return ProtocolError("E_INVALID", f"{what}: {data[:100]!r}")
