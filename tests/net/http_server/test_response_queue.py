"""Deferred and streamed responses are sent in the order of their requests."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.net.http_server.endpoints import INTERNAL_ERROR, ControlledEndpoints, error, get, text
from tests.net.http_server.live_server import DATE, LiveServer, live_server

from penstock.net.http_server import (
    OK,
    HttpError,
    HttpLimits,
    Request,
    Route,
    StreamAbortedError,
    StreamingResponse,
)
from penstock.testing.waiting import wait_until


class TestDeferredResponses:
    def test_responses_keep_the_order_of_the_requests(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/future/a") + get("/now/b") + get("/future/c") + get("/now/d"))
            endpoints.await_called("a", "b", "c", "d")
            endpoints.respond(server, "c", "C")
            endpoints.respond(server, "a", "A")

            client.expect(text(b"A") + text(b"b") + text(b"C") + text(b"d"))

    def test_earlier_responses_do_not_wait(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/now/a") + get("/future/b"))

            client.expect(text(b"a"))
            endpoints.respond(server, "b", "B")
            client.expect(text(b"B"))

    def test_requests_after_a_coroutine_wait_for_it(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client, server.connect() as other:
            client.send(get("/coroutine/a") + get("/now/b"))
            endpoints.await_called("a")
            other.send(get("/now/c"))
            other.expect(text(b"c"))
            endpoints.respond(server, "a", "A")

            client.expect(text(b"A") + text(b"b"))
            assert ["a", "c", "b"] == endpoints.called

    def test_requests_of_later_reads_wait_for_a_coroutine(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client, server.connect() as other:
            client.send(get("/coroutine/a"))
            endpoints.await_called("a")
            client.send(get("/now/b"))
            other.send(get("/now/c"))
            other.expect(text(b"c"))
            endpoints.respond(server, "a", "A")

            client.expect(text(b"A") + text(b"b"))
            assert ["a", "c", "b"] == endpoints.called

    @pytest.mark.parametrize("kind", ["future", "coroutine"])
    def test_a_future_can_have_an_http_error(
        self, server: LiveServer, endpoints: ControlledEndpoints, kind: str
    ) -> None:
        with server.connect() as client:
            client.send(get(f"/{kind}/a"))
            endpoints.await_called("a")
            endpoints.respond(server, "a", HttpError(503, "EXITING"))

            client.expect(error("503 Service Unavailable", "EXITING"))

    @pytest.mark.parametrize("kind", ["future", "coroutine"])
    def test_the_exception_of_a_future_is_a_500_and_is_logged(
        self, server: LiveServer, endpoints: ControlledEndpoints, kind: str
    ) -> None:
        with server.connect() as client:
            client.send(get(f"/{kind}/a"))
            endpoints.await_called("a")
            endpoints.respond(server, "a", ZeroDivisionError("ours"))

            client.expect(INTERNAL_ERROR)
            assert any("ZeroDivisionError: ours" in line for line in server.log_lines)

    def test_a_future_can_have_a_response(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/future/a"))
            endpoints.await_called("a")
            endpoints.respond(server, "a", OK)

            client.expect(text(b"OK"))

    def test_responses_are_counted_by_status(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/future/a") + get("/now/b") + get("/nowhere", "Connection: close"))
            endpoints.await_called("a", "b")
            endpoints.respond(server, "a", HttpError(503, "EXITING"))
            client.read_all()

        assert {200: 1, 404: 1, 503: 1} == server.server.responses_by_status

    def test_the_last_response_closes_the_connection(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/future/a") + get("/future/b", "Connection: close") + get("/now/c"))
            endpoints.await_called("a", "b")
            endpoints.respond(server, "b", "B")
            endpoints.respond(server, "a", "A")

            assert text(b"A") + text(b"B", b"Connection: close\r\n") == client.read_all()
            assert ["a", "b"] == endpoints.called

    def test_a_client_that_has_closed_its_sending_side_gets_its_response(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/future/a"))
            client.end()
            endpoints.await_called("a")
            endpoints.respond(server, "a", "A")

            assert client.read_all().endswith(b"\r\n\r\nA")

    def test_garbage_after_a_pending_request_is_refused_after_it(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/future/a") + b"garbage\r\n\r\n")
            endpoints.await_called("a")
            endpoints.respond(server, "a", "A")

            answers = client.read_all()
            assert answers.startswith(text(b"A"))
            assert answers.endswith(b"400 Bad Request")

    def test_the_response_to_a_disconnected_client_is_dropped(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/coroutine/a"))
            endpoints.await_called("a")
        endpoints.respond(server, "a", ZeroDivisionError("unheard"))

        wait_until(lambda: any("unheard" in line for line in server.log_lines), "the log line")
        with server.connect() as client:
            client.send(get("/now/b"))
            client.expect(text(b"b"))

    def test_the_number_of_pending_requests_is_limited(
        self, endpoints: ControlledEndpoints
    ) -> None:
        with (
            live_server(endpoints.routes, limits=HttpLimits(pipelined_max=3)) as server,
            server.connect() as client,
            server.connect() as other,
        ):
            client.send(b"".join(get(f"/future/{name}") for name in "abcde"))
            endpoints.await_called("a", "b", "c")
            other.send(get("/now/x"))
            other.expect(text(b"x"))
            endpoints.respond(server, "a", "A")
            endpoints.await_called("a", "b", "c", "x", "d")
            for name in "bcd":
                endpoints.respond(server, name, name)
            endpoints.await_called("a", "b", "c", "x", "d", "e")
            endpoints.respond(server, "e", "e")

            client.expect(b"".join(text(name) for name in (b"A", b"b", b"c", b"d", b"e")))


class Source:
    """Endpoints with streamed bodies."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = False
        self.more: asyncio.Event | None = None
        self.routes = [
            Route("GET", "/three", lambda _: StreamingResponse(self.pieces())),
            Route("GET", "/sized", lambda _: StreamingResponse(self.pieces(), length=9)),
            Route(
                "GET", "/typed", lambda _: StreamingResponse(self.pieces(), headers=(("A", "b"),))
            ),
            Route("GET", "/short", lambda _: StreamingResponse(self.pieces(), length=10)),
            Route("GET", "/long", lambda _: StreamingResponse(self.pieces(), length=8)),
            Route("GET", "/promised", self.promised),
            Route("GET", "/broken", lambda _: StreamingResponse(self.broken())),
            Route("GET", "/cut", lambda _: StreamingResponse(self.cut())),
            Route("GET", "/endless", lambda _: StreamingResponse(self.endless())),
            Route("GET", "/follow", lambda _: StreamingResponse(self.follow())),
            Route("HEAD", "/three", lambda _: StreamingResponse(self.pieces())),
            Route("GET", "/now", lambda _: "now"),
        ]

    async def promised(self, _: Request) -> object:
        await asyncio.sleep(0)
        return StreamingResponse(self.pieces())

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in (b"one", b"", b"two", b"six"):
            await asyncio.sleep(0)
            yield piece

    async def broken(self) -> AsyncIterator[bytes]:
        yield b"one"
        raise OSError("disk on fire")

    async def cut(self) -> AsyncIterator[bytes]:
        yield b"one"
        raise StreamAbortedError("two is gone")

    async def endless(self) -> AsyncIterator[bytes]:
        try:
            while True:
                self.sent += 1 << 16
                yield b"x" * (1 << 16)
        finally:
            self.closed = True

    async def follow(self) -> AsyncIterator[bytes]:
        self.more = asyncio.Event()
        try:
            yield b"one"
            await self.more.wait()
            yield b"two"
        finally:
            self.closed = True


CHUNKS = b"3\r\none\r\n3\r\ntwo\r\n3\r\nsix\r\n0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\n" + DATE + b"\r\nTransfer-Encoding: chunked\r\n\r\n"


class TestStreams:
    @pytest.fixture
    def source(self) -> Source:
        return Source()

    @pytest.fixture
    def server(self, source: Source) -> Iterator[LiveServer]:
        with live_server(source.routes) as live:
            yield live

    def test_a_body_of_unknown_length_is_chunked(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/three"))

            client.expect(STREAM + CHUNKS)

    def test_a_body_of_known_length_has_a_content_length(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/sized") + get("/now"))

            head = b"HTTP/1.1 200 OK\r\n" + DATE + b"\r\nContent-Length: 9\r\n\r\n"
            client.expect(head + b"onetwosix" + text(b"now"))

    def test_a_stream_has_its_headers(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/typed"))

            client.expect(STREAM.replace(b"Date", b"A: b\r\nDate") + CHUNKS)

    def test_a_body_for_http_1_0_ends_with_the_connection(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(b"GET /three HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

            assert b"HTTP/1.0 200 OK\r\n" + DATE + b"\r\n\r\nonetwosix" == client.read_all()

    def test_a_head_request_gets_no_body(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/three").replace(b"GET", b"HEAD") + get("/now"))

            client.expect(STREAM + text(b"now"))

    def test_requests_after_a_stream_wait_for_it(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/three") + get("/now") + get("/promised") + get("/now"))

            client.expect((STREAM + CHUNKS + text(b"now")) * 2)

    def test_a_stream_can_be_the_last_response(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/three", "Connection: close"))

            expected = STREAM.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + CHUNKS
            assert expected == client.read_all()

    @pytest.mark.parametrize(
        ("path", "complaint"),
        [
            ("/broken", "disk on fire"),
            ("/cut", "GET /cut is cut short - two is gone"),
            ("/short", "shorter than announced"),
            ("/long", "longer than announced"),
        ],
    )
    def test_a_stream_that_fails_is_aborted_and_logged(
        self, server: LiveServer, path: str, complaint: str
    ) -> None:
        with server.connect() as client:
            client.send(get(path))
            try:
                received = client.read_all()
            except ConnectionResetError:
                received = b""

            assert not received.endswith((b"\r\n0\r\n\r\n", b"six" if path == "/long" else b"0"))
            wait_until(lambda: any(complaint in line for line in server.log_lines), complaint)

    def test_a_stream_waits_for_a_slow_reader(self, server: LiveServer, source: Source) -> None:
        with server.connect() as client, server.connect() as other:
            client.send(get("/endless"))
            client.read(1 << 20)
            # The stream stops when the buffers of the sockets are full.
            for _ in range(100):
                other.send(get("/now"))
                other.expect(text(b"now"))

            assert source.sent < 1 << 26
        wait_until(lambda: source.closed, "the source to be closed")

    def test_a_stream_can_wait_between_pieces(self, server: LiveServer, source: Source) -> None:
        with server.connect() as client:
            client.send(get("/follow"))
            client.expect(STREAM + b"3\r\none\r\n")
            assert source.more is not None
            server.loop.call_soon_threadsafe(source.more.set)

            client.expect(b"3\r\ntwo\r\n0\r\n\r\n")

    def test_the_source_is_closed_when_the_client_disconnects(self, source: Source) -> None:
        with live_server(source.routes, limits=HttpLimits(write_seconds=0.1)) as server:
            with server.connect() as client:
                client.send(get("/follow"))
                client.expect(STREAM + b"3\r\none\r\n")

            wait_until(lambda: source.closed, "the source to be closed")

    def test_a_client_that_has_closed_its_sending_side_gets_the_whole_stream(
        self, server: LiveServer
    ) -> None:
        with server.connect() as client:
            client.send(get("/three") + get("/three"))
            client.end()

            answers = client.read_all()
            assert answers.startswith(STREAM + CHUNKS)
            assert answers.endswith(CHUNKS)
