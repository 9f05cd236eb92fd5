"""An nsqlookupd for the length of a test: the real program, in its own process, on free ports.

    with run_nsqlookupd() as nsqlookupd:
        node = nsqlookupd.node("n1.example")
        node.call(lookup_v1.register("orders"))
        assert ["n1.example"] == nsqlookupd.found("orders")

It is ready when `run_nsqlookupd` returns, and gone when the block is left: stopped cleanly after a
test that went well, killed after one that did not. A clean stop that is not clean fails the test,
and so does a traceback in the log.
"""

import json
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.protocol import lookup_v1
from penstock.testing.addresses import reserved_address
from penstock.testing.daemon import DaemonProcess, DaemonStartError, running

__all__ = ["NsqlookupdProcess", "NsqlookupdStartError", "RawLookupClient", "run_nsqlookupd"]

_RECEIVE_BYTES = 64 * 1024


class NsqlookupdStartError(DaemonStartError):
    """nsqlookupd ended before it was ready; `log` says why."""


@contextmanager
def run_nsqlookupd(*flags: str) -> Iterator["NsqlookupdProcess"]:
    """Runs nsqlookupd with these flags; on free ports of 127.0.0.1, unless they say otherwise.

    Raises NsqlookupdStartError.
    """
    with reserved_address() as tcp, reserved_address() as http:
        addresses = (f"--tcp-address={tcp}", f"--http-address={http}")
        with running(lambda log_fd: NsqlookupdProcess((*addresses, *flags), log_fd)) as nsqlookupd:
            yield nsqlookupd


class NsqlookupdProcess(DaemonProcess):
    """An nsqlookupd; made by `run_nsqlookupd`. It is started again on its old ports, so that those
    who know it find it again."""

    program = "nsqlookupd"
    start_error = NsqlookupdStartError

    def __init__(self, flags: Sequence[str], log_fd: int) -> None:
        super().__init__(flags, log_fd)
        self._peers: list[RawLookupClient] = []

    def connect(
        self, *, magic: bytes = lookup_v1.MAGIC, tls: ssl.SSLContext | None = None
    ) -> "RawLookupClient":
        """A TCP peer that has sent its magic. It need not be closed."""
        peer = RawLookupClient(self.tcp_address, tls=tls)
        self._peers.append(peer)
        peer.send(magic)
        return peer

    def node(self, broadcast_address: str, **fields: object) -> "RawLookupClient":
        """A peer that has identified itself as an nsqd. It need not be closed."""
        peer = self.connect()
        peer.identify(broadcast_address=broadcast_address, **fields)
        return peer

    def found(self, topic: str) -> list[str]:
        """The broadcast addresses that /lookup has for a topic; none for one that is not known."""
        answer = self.http("GET", f"/lookup?topic={topic}").json()
        return [producer["broadcast_address"] for producer in answer.get("producers", [])]

    def close_clients(self) -> None:
        while self._peers:
            self._peers.pop().close()


class RawLookupClient:
    """A raw connection to nsqlookupd's TCP port. Nothing here waits longer than its timeout."""

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None = None, timeout_seconds: float = 60.0
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_seconds)
        if tls is not None:
            self._socket = _encrypted(self._socket, tls, host)
        self._timeout_seconds = timeout_seconds
        self._responses = lookup_v1.ResponseReader()

    @property
    def address(self) -> str:
        """What nsqlookupd calls us."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def send(self, *data: bytes) -> None:
        """Sends commands, or any other bytes."""
        self._socket.sendall(b"".join(data))

    def call(self, command: bytes) -> bytes:
        """Sends a command and returns the data of its answer. Raises ProtocolError if refused."""
        self.send(command)
        return self.response()

    def identify(self, **fields: object) -> Any:
        """Says that we are an nsqd, and returns what nsqlookupd says of itself."""
        stock = {"hostname": "", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
        return json.loads(self.call(lookup_v1.identify({**stock, **fields})))

    def response(self) -> bytes:
        """The data of the next answer. Raises ProtocolError if it is an error, ConnectionError if
        there is none."""
        deadline = time.monotonic() + self._timeout_seconds
        while (data := self._responses.next_response()) is None:
            chunk = self._receive(deadline)
            if not chunk:
                raise ConnectionError("nsqlookupd closed the connection")
            self._responses.receive_data(chunk)
        return data

    def read_to_end(self) -> bytes:
        """All bytes until nsqlookupd closes the connection, which it must do in time."""
        deadline = time.monotonic() + self._timeout_seconds
        data = bytearray()
        while chunk := self._receive(deadline):
            data += chunk
        return bytes(data)

    def end(self) -> None:
        """Ends our side: what nsqlookupd still has to say can be read."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _receive(self, deadline: float) -> bytes:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            return b""


def _encrypted(plain: socket.socket, tls: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
