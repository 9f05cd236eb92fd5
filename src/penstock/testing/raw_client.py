"""A blocking connection to an nsqd that sends exactly the given bytes.

It sends nothing itself except responses to heartbeats, and these only while a call waits for
another frame.

    with RawClient("127.0.0.1:4150") as client:
        client.call(commands.sub("orders", "billing"))
        client.send(commands.rdy(1))
        message = client.message()
        client.send(commands.fin(message.id))

TLS and compression can be started together (`upgrade`) or separately.

All calls have a timeout and raise `TimeoutError`.
"""

import json
import socket
import ssl
import time
from struct import Struct
from types import TracebackType
from typing import Self

from penstock.common.errors import TlsError
from penstock.net.tls import TlsInfo, TlsLayer
from penstock.protocol import commands
from penstock.protocol.compression import Deflate, Layer, LayerStack, Snappy
from penstock.protocol.frames import ErrorFrame, Frame, FrameReader, MessageFrame, ResponseFrame

__all__ = ["DisconnectedError", "RawClient", "WireError"]

# Generous: on a busy machine, a response may take many seconds.
TIMEOUT_SECONDS = 60.0

_RECEIVE_BYTES = 256 * 1024

_LINGER = Struct("ii")


class DisconnectedError(Exception):
    """nsqd has closed the connection."""


class WireError(Exception):
    """nsqd has answered with an error frame."""

    def __init__(self, error: ErrorFrame) -> None:
        super().__init__(f"{error.code} {error.detail}")
        self.code = error.code
        self.detail = error.detail


class RawClient:
    """One connection; use it as a context manager."""

    def __init__(
        self,
        address: str,
        *,
        opening: bytes = commands.MAGIC,
        receive_buffer_bytes: int | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """`address` is host:port or the path of a unix socket; `opening` is sent first.

        `receive_buffer_bytes` sets the kernel's buffer size, to simulate a slow reader.
        """
        self._timeout_seconds = timeout_seconds
        self._frames = FrameReader()
        self._layers = LayerStack()
        self._tls: TlsLayer | None = None
        self._socket = _connect(address, receive_buffer_bytes, timeout_seconds)
        self.send(opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def fileno(self) -> int:
        """Descriptor of the socket, for select()."""
        return self._socket.fileno()

    @property
    def local_address(self) -> str:
        """Local host:port."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))
        self._socket.close()

    def end_sending(self) -> None:
        """Close the sending side; reading is still possible."""
        self._socket.shutdown(socket.SHUT_WR)

    # Sending.

    def send(self, *rendered: bytes) -> None:
        """Send commands or other bytes."""
        self.send_beneath(self.encoded(*rendered))

    def encoded(self, *rendered: bytes) -> bytes:
        """The bytes of these commands after compression and TLS; pass them to `send_beneath`."""
        return self._layers.encode(b"".join(rendered))

    def send_beneath(self, data: bytes) -> None:
        """Send bytes without TLS and compression."""
        self._socket.settimeout(self._timeout_seconds)
        self._socket.sendall(data)

    def send_some(self, data: bytes | memoryview, *, seconds: float) -> int:
        """Send as much as the kernel accepts within `seconds`; returns the number of bytes. Not for
        TLS or compression."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.send(data)
        except TimeoutError:
            return 0

    def call(self, command: bytes) -> bytes:
        """Send a command and return its response. Raises WireError."""
        self.send(command)
        return self.response()

    def identify(self, **features: object) -> dict[str, object]:
        """Send IDENTIFY; returns the negotiated features."""
        body = self.call(commands.identify({"feature_negotiation": True, **features}))
        answer: dict[str, object] = json.loads(body)
        return answer

    def subscribe(self, topic: str, channel: str, *, rdy: int = 0) -> None:
        """Subscribe, and allow `rdy` messages in flight."""
        self.call(commands.sub(topic, channel))
        if rdy:
            self.send(commands.rdy(rdy))

    # TLS and compression.

    def upgrade(
        self, *, tls: ssl.SSLContext | None = None, **features: object
    ) -> dict[str, object]:
        """Negotiate features, then start the granted TLS and compression. Returns the negotiated
        features."""
        answer = self.identify(tls_v1=tls is not None, **features)
        if tls is not None and answer["tls_v1"]:
            self.start_tls(tls)
            self._expect_ok()
        if answer["snappy"] or answer["deflate"]:
            self.compress(Snappy() if answer["snappy"] else Deflate())
            self._expect_ok()
        return answer

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the TLS handshake. Raises DisconnectedError or TlsError."""
        tls = TlsLayer(context, server_side=False, server_hostname="127.0.0.1")
        chunk = self._frames.take_unread()
        deadline = self._deadline(None)
        try:
            tls.receive(chunk)
            while not tls.do_handshake():
                self.send_beneath(tls.pending())
                chunk = self._receive_or_disconnected(deadline)
                tls.receive(chunk)
        except TlsError:
            self.send_beneath(tls.pending())
            self._frames.receive_data(chunk)
            raise
        self.send_beneath(tls.pending())
        self._layers.push(tls)
        self._tls = tls
        self._read_layers()

    def compress(self, layer: Layer) -> None:
        """Add a compression layer."""
        layer.receive(self._frames.take_unread())
        self._layers.push(layer)
        self._read_layers()

    def end_tls(self, *rendered: bytes) -> None:
        """Send commands and the end of TLS together."""
        assert self._tls is not None, "there is no TLS"
        self.send_beneath(self.encoded(*rendered) + self._tls.close())

    @property
    def tls(self) -> TlsInfo:
        """Result of the TLS handshake."""
        assert self._tls is not None, "there is no TLS"
        return self._tls.info()

    # Receiving.

    def response(self, *, seconds: float | None = None) -> bytes:
        """The next response other than a heartbeat. Raises WireError if it is an error."""
        frame = self._next_but_heartbeats(seconds)
        if isinstance(frame, ErrorFrame):
            raise WireError(frame)
        assert isinstance(frame, ResponseFrame), f"not a response: {frame}"
        return frame.data

    def message(self, *, seconds: float | None = None) -> MessageFrame:
        """The next message. Raises WireError if an error arrives instead."""
        frame = self._next_but_heartbeats(seconds)
        if isinstance(frame, ErrorFrame):
            raise WireError(frame)
        assert isinstance(frame, MessageFrame), f"not a message: {frame}"
        return frame

    def messages(self, count: int, *, seconds: float | None = None) -> list[MessageFrame]:
        """The next `count` messages, each within `seconds`."""
        return [self.message(seconds=seconds) for _ in range(count)]

    def next_frame(self, *, seconds: float | None = None) -> Frame:
        """The next frame, including heartbeats. Raises DisconnectedError or TimeoutError."""
        deadline = self._deadline(seconds)
        while (frame := self._frames.next_frame()) is None:
            self._receive_frames(self._receive_or_disconnected(deadline))
        return frame

    def received_frames(self) -> list[Frame]:
        """The frames already received, without waiting."""
        received = []
        while (frame := self._frames.next_frame()) is not None:
            received.append(frame)
        return received

    def read(self, size: int, *, seconds: float | None = None) -> bytes:
        """The next `size` raw bytes; fewer only if nsqd closes first. Not for TLS."""
        deadline = self._deadline(seconds)
        data = bytearray(self._frames.take_unread())
        while len(data) < size and (chunk := self._receive(deadline)):
            data += chunk
        self._frames.receive_data(bytes(data[size:]))
        return bytes(data[:size])

    def read_to_end(self, *, seconds: float | None = None) -> bytes:
        """All raw bytes until nsqd closes the connection. Raises TimeoutError."""
        deadline = self._deadline(seconds)
        data = bytearray(self._frames.take_unread())
        while chunk := self._receive(deadline):
            data += chunk
        return bytes(data)

    def is_silent(self, *, seconds: float) -> bool:
        """Whether nothing arrives within `seconds`, not even the end of the connection."""
        try:
            self.next_frame(seconds=seconds)
        except TimeoutError:
            return True
        except DisconnectedError:
            return False
        return False

    def _next_but_heartbeats(self, seconds: float | None) -> Frame:
        while (frame := self.next_frame(seconds=seconds)) == ResponseFrame(b"_heartbeat_"):
            self.send(commands.nop())
        return frame

    def _expect_ok(self) -> None:
        answer = self.response()
        assert answer == b"OK", f"not OK: {answer!r}"

    def _receive_frames(self, chunk: bytes) -> None:
        if not self._layers:
            self._frames.receive_data(chunk)
            return
        self._layers.receive(chunk)
        self._read_layers()

    def _read_layers(self) -> None:
        while piece := self._layers.read():
            self._frames.receive_data(piece)

    def _receive_or_disconnected(self, deadline: float) -> bytes:
        has_ended = self._tls is not None and self._tls.has_ended
        if has_ended or not (chunk := self._receive(deadline)):
            raise DisconnectedError("nsqd closed the connection")
        return chunk

    def _deadline(self, seconds: float | None) -> float:
        return time.monotonic() + (self._timeout_seconds if seconds is None else seconds)

    def _receive(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out waiting for nsqd")
        self._socket.settimeout(left)
        return self._socket.recv(_RECEIVE_BYTES)


def _connect(
    address: str, receive_buffer_bytes: int | None, timeout_seconds: float
) -> socket.socket:
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    internet = socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(internet if colon else socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_seconds)
        if receive_buffer_bytes is not None:
            # Before connecting: the window is negotiated then.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connection.connect((host, int(port)) if colon else address)
        if colon:
            # Otherwise the kernel delays a small command until the previous one is acknowledged.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection
