"""Requests, responses and endpoints that several tests use."""

import asyncio

from tests.net.http_server.live_server import DATE, LiveServer

from penstock.net.http_server import Request, Route
from penstock.testing.waiting import wait_until

HEADERS = b"X-Nsq-Content-Type: nsq; version=1.0\r\n" + DATE + b"\r\n"
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def text(body: bytes, connection: bytes = b"") -> bytes:
    """The response of an endpoint that returned a str."""
    length = b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 200 OK\r\n" + HEADERS + length + TEXT + connection + b"\r\n" + body


def error(status: str, code: str) -> bytes:
    """The response of an endpoint that raised an HttpError."""
    body = f'{{"message":"{code}"}}'
    json_type = "Content-Type: application/json; charset=utf-8"
    head = f"HTTP/1.1 {status}\r\n{json_type}\r\n{HEADERS.decode()}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


INTERNAL_ERROR = error("500 Internal Server Error", "INTERNAL_ERROR")


class ControlledEndpoints:
    """Endpoints that respond when a test tells them to."""

    def __init__(self) -> None:
        self.futures: dict[str, asyncio.Future[object]] = {}
        self.called: list[str] = []
        self.routes = [
            Route("GET", "/future/:name", self.future),
            Route("GET", "/coroutine/:name", self.coroutine),
            Route("GET", "/now/:name", self.now),
        ]

    def future(self, request: Request) -> object:
        name = request.params["name"]
        self.called.append(name)
        self.futures[name] = asyncio.get_running_loop().create_future()
        return self.futures[name]

    def now(self, request: Request) -> object:
        self.called.append(request.params["name"])
        return request.params["name"]

    async def coroutine(self, request: Request) -> object:
        return await asyncio.wait_for(self.future(request), 60)  # type: ignore[arg-type]

    def await_called(self, *names: str) -> None:
        wait_until(lambda: list(names) == self.called, f"{names}")

    def respond(self, server: LiveServer, name: str, result: object) -> None:
        server.loop.call_soon_threadsafe(self._set, name, result)

    def _set(self, name: str, result: object) -> None:
        if isinstance(result, Exception):
            self.futures[name].set_exception(result)
        else:
            self.futures[name].set_result(result)
