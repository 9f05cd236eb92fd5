"""An auth server for tests: a real HTTP server in a thread, with settable responses."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class AuthServer(ThreadingHTTPServer):
    """Answers every request with `status` and `answer`, which the test may change; does not answer
    while `is_silent`.
    """

    daemon_threads = True
    request_queue_size = 128  # many clients may connect at once

    def __init__(self, answer: object) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.answer = answer
        self.asked: list[Asked] = []
        self.is_silent = False
        self.is_over = threading.Event()

    @property
    def address(self) -> str:
        """Its `host:port`."""
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores disconnected clients."""


class _Handler(BaseHTTPRequestHandler):
    server: AuthServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.asked.append(Asked(self.command, self.path, dict(self.headers), body))
        if self.server.is_silent:
            self.server.is_over.wait()
            return
        answer = self.server.answer
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815 (http.server's name)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def auth_server(answer: object, *, context: ssl.SSLContext | None = None) -> Iterator[AuthServer]:
    """Serve for the duration of the block."""
    server = AuthServer(answer)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()
