"""nsqlookupd as a process for tests, on free ports.

    with run_nsqlookupd() as nsqlookupd:
        node = nsqlookupd.node("n1.example")
        node.call(lookup_v1.register("orders"))
        assert ["n1.example"] == nsqlookupd.found("orders")

At the end of the block it is stopped cleanly, or killed if the test failed. An unclean stop and a
traceback in the log fail the test.
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
    """nsqlookupd exited before it was ready; `log` contains the reason."""


@contextmanager
def run_nsqlookupd(*flags: str) -> Iterator["NsqlookupdProcess"]:
    """Run nsqlookupd with these flags, by default on free ports of 127.0.0.1.

    Raises NsqlookupdStartError.
    """
    with reserved_address() as tcp, reserved_address() as http:
        addresses = (f"--tcp-address={tcp}", f"--http-address={http}")
        with running(lambda log_fd: NsqlookupdProcess((*addresses, *flags), log_fd)) as nsqlookupd:
            yield nsqlookupd


class NsqlookupdProcess(DaemonProcess):
    """An nsqlookupd, started by `run_nsqlookupd`. It restarts on the same ports."""

    program = "nsqlookupd"
    start_error = NsqlookupdStartError

    def __init__(self, flags: Sequence[str], log_fd: int) -> None:
        super().__init__(flags, log_fd)
        self._peers: list[RawLookupClient] = []

    def connect(
        self, *, magic: bytes = lookup_v1.MAGIC, tls: ssl.SSLContext | None = None
    ) -> "RawLookupClient":
        """A TCP client that has sent the magic. Closed automatically."""
        peer = RawLookupClient(self.tcp_address, tls=tls)
        self._peers.append(peer)
        peer.send(magic)
        return peer

    def node(self, broadcast_address: str, **fields: object) -> "RawLookupClient":
        """A client that has identified itself as an nsqd. Closed automatically."""
        peer = self.connect()
        peer.identify(broadcast_address=broadcast_address, **fields)
        return peer

    def found(self, topic: str) -> list[str]:
        """Broadcast addresses that /lookup returns for a topic; empty for an unknown topic."""
        answer = self.http("GET", f"/lookup?topic={topic}").json()
        return [producer["broadcast_address"] for producer in answer.get("producers", [])]

    def close_clients(self) -> None:
        while self._peers:
            self._peers.pop().close()


class RawLookupClient:
    """A raw connection to nsqlookupd's TCP port. All calls have a timeout."""

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
        """The local address, as nsqlookupd sees it."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def send(self, *data: bytes) -> None:
        """Send commands or other bytes."""
        self._socket.sendall(b"".join(data))

    def call(self, command: bytes) -> bytes:
        """Send a command and return the response data. Raises ProtocolError."""
        self.send(command)
        return self.response()

    def identify(self, **fields: object) -> Any:
        """Send IDENTIFY; returns the response of nsqlookupd."""
        stock = {"hostname": "", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
        return json.loads(self.call(lookup_v1.identify({**stock, **fields})))

    def response(self) -> bytes:
        """The data of the next response. Raises ProtocolError if it is an error, ConnectionError if
        the connection is closed."""
        deadline = time.monotonic() + self._timeout_seconds
        while (data := self._responses.next_response()) is None:
            chunk = self._receive(deadline)
            if not chunk:
                raise ConnectionError("nsqlookupd closed the connection")
            self._responses.receive_data(chunk)
        return data

    def read_to_end(self) -> bytes:
        """All bytes until nsqlookupd closes the connection. Raises TimeoutError."""
        deadline = time.monotonic() + self._timeout_seconds
        data = bytearray()
        while chunk := self._receive(deadline):
            data += chunk
        return bytes(data)

    def end(self) -> None:
        """Close the sending side; reading is still possible."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
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
