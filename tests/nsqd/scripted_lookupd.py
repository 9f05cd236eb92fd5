"""An nsqlookupd with scripted responses, valid or not, for tests of its clients."""

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from penstock.protocol import lookup_v1
from penstock.protocol.lookup_v1 import Event, IdentifyPeer, LookupServerConnection
from penstock.testing.waiting import wait_until

Answer: TypeAlias = Callable[[Event], bytes | Iterator[bytes]]


def well(event: Event) -> bytes:
    """The responses of an nsqlookupd without an HTTP API."""
    if isinstance(event, IdentifyPeer):
        return lookup_v1.response(b'{"broadcast_address":"127.0.0.1","http_port":1}')
    return lookup_v1.OK


def with_http_port(port: int) -> Callable[[Event], bytes]:
    """The responses of an nsqlookupd with an HTTP API."""
    info = json.dumps({"broadcast_address": "127.0.0.1", "http_port": port}).encode()
    return lambda event: (
        lookup_v1.response(info) if isinstance(event, IdentifyPeer) else well(event)
    )


def nothing(_: Event) -> bytes:
    """No response; the connection stays open."""
    return b""


def drip(_: Event) -> Iterator[bytes]:
    """A long response, at five bytes a second."""
    for byte in lookup_v1.response(bytes(60_000)):
        yield bytes([byte])
        time.sleep(0.2)


def hang_up(_: Event) -> bytes:
    """Closes the connection without a response."""
    raise ConnectionAbortedError


class ScriptedLookupd(socketserver.ThreadingTCPServer):
    """Responds to each command by `answer`, which may be changed at any time."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, answer: Answer, host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.answer = answer
        self.connected_at: list[float] = []
        self.heard: list[Event] = []
        self._open: list[socket.socket] = []

    @property
    def address(self) -> str:
        host, port = self.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def take(self) -> list[Event]:
        """The commands received since the last call."""
        heard, self.heard = self.heard, []
        return heard

    def hears(self, event: Event) -> None:
        """Waits until these commands have been received."""
        wait_until(lambda: event in self.heard, f"{event}, not {self.heard}")

    def say(self, data: bytes) -> None:
        """Sends an unrequested response on the last connection."""
        self._open[-1].sendall(data)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a disconnected nsqd."""


class _Handler(socketserver.BaseRequestHandler):
    server: ScriptedLookupd

    def handle(self) -> None:
        self.server.connected_at.append(time.monotonic())
        self.server._open.append(self.request)
        wire = LookupServerConnection()
        while data := self.request.recv(65536):
            wire.receive_data(data)
            while (event := wire.next_event()) is not None:
                self.server.heard.append(event)
                answer = self.server.answer(event)
                for part in [answer] if isinstance(answer, bytes) else answer:
                    self.request.sendall(part)


@contextmanager
def scripted_lookupd(
    answer: Answer = well, *, host: str = "127.0.0.1"
) -> Iterator[ScriptedLookupd]:
    """Serves on a free port until the block is left."""
    with ScriptedLookupd(answer, host) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
