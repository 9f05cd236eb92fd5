"""A connection's transport once TLS, compression, or one inside the other has been put on it."""

import asyncio
from contextlib import suppress

from penstock.common.errors import CorruptStreamError, TlsError
from penstock.net.tls import ReloadableContext, TlsInfo, TlsLayer
from penstock.protocol.compression import Layer, LayerStack

__all__ = ["UpgradedTransport"]

HANDSHAKE_SECONDS = 5.0


class UpgradedTransport:
    """Plain bytes on this side, what the peer can read on the other."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._layers = LayerStack()
        self._tls: TlsLayer | None = None
        self._came = asyncio.Event()  # there is more to read

    @property
    def tls(self) -> TlsInfo | None:
        """What TLS has agreed on, if there is any."""
        return None if self._tls is None or self._tls.is_handshaking else self._tls.info()

    @property
    def is_shaking_hands(self) -> bool:
        """Whether nothing else may be sent for now."""
        return self._tls is not None and self._tls.is_handshaking

    @property
    def has_ended(self) -> bool:
        """Whether the peer has said that nothing more comes."""
        return self._tls is not None and self._tls.has_ended

    async def start_tls(self, context: ReloadableContext, received: bytes) -> None:
        """Shakes hands; `received` came before its time. Raises TlsError, and then the transport
        is as bare as it was."""
        tls = TlsLayer(context.current)
        self._layers.push(tls)
        self._tls = tls
        tls.receive(received)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                while not tls.do_handshake():
                    self._send_pending()
                    await self._came.wait()
                    self._came.clear()
        except TimeoutError:
            self._strip()
            raise TlsError("i/o timeout") from None
        except TlsError:
            self._send_pending()  # an alert
            self._strip()
            raise
        self._send_pending()

    def compress(self, layer: Layer, received: bytes) -> None:
        """Puts compression between the protocol and what is there."""
        self._layers.push(layer)
        layer.receive(received)

    def write(self, data: bytes) -> None:
        """Sends plain bytes."""
        self._transport.write(self._layers.encode(data))

    def receive(self, data: bytes) -> None:
        """Takes what came from the peer."""
        if self._layers:
            self._layers.receive(data)
        self._came.set()

    def read(self) -> bytes:
        """The next piece of plain bytes; empty when more has to come first.
        Raises CorruptStreamError, and then it is over."""
        try:
            return self._layers.read()
        finally:
            self._send_pending()

    def say_goodbye(self) -> None:
        """Tells the peer that nothing more comes."""
        if self._tls is not None:
            with suppress(CorruptStreamError):
                self._transport.write(self._tls.close())

    def _send_pending(self) -> None:
        if self._tls is not None and (pending := self._tls.pending()):
            self._transport.write(pending)

    def _strip(self) -> None:
        self._layers.clear()
        self._tls = None
