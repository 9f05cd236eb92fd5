import socket
from collections.abc import Callable

import pytest
from bench.layered import SnappySocket, dial_tls
from bench.load import LoadError
from bench.nsq import OK

from penstock.protocol.compression import Snappy

Serve = Callable[[Callable[[socket.socket], None]], tuple[str, int]]


def test_a_compressed_socket_gives_all_that_has_come_once_there_is_something() -> None:
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
    """So it is with the yardstick, whose answer to IDENTIFY is OK whatever was asked for."""

    def nsqd(peer: socket.socket) -> None:
        peer.recv(4096)
        peer.sendall(OK)

    with pytest.raises(LoadError, match="no tls_v1: b'OK'"):
        dial_tls(serve(nsqd), {})
