"""Limits of browser connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
import uvloop
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from penstock.nsqadmin.daemon import HEADERS_BYTES_MAX, LimitedHttpProtocol

# Time limits for a request: one that expires in the test, one that a busy machine can keep, and one
# that does not matter.
SHORT_SECONDS = 0.1
ENOUGH_SECONDS = 3.0
LONG_SECONDS = 60.0

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(request_seconds_max: float) -> AsyncIterator[Streams]:
    """A connection to a server with this time limit."""
    config = uvicorn.Config(PlainTextResponse("hello"), ws="none", lifespan="off", log_config=None)
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: LimitedHttpProtocol(config, ServerState(), request_seconds_max=request_seconds_max),
        "127.0.0.1",
    )
    host, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(host, port)
    async with server:
        yield reader, writer
        writer.close()


def run(
    scene: Callable[[Streams], Awaitable[bytes]], request_seconds_max: float = LONG_SECONDS
) -> bytes:
    async def whole() -> bytes:
        async with asyncio.timeout(60), connected(request_seconds_max) as streams:
            return await scene(streams)

    return uvloop.run(whole())


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET / HTTP/1.1\r\nHo", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nbody"],
    ids=["nothing", "half a head", "half a body"],
)
def test_an_incomplete_request_is_aborted_after_the_time_limit(beginning: bytes) -> None:
    async def scene(streams: Streams) -> bytes:
        reader, writer = streams
        writer.write(beginning)
        await _until_lost(reader)
        return b"lost"

    assert b"lost" == run(scene, SHORT_SECONDS)


def test_an_idle_connection_can_be_reused_after_the_time_limit() -> None:
    async def scene(streams: Streams) -> bytes:
        reader, writer = streams
        writer.write(GET)
        first = await reader.readuntil(b"hello")
        await asyncio.sleep(1.2 * ENOUGH_SECONDS)
        writer.write(GET)
        return first + await reader.readuntil(b"hello")

    assert 2 == run(scene, ENOUGH_SECONDS).count(b"HTTP/1.1 200 OK")


def test_a_body_may_be_larger_than_the_header_limit() -> None:
    async def scene(streams: Streams) -> bytes:
        reader, writer = streams
        length = 2 * HEADERS_BYTES_MAX
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length
        writer.write(head + bytes(length) + GET)
        return await reader.readuntil(b"hello") + await reader.readuntil(b"hello")

    assert 2 == run(scene).count(b"HTTP/1.1 200 OK")


def test_endless_headers_are_refused() -> None:
    async def scene(streams: Streams) -> bytes:
        reader, writer = streams
        writer.write(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEADERS_BYTES_MAX)
        return await _until_lost(reader)

    assert run(scene).startswith(b"HTTP/1.1 400 ")


async def _until_lost(reader: asyncio.StreamReader) -> bytes:
    received = b""
    try:
        while chunk := await reader.read(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received
