"""The transport of a connection with TLS, compression, or compression inside TLS."""

import asyncio
from contextlib import suppress

from penstock.common.errors import CorruptStreamError, TlsError
from penstock.net.tls import ReloadableContext, TlsInfo, TlsLayer
from penstock.protocol.compression import Layer, LayerStack

__all__ = ["UpgradedTransport"]

HANDSHAKE_SECONDS = 5.0


class UpgradedTransport:
    """Encrypts and compresses what is written; decrypts and decompresses what is received."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._layers = LayerStack()
        self._tls: TlsLayer | None = None
        self._received = asyncio.Event()  # there is more to read

    @property
    def tls(self) -> TlsInfo | None:
        """Properties of TLS after the handshake; None without TLS."""
        return None if self._tls is None or self._tls.is_handshaking else self._tls.info()

    @property
    def is_handshaking(self) -> bool:
        """Whether a TLS handshake is in progress: nothing else may be sent."""
        return self._tls is not None and self._tls.is_handshaking

    @property
    def has_ended(self) -> bool:
        """Whether the peer has closed TLS."""
        return self._tls is not None and self._tls.has_ended

    async def start_tls(self, context: ReloadableContext, received: bytes) -> None:
        """Does the TLS handshake; `received` are bytes of it that have already arrived. Raises
        TlsError, and then leaves the transport without TLS."""
        tls = TlsLayer(context.current)
        self._layers.push(tls)
        self._tls = tls
        tls.receive(received)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                while not tls.do_handshake():
                    self._send_pending()
                    await self._received.wait()
                    self._received.clear()
        except TimeoutError:
            self._remove_layers()
            raise TlsError("i/o timeout") from None
        except TlsError:
            self._send_pending()  # an alert
            self._remove_layers()
            raise
        self._send_pending()

    def compress(self, layer: Layer, received: bytes) -> None:
        """Starts compression; `received` are compressed bytes that have already arrived."""
        self._layers.push(layer)
        layer.receive(received)

    def write(self, data: bytes) -> None:
        """Sends bytes."""
        self._transport.write(self._layers.encode(data))

    def receive(self, data: bytes) -> None:
        """Adds bytes received from the peer."""
        if self._layers:
            self._layers.receive(data)
        self._received.set()

    def read(self) -> bytes:
        """The next piece of decoded bytes; empty if more data has to arrive. If it raises
        CorruptStreamError, the connection cannot be used any more."""
        try:
            return self._layers.read()
        finally:
            self._send_pending()

    def close_tls(self) -> None:
        """Sends the TLS close alert, if there is TLS."""
        if self._tls is not None:
            with suppress(CorruptStreamError):
                self._transport.write(self._tls.close())

    def _send_pending(self) -> None:
        if self._tls is not None and (pending := self._tls.pending()):
            self._transport.write(pending)

    def _remove_layers(self) -> None:
        self._layers.clear()
        self._tls = None
