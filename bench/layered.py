"""Connections with TLS or snappy.

As in NSQ: IDENTIFY requests the layer, the response in clear text grants it, and everything after
that, first an OK, goes through the layer. The load's own CPU time for the layer is not counted.
"""

import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any, cast

from bench.load import RECEIVE_BYTES, Address, LoadError, connect, read_until
from bench.nsq import MAGIC, OK, U32, identify
from penstock.protocol.compression import Snappy

__all__ = ["SnappySocket", "dial_snappy", "dial_tls"]

FRAME_HEADER_BYTES = 8


def dial_tls(address: Address, features: Mapping[str, int]) -> socket.socket:
    """A connection with TLS. The bench creates the certificate."""
    peer = _negotiated(address, features, "tls_v1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    wrapped = context.wrap_socket(peer)
    read_until(wrapped, OK)
    return wrapped


def dial_snappy(address: Address, features: Mapping[str, int]) -> socket.socket:
    """A connection with snappy."""
    peer = _negotiated(address, features, "snappy")
    # It has the socket methods that the load uses.
    compressed = cast("socket.socket", SnappySocket(peer))
    read_until(compressed, OK)
    return compressed


class SnappySocket:
    """A socket with compression."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._layer = Snappy()
        self.fileno = peer.fileno
        self.close = peer.close

    def sendall(self, data: bytes | bytearray) -> None:
        self._peer.sendall(self._layer.encode(bytes(data)))

    def recv(self, size: int) -> bytes:
        """All received bytes, possibly more than `size`; waits for the first."""
        plain = b""
        while not plain:
            received = self._peer.recv(max(size, RECEIVE_BYTES))
            if not received:
                return b""
            self._layer.receive(received)
            plain = b"".join(iter(self._layer.read, b""))
        return plain

    def recv_into(self, view: memoryview) -> int:
        # The reader's buffer has room for all messages that its RDY allows.
        plain = self.recv(len(view))
        view[: len(plain)] = plain
        return len(plain)


def _negotiated(address: Address, features: Mapping[str, int], layer: str) -> socket.socket:
    peer = connect(address)
    peer.sendall(MAGIC + identify({**features, "feature_negotiation": True, layer: True}))
    (size,) = U32.unpack_from(_read_exactly(peer, FRAME_HEADER_BYTES))
    answer = _read_exactly(peer, size + 4 - FRAME_HEADER_BYTES)
    if not _grants(answer, layer):
        peer.close()
        raise LoadError(f"no {layer}: {answer[:60]!r}")
    return peer


def _grants(answer: bytes, layer: str) -> bool:
    try:
        granted: Any = json.loads(answer)
    except ValueError:
        return False  # an OK of a server without feature negotiation
    return isinstance(granted, dict) and bool(granted.get(layer))


def _read_exactly(peer: socket.socket, size: int) -> bytes:
    # Exactly this frame: the bytes after it belong to the layer.
    received = peer.recv(size, socket.MSG_WAITALL)
    if len(received) < size:
        raise LoadError(f"the server closed the connection after {received!r}")
    return received
