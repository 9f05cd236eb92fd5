"""TLS of one connection: `TlsLayer`, without I/O, and `wrap_in_tls`, for a listener's connections.

Pass received bytes to `TlsLayer.receive` and take plain bytes from `read`. After each `read`, send
the result of `pending`: handshake messages, alerts, key updates. `encode` returns pending bytes and
its own in the right order. A client has pending bytes from the start.

Renegotiation is rejected; the connection continues.

Differences of `wrap_in_tls` from the event loop's TLS: a rejected peer gets an alert and the server
learns the reason; each connection uses the certificates current at its start; and the memory of a
closed connection is freed without the garbage collector.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, cast

from penstock.common.errors import TlsError
from penstock.net.listener import peer_address
from penstock.net.tls.contexts import ReloadableContext

__all__ = ["TlsInfo", "TlsLayer", "wrap_in_tls"]

# Maximum bytes and records per `read`, and the maximum size of a record. A record may contain only
# one byte, so that both limits are needed.
PIECE_BYTES_MAX: Final = 256 * 1024
RECORDS_PER_READ: Final = 256
RECORD_BYTES_MAX: Final = 16 * 1024

# Maximum duration of a handshake; the same as in NSQ.
HANDSHAKE_SECONDS: Final = 5.0

# From OpenSSL's names to those of Go and NSQ.
_VERSIONS: Final = {
    "TLSv1": "TLS1.0",
    "TLSv1.1": "TLS1.1",
    "TLSv1.2": "TLS1.2",
    "TLSv1.3": "TLS1.3",
}

# Standard names, which Go and `/stats` use, by OpenSSL's name where it differs: the default suites
# of TLS 1.2 and older.
_SUITE_NAMES: Final = {
    "ECDHE-ECDSA-AES256-GCM-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-CHACHA20-POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "ECDHE-RSA-CHACHA20-POLY1305": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "ECDHE-ECDSA-AES256-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
    "ECDHE-RSA-AES256-SHA384": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
    "ECDHE-ECDSA-AES128-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "ECDHE-RSA-AES128-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "DHE-RSA-AES256-GCM-SHA384": "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384",
    "DHE-RSA-AES128-GCM-SHA256": "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256",
    "DHE-RSA-CHACHA20-POLY1305": "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "DHE-RSA-AES256-SHA256": "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256",
    "DHE-RSA-AES128-SHA256": "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256",
    "DHE-RSA-AES256-SHA": "TLS_DHE_RSA_WITH_AES_256_CBC_SHA",
    "DHE-RSA-AES128-SHA": "TLS_DHE_RSA_WITH_AES_128_CBC_SHA",
    "AES256-GCM-SHA384": "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "AES128-GCM-SHA256": "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "AES256-SHA256": "TLS_RSA_WITH_AES_256_CBC_SHA256",
    "AES128-SHA256": "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsInfo:
    """Result of a handshake, with NSQ's names."""

    version: str  # TLS1.3
    cipher_suite: str  # TLS_AES_128_GCM_SHA256
    negotiated_protocol: str  # by ALPN; empty for none
    common_name: str  # of the peer's certificate; empty for none


class TlsLayer:
    """TLS of one connection, on either side."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "has_ended", "is_handshaking")

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        """`server_hostname` is the name that a client expects in the certificate."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side, server_hostname=server_hostname
        )
        self.is_handshaking = True  # nothing can be encoded yet
        self.has_ended = False  # the peer has closed its side
        self.do_handshake()

    def encode(self, data: bytes) -> bytes:
        """The bytes to send for `data`, after pending ones. The handshake must be complete."""
        assert not self.is_handshaking, "nothing can be sent during the handshake"
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]  # one record per call
        except ssl.SSLError as failure:
            raise _tls_error(failure) from None
        return self._outgoing.read()

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        self._incoming.write(data)

    def read(self) -> bytes:
        """The next plain bytes; empty if more must be received first.

        Raises TlsError; `pending` then contains the alert for the peer.
        """
        if self.is_handshaking and not self.do_handshake():
            return b""
        pieces: list[bytes] = []
        room = PIECE_BYTES_MAX
        while room > 0 and len(pieces) < RECORDS_PER_READ and (piece := self._read_record()):
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)

    def pending(self) -> bytes:
        """Bytes to send that do not come from `encode`."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """The last bytes to send. Reading is still possible."""
        if not self.is_handshaking:
            # The peer has not closed yet, or broke TLS before: ignored.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
        return self._outgoing.read()

    def info(self) -> TlsInfo:
        """Result of the handshake, which must be complete."""
        cipher = self._tls.cipher()
        version = self._tls.version()
        assert cipher is not None, "the handshake is not complete"
        assert version is not None
        return TlsInfo(
            version=_VERSIONS.get(version, version),
            cipher_suite=_SUITE_NAMES.get(cipher[0], cipher[0]),
            negotiated_protocol=self._tls.selected_alpn_protocol() or "",
            common_name=self._common_name(),
        )

    def do_handshake(self) -> bool:
        """Continue the handshake as far as possible; returns whether it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as failure:
            raise _tls_error(failure) from None
        self.is_handshaking = False
        return True

    def _read_record(self) -> bytes:
        try:
            piece = self._tls.read(RECORD_BYTES_MAX)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLZeroReturnError:
            piece = b""
        except ssl.SSLError as failure:
            raise _tls_error(failure) from None
        if not piece:
            self.has_ended = True
        return piece

    def _common_name(self) -> str:
        certificate: Any = self._tls.getpeercert() or {}
        parts = chain.from_iterable(certificate.get("subject", ()))
        return next((value for name, value in parts if name == "commonName"), "")


def _tls_error(failure: ssl.SSLError) -> TlsError:
    """OpenSSL's reason, without the position in its source."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return TlsError(f"tls: certificate verify failed: {failure.verify_message}")
    reason = failure.reason or failure.strerror or "broken"
    return TlsError(f"tls: {reason.replace('_', ' ').lower()}")


# Listener -----------------------------------------------------------------------------------------

Factory = Callable[[], asyncio.BaseProtocol]
OnFailure = Callable[[str, TlsError], None]


def wrap_in_tls(context: ReloadableContext, factory: Factory, on_failure: OnFailure) -> Factory:
    """A protocol factory for a listener that runs the protocols of `factory` over TLS.

    `on_failure(address, error)` is called if a handshake fails or the peer breaks TLS later.
    """
    return partial(_TlsTransport, context, factory, on_failure)


class _TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A protocol for the transport below, and a transport for the protocol above.

    The protocol above is created after the handshake, so that failed handshakes cost little.
    """

    def __init__(self, context: ReloadableContext, factory: Factory, on_failure: OnFailure) -> None:
        super().__init__()
        self._layer: TlsLayer | None = TlsLayer(context.current)  # None once the connection is lost
        self._factory = factory
        self._on_failure = on_failure
        self._below: asyncio.Transport
        self._above: asyncio.Protocol | None = None
        self._timeout: asyncio.TimerHandle
        self._is_paused = False  # reading is paused
        self._has_ended = False  # the protocol has received EOF

    # Called by the transport below.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(HANDSHAKE_SECONDS, self._on_timeout)

    def data_received(self, data: bytes) -> None:
        if self._layer is not None:
            self._layer.receive(data)
            self._read()

    def eof_received(self) -> bool | None:
        return self._end()

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timeout.cancel()
        # The protocol references this object and may be part of a cycle. Dropping the layer frees
        # its memory, most of a connection's, without the garbage collector.
        above, self._above, self._layer = self._above, None, None
        if above is not None:
            above.connection_lost(exc)

    # Called by the protocol above.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._layer is None or self._below.is_closing():
            return
        try:
            self._below.write(self._layer.encode(bytes(data)))
        except TlsError as failure:
            self._fail(failure)

    def close(self) -> None:
        if self._layer is not None and not self._below.is_closing():
            self._below.write(self._layer.close())
            self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._below.resume_reading()
            # Not directly: the protocol may be inside data_received.
            asyncio.get_running_loop().call_soon(self._read)

    def is_reading(self) -> bool:
        return not self._is_paused and self._below.is_reading()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._above = cast("asyncio.Protocol", protocol)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self
        return self._below.get_extra_info(name, default)

    # Internal.

    def _read(self) -> None:
        """Pass received bytes to the protocol until it pauses reading."""
        layer = self._layer
        if layer is None or self._below.is_closing():
            return
        try:
            if layer.is_handshaking and layer.do_handshake():
                self._start_protocol()
            while self._is_readable() and (piece := layer.read()):
                assert self._above is not None
                self._above.data_received(piece)
            self._send(layer.pending())
        except TlsError as failure:
            self._fail(failure)
            return
        if layer.has_ended and not self._end():
            self.close()

    def _is_readable(self) -> bool:
        return self._above is not None and not self._is_paused and not self._below.is_closing()

    def _start_protocol(self) -> None:
        assert self._layer is not None
        self._timeout.cancel()
        self._send(self._layer.pending())
        self._above = cast("asyncio.Protocol", self._factory())
        self._above.connection_made(self)

    def _end(self) -> bool | None:
        """Call the protocol's eof_received once; returns whether to keep the connection open."""
        if self._has_ended or self._above is None:
            return self._has_ended
        self._has_ended = True
        return self._above.eof_received()

    def _send(self, data: bytes) -> None:
        if data and not self._below.is_closing():
            self._below.write(data)

    def _fail(self, failure: TlsError) -> None:
        if self._layer is not None and not self._below.is_closing():
            self._on_failure(peer_address(self._below), failure)
            self._send(self._layer.pending())
            self._below.close()

    def _on_timeout(self) -> None:
        failure = TlsError("tls: the handshake took too long")
        self._on_failure(peer_address(self._below), failure)
        self._below.abort()
