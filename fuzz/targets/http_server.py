"""HTTP requests to a real connection of `penstock.net.http_server`, on a transport in memory.

For all cuts of the bytes, the same requests reach the endpoints and the same responses are sent, in
order, one for each request. No request makes the server fail. Each request, rendered again in the
simplest form, is parsed the same.
"""

import asyncio
import re
from urllib.parse import quote

from fuzz.cutting import Pieces, cuttings
from penstock.common.logs import Logger, LogLevel
from penstock.net.http_server import HttpError, HttpLimits, HttpServer, Request, Route, Router

__all__ = ["SEEDS", "TOKENS", "check"]

BODY_BYTES_MAX = 40
UNHURRIED_PIECES_MAX = 12
LIMITS = HttpLimits(head_bytes_max=400, pipelined_max=4)

SEEDS = [
    b"GET /echo?a=1&a=2&b=%41+c HTTP/1.1\r\nHost: a\r\n\r\n" * 2,
    (
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
        b"GET /later HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.0\r\n\r\n"
    ),
    (
        b"POST /later HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX-T: z\r\n\r\nGET /no HTTP/1.1\r\nHost: a\r\n\r\n"
    ),
    b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nhi",
    b"GET http://a/echo/?q HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n\r\nHEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /refused?%zz HTTP/1.1\r\nHost: a\r\n\r\nGET /value/%2f HTTP/1.1\r\nHost: a\r\n\r\n",
]
TOKENS = [
    b" HTTP/1.1\r\nHost: a\r\n",
    b"\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: ",
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"/later",
    b"0\r\n\r\n",
]

_DATE = re.compile(rb"Date: [^\r]*\r\n")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # only for requests whose body has not arrived yet

Seen = tuple[str, str, dict[str, str], bytes]


class MemoryTransport(asyncio.Transport):
    """Records all written bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.written += data

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Service:
    """A server, and the requests that its endpoints received."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.complaints: list[str] = []
        routes = [
            Route("GET", "/echo", self.echo),
            Route("POST", "/echo", self.echo, body_bytes_max=BODY_BYTES_MAX),
            Route("GET", "/later", self.later),
            Route("POST", "/later", self.later, body_bytes_max=BODY_BYTES_MAX),
            Route("GET", "/value/:name", self.echo),
            Route("GET", "/refused", self.refuse),
        ]
        log = Logger("", LogLevel.WARN, write=self.complaints.append)
        self.server = HttpServer(Router(routes), log=log, limits=LIMITS)

    def echo(self, request: Request) -> object:
        seen = (request.method, request.path, request.args, request.body)
        self.seen.append(seen)
        return repr((seen, request.params, request.header("X")))

    async def later(self, request: Request) -> object:
        await asyncio.sleep(0)
        return self.echo(request)

    def refuse(self, request: Request) -> object:
        raise HttpError(400, f"NO_{len(request.args)}")


def check(data: bytes) -> None:
    whole, *others = (_loop.run_until_complete(serve(pieces)) for pieces in cuttings(data))
    for other in others:
        assert other == whole, f"cut otherwise: {other}, whole: {whole}"
    seen, _ = whole
    plain = [each for each in seen if is_plain(each)]
    again, _ = _loop.run_until_complete(serve([b"".join(map(render, plain))]))
    assert again == plain, f"read again: {again}, before: {plain}"


async def serve(pieces: Pieces) -> tuple[list[Seen], bytes]:
    """Requests and responses, without the parts that may differ."""
    service, transport = Service(), MemoryTransport()
    connection = service.server.new_connection()
    connection.connection_made(transport)
    for piece in pieces:
        if piece and not transport.is_closed:
            connection.data_received(piece)
            # With many pieces, requests also arrive while an endpoint is busy.
            if len(pieces) < UNHURRIED_PIECES_MAX:
                await settled()
    if not transport.is_closed:
        connection.eof_received()
        await settled()
    assert transport.is_closed, "the connection is not closed after EOF"
    connection.connection_lost(None)
    await service.server.stop(timeout_seconds=0)
    assert not service.complaints, service.complaints
    return service.seen, _DATE.sub(b"", transport.written.replace(_CONTINUE, b""))


async def settled() -> None:
    """Run callbacks and tasks until all are done."""
    for _ in range(4):
        await asyncio.sleep(0)
    while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 (all tasks end)
        await asyncio.sleep(0)


def is_plain(seen: Seen) -> bool:
    """Whether it can be rendered again: with all bytes escaped, it may exceed the maximum head
    size.
    """
    return len(render(seen)) < LIMITS.head_bytes_max


def render(seen: Seen) -> bytes:
    method, path, args, body = seen
    pairs = (f"{quoted(name)}={quoted(value)}" for name, value in args.items())
    line = f"{method} {quoted(path)}?{'&'.join(pairs)} HTTP/1.1\r\n"
    return line.encode() + b"Host: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"))


_loop = asyncio.new_event_loop()
