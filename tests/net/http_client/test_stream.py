"""Streams of the asyncio client: the body is read as it arrives."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import STREAM_BYTES_MAX, HttpClient, ResponseStream

CLIENT = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=60)
HASTY = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=0.3)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDED_EARLY = "the connection closed before the response was complete"


@asynccontextmanager
async def open_stream() -> AsyncIterator[tuple[ResponseStream, asyncio.StreamWriter]]:
    """A stream whose headers have arrived, and the server's side of the connection."""
    writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        writers.put_nowait(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    async with CLIENT.stream("POST", url, body=b"{}") as stream:
        writer = await writers.get()
        yield stream, writer
        writer.close()
    server.close()


def test_data_is_returned_before_the_response_has_ended() -> None:
    async def scene() -> None:
        async with open_stream() as (stream, writer):
            assert 200 == stream.status
            for text in (b"one", b"two"):
                writer.write(b"3\r\n" + text + b"\r\n")
                assert text == await stream.read()
            writer.write(b"0\r\n\r\n")
            assert b"" == await stream.read()
            assert b"" == await stream.read()

    uvloop.run(scene())


def test_a_read_that_times_out_loses_no_data() -> None:
    async def scene() -> None:
        async with open_stream() as (stream, writer):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await stream.read()
            writer.write(b"2\r\nhi\r\n")
            assert b"hi" == await stream.read()

    uvloop.run(scene())


def test_the_status_of_an_error_response_is_returned() -> None:
    async def scene() -> tuple[int, bytes]:
        answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
        async with (
            scripted_server(answer) as server,
            CLIENT.stream("GET", f"http://127.0.0.1:{server.port}/") as stream,
        ):
            return stream.status, await stream.read()

    assert (404, b"no") == uvloop.run(scene())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", ENDED_EARLY),
        (b"SSH-2.0-OpenSSH\r\n", "the response is not HTTP"),
        (CHUNKED + b"2\r\nhi\r\n", ENDED_EARLY),
        (CHUNKED + b"2\r\nhi\r\nxx", "the response is not HTTP"),
    ],
)
def test_a_broken_response_is_an_error(answer: bytes, reason: str) -> None:
    async def scene() -> None:
        async with (
            scripted_server(answer) as server,
            CLIENT.stream("GET", f"http://127.0.0.1:{server.port}/") as stream,
        ):
            while await stream.read():
                pass

    with pytest.raises(HttpRequestError) as caught:
        uvloop.run(scene())

    assert reason == caught.value.reason


def test_a_server_that_does_not_answer_is_a_timeout() -> None:
    async def scene() -> None:
        async with (
            scripted_server(b"", hangs=True) as server,
            HASTY.stream("GET", f"http://127.0.0.1:{server.port}/"),
        ):
            pass

    with pytest.raises(HttpRequestError, match="timed out") as caught:
        uvloop.run(scene())

    assert caught.value.timed_out


def test_a_refused_connection_is_an_error() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/"

        async def scene() -> None:
            async with CLIENT.stream("GET", url):
                pass

        with pytest.raises(HttpRequestError, match="Connection refused"):
            uvloop.run(scene())


def test_all_data_arrives_if_it_is_read_slowly() -> None:
    size = 4 * STREAM_BYTES_MAX

    async def scene() -> int:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
        total = 0
        async with (
            scripted_server(answer) as server,
            CLIENT.stream("GET", f"http://127.0.0.1:{server.port}/") as stream,
        ):
            while data := await stream.read():
                total += len(data)
                await asyncio.sleep(0.01)
        return total

    assert size == uvloop.run(scene())
