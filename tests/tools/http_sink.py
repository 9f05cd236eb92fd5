"""An HTTP server that records requests and answers with given statuses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

__all__ = ["HttpSink", "SunkRequest", "http_sink"]


class SunkRequest(NamedTuple):
    """A request, and the status of the response."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int


class HttpSink(ThreadingHTTPServer):
    """Created by `http_sink`. It answers with each of `statuses`, then with `status`."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.statuses: list[int] = []
        self.connections = 0
        self.requests: list[SunkRequest] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_status(self) -> int:
        return self.statuses.pop(0) if self.statuses else self.status

    def taken(self) -> list[bytes]:
        """The bodies that were answered with success."""
        with self.lock:
            return [each.body for each in self.requests if each.status < 300]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpSink

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        with self.server.lock:
            status = self.server.next_status()
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = SunkRequest(self.command, self.path, headers, body, status)
            self.server.requests.append(request)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.headers["Content-Length"] = "0"
        self.do_POST()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def http_sink() -> Iterator[HttpSink]:
    """Serve on a free port for the duration of the block."""
    with HttpSink() as sink:
        thread = threading.Thread(target=sink.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield sink
        finally:
            sink.shutdown()
            thread.join()
