"""Servers that nsqadmin may find at the address of an nsqd or of a notification endpoint."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


@contextmanager
def not_http_server() -> Iterator[str]:
    """Address of a server whose responses are not HTTP."""
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


def unused_address() -> str:
    """An address at which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return _address(probe)


@contextmanager
def recording_server(begin: threading.Event | None = None) -> Iterator[tuple[str, list[Any]]]:
    """URL of a server that records the JSON body of every POST, and the list of these bodies.

    If `begin` is given, the server responds only after it is set.
    """
    kept: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if begin is not None:
                begin.wait(60)
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


@contextmanager
def stock_nsqd_proxy(address: str) -> Iterator[str]:
    """Address of a proxy that hides the endpoints of an nsqd that NSQ's nsqd does not have."""
    known = ("/stats", "/info", "/ping", "/topic/pause", "/channel/pause")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(known):
                self.send_response(404)
                self.end_headers()
                self.wfile.write(b'{"message":"NOT_FOUND"}')
                return
            connection = HTTPConnection(address, timeout=60)
            connection.request("GET", self.path)
            body = connection.getresponse().read()
            connection.close()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()
    return f"{host}:{port}"
