import socket
from collections.abc import Callable

import pytest
from bench.layered import SnappySocket, dial_tls
from bench.load import LoadError
from bench.nsq import OK

from penstock.protocol.compression import Snappy

Serve = Callable[[Callable[[socket.socket], None]], tuple[str, int]]


def test_a_compressed_socket_returns_all_received_data_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        compressed, layer = SnappySocket(ours), Snappy()
        encoded = layer.encode(b"x" * 5000)
        theirs.sendall(encoded[:12])
        theirs.sendall(encoded[12:])
        view = memoryview(bytearray(10_000))

        assert compressed.recv_into(view) == 5000
        assert view[:5000] == b"x" * 5000


def test_a_layer_that_is_not_granted_fails_the_run(serve: Serve) -> None:
    """For example by a reference server that answers each IDENTIFY with OK."""

    def nsqd(peer: socket.socket) -> None:
        peer.recv(4096)
        peer.sendall(OK)

    with pytest.raises(LoadError, match="no tls_v1: b'OK'"):
        dial_tls(serve(nsqd), {})
