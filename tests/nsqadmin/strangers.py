"""What may stand where nsqadmin expects an nsqd: nothing, nonsense, or somebody who listens."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def nonsense() -> Iterator[str]:
    """The address of something that answers everything with what is no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    peer.sendall(b"what?\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield _address(server)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return _address(probe)


@contextmanager
def recorder() -> Iterator[tuple[str, list[Any]]]:
    """The URL of something that keeps the JSON of every POST, and what it has kept."""
    kept: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Tests are quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", kept
        finally:
            server.shutdown()
            thread.join()


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()
    return f"{host}:{port}"
