"""TLS between a listener's transport and the protocol that it serves.

To the transport this is a protocol, to the protocol a transport: each sees what it would see
without the other. The protocol is made when the handshake is over, so that whoever cannot finish
one costs no more than this. Differs from the loop's own TLS in that a refused peer is told why, by
an alert, and we are too; that each connection has the certificates of its moment; and that nothing
of a connection which has ended waits for the garbage collector.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from penstock.common.errors import TlsError
from penstock.net.listener import peer_address
from penstock.net.tls.contexts import ReloadableContext
from penstock.net.tls.layer import TlsLayer

__all__ = ["over_tls"]

# How long a peer may take for its part of a handshake; NSQ allows as much.
HANDSHAKE_SECONDS: Final = 5.0

Factory = Callable[[], asyncio.BaseProtocol]
OnFailure = Callable[[str, TlsError], None]


def over_tls(context: ReloadableContext, factory: Factory, on_failure: OnFailure) -> Factory:
    """What makes protocols for a listener, such that `factory`'s are served by TLS.

    `on_failure` is told the address of a peer that does not get through its handshake, or breaks
    TLS later, and why.
    """
    return partial(_TlsTransport, context, factory, on_failure)


class _TlsTransport(asyncio.Transport, asyncio.Protocol):
    def __init__(self, context: ReloadableContext, factory: Factory, on_failure: OnFailure) -> None:
        super().__init__()
        self._layer: TlsLayer | None = TlsLayer(context.current)  # none once the peer has gone
        self._factory = factory
        self._on_failure = on_failure
        self._below: asyncio.Transport
        self._above: asyncio.Protocol | None = None
        self._timeout: asyncio.TimerHandle
        self._is_paused = False  # what has been received is not to be read
        self._has_ended = False  # the protocol knows that nothing more comes

    # What the transport below calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(HANDSHAKE_SECONDS, self._give_up)

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
        # The protocol still knows us, and may well be part of a cycle: the memory of TLS, which is
        # most of what a connection takes, shall not wait for its end.
        above, self._above, self._layer = self._above, None, None
        if above is not None:
            above.connection_lost(exc)

    # What the protocol above calls.

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
            # Not at once: the protocol may be amid reading.
            asyncio.get_running_loop().call_soon(self._read)

    def is_reading(self) -> bool:
        return not self._is_paused and self._below.is_reading()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self
        return self._below.get_extra_info(name, default)

    # Between the two.

    def _read(self) -> None:
        """Hands on what has been received, as far as the protocol wants it."""
        layer = self._layer
        if layer is None or self._below.is_closing():
            return
        try:
            if layer.handshaking and layer.shake_hands():
                self._begin()
            while self._is_readable() and (piece := layer.read()):
                assert self._above is not None
                self._above.data_received(piece)
            self._send(layer.pending())
        except TlsError as failure:
            self._fail(failure)
            return
        if layer.ended and not self._end():
            self.close()

    def _is_readable(self) -> bool:
        return self._above is not None and not self._is_paused and not self._below.is_closing()

    def _begin(self) -> None:
        assert self._layer is not None
        self._timeout.cancel()
        self._send(self._layer.pending())
        self._above = cast("asyncio.Protocol", self._factory())
        self._above.connection_made(self)

    def _end(self) -> bool | None:
        """Tells the protocol, once, that nothing more comes; whether the connection is to stay."""
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

    def _give_up(self) -> None:
        failure = TlsError("tls: the handshake took too long")
        self._on_failure(peer_address(self._below), failure)
        self._below.abort()
