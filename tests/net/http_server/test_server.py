"""Timeouts of slow clients, middleware, shutdown, and the request log."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
from tests.net.http_server.endpoints import (
    HEADERS,
    INTERNAL_ERROR,
    TEXT,
    ControlledEndpoints,
    get,
    text,
)
from tests.net.http_server.live_server import LiveServer, RawHttp, live_server

from penstock.net.http_server import HttpLimits, Request, Response, Route, json_response
from penstock.testing.waiting import wait_until

REQUEST_TIMEOUT = (
    b"HTTP/1.1 408 Request Timeout\r\n" + TEXT + b"Connection: close\r\n\r\n408 Request Timeout"
)


SHORT_SECONDS = 0.1
SHORT_TIMEOUTS = HttpLimits(
    head_seconds=SHORT_SECONDS,
    body_seconds=SHORT_SECONDS,
    idle_seconds=SHORT_SECONDS,
    write_seconds=SHORT_SECONDS,
    linger_seconds=SHORT_SECONDS,
)


def connected(server: LiveServer, sent: bytes) -> RawHttp:
    """A client whose first bytes arrive together with its connection, also on a busy machine."""
    with server.blocked():
        client = server.connect()
        client.send(sent)
    return client


class TestSlowClients:
    @pytest.fixture
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/now", lambda _: "now"),
            Route("POST", "/pub", lambda _: "OK"),
            Route("GET", "/big", lambda _: "x" * (1 << 20)),
        ]

    def test_a_silent_client_is_disconnected(self, routes: list[Route]) -> None:
        with live_server(routes, limits=SHORT_TIMEOUTS) as server, server.connect() as client:
            assert b"" == client.read_all()

    def test_an_idle_client_is_disconnected(self, routes: list[Route]) -> None:
        limits = HttpLimits(idle_seconds=SHORT_SECONDS)
        with live_server(routes, limits=limits) as server, connected(server, get("/now")) as client:
            assert text(b"now") == client.read_all()

    @pytest.mark.parametrize(
        "sent",
        [
            b"G",
            b"GET /now HTTP/1.1\r\nHost: a\r\n",
            b"POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell",
            b"POST /pub HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell",
        ],
    )
    def test_an_unfinished_request_gets_a_408(self, routes: list[Route], sent: bytes) -> None:
        with (
            live_server(routes, limits=SHORT_TIMEOUTS) as server,
            connected(server, sent) as client,
        ):
            assert REQUEST_TIMEOUT == client.read_all()
            assert {408: 1} == server.server.rejections_by_status

    @pytest.mark.parametrize(
        "start", [b"x", b"POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n"]
    )
    def test_single_bytes_do_not_extend_the_timeout(
        self, routes: list[Route], start: bytes
    ) -> None:
        limits = replace(
            SHORT_TIMEOUTS, linger_seconds=60
        )  # Keep the connection open for the client to read.
        with live_server(routes, limits=limits) as server, connected(server, start) as client:
            client.socket.settimeout(SHORT_SECONDS / 10)
            for _ in range(6000):
                try:
                    client.send(b"x")
                    if answer := client.socket.recv(1000):
                        assert answer.startswith(b"HTTP/1.1 408 ")
                        break
                except TimeoutError:
                    continue
            else:
                pytest.fail("the server did not respond")

    def test_requests_of_a_client_that_does_not_read_are_not_handled(self) -> None:
        served = 0

        def big(_: Request) -> str:
            nonlocal served
            served += 1
            return "x" * (1 << 20)

        with live_server([Route("GET", "/big", big)]) as server, server.connect() as client:
            client.send(get("/big") * 200)
            with server.connect() as other:
                other.send(get("/big"))
                other.expect(text(b"x" * (1 << 20)))

            assert served < 50  # of 1 MB each, in the buffers of sockets
            for _ in range(200):
                client.expect(text(b"x" * (1 << 20)))

    def test_a_client_that_does_not_read_is_disconnected(self, routes: list[Route]) -> None:
        with (
            live_server(routes, limits=SHORT_TIMEOUTS) as server,
            connected(server, get("/big") * 20),
        ):
            wait_until(lambda: not server.server.connection_count, "the connection to be closed")

    def test_a_slow_reader_gets_all_of_its_last_response(self) -> None:
        limits = HttpLimits(linger_seconds=SHORT_SECONDS)
        size = 1 << 24  # more than sockets hold
        routes = [Route("GET", "/big", lambda _: "x" * size)]
        with live_server(routes, limits=limits) as server, server.connect() as client:
            client.send(get("/big", "Connection: close"))
            client.read(1000)
            long_after = time.monotonic() + 5 * SHORT_SECONDS
            wait_until(lambda: time.monotonic() > long_after, "the time to linger to pass")

            assert size - 1000 < len(client.read_all()) < size

    def test_a_client_that_keeps_sending_after_a_rejection_is_disconnected(
        self, routes: list[Route]
    ) -> None:
        with (
            live_server(routes, limits=SHORT_TIMEOUTS) as server,
            connected(server, b"garbage\r\n"),
        ):
            wait_until(lambda: not server.server.connection_count, "the connection to be closed")


class TestMiddleware:
    @pytest.fixture
    def server(self) -> Iterator[LiveServer]:
        def check_token(request: Request) -> Response | None:
            match request.header("authorization"):
                case "Bearer good":
                    return None
                case "Bearer bug":
                    raise ZeroDivisionError
                case _:
                    return json_response(403, b'{"message": "FORBIDDEN"}')

        routes = [
            Route("GET", "/now", lambda _: "now"),
            Route("POST", "/pub", lambda request: request.body.decode()),
        ]
        with live_server(routes, middleware=(check_token,)) as live:
            yield live

    FORBIDDEN = (
        b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json; charset=utf-8\r\n"
        + HEADERS
        + b"Content-Length: 24\r\n\r\n"
        + b'{"message": "FORBIDDEN"}'
    )

    def test_it_can_respond_in_place_of_a_route(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/now") + get("/nope") + get("/now", "Authorization: Bearer good"))

            client.expect(self.FORBIDDEN * 2 + text(b"now"))

    def test_the_first_response_wins(self) -> None:
        def second(request: Request) -> Response | None:
            return json_response(403, b"2") if request.path == "/second" else None

        def third(request: Request) -> Response | None:
            return json_response(403, b"3") if request.path != "/now" else None

        routes = [Route("GET", "/now", lambda _: "now")]
        middleware = (lambda _: None, second, third)
        with live_server(routes, middleware=middleware) as live, live.connect() as client:
            client.send(get("/second") + get("/third") + get("/now"))

            forbidden = self.FORBIDDEN.replace(b"24", b"1").replace(
                b'{"message": "FORBIDDEN"}', b"%b"
            )
            client.expect(forbidden % b"2" + forbidden % b"3" + text(b"now"))

    def test_bodies_are_read_after_it(self, server: LiveServer) -> None:
        with server.connect() as client:
            head = b"POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
            client.send(head + b"\r\nhello" + head + b"Authorization: Bearer good\r\n\r\nhello")

            client.expect(self.FORBIDDEN + text(b"hello"))

    def test_it_runs_before_100_continue(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(
                b"POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )

            expected = self.FORBIDDEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            assert expected == client.read_all()

    def test_an_exception_in_it_is_a_500(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/now", "Authorization: Bearer bug"))

            client.expect(INTERNAL_ERROR)


class TestStop:
    def test_idle_connections_are_closed(self, server: LiveServer) -> None:
        with server.connect() as client, server.connect() as silent:
            client.send(get("/now/a"))
            client.expect(text(b"a"))
            wait_until(lambda: server.server.connection_count == 2, "both")
            server.run(lambda: server.server.stop(60))

            client.expect_close()
            silent.expect_close()

    def test_pending_requests_get_their_responses(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/future/a") + get("/future/b"))
            endpoints.await_called("a", "b")
            stopped = asyncio.run_coroutine_threadsafe(server.server.stop(60), server.loop)
            server.run(lambda: asyncio.sleep(0))
            client.send(get("/now/c"))
            endpoints.respond(server, "a", "A")
            endpoints.respond(server, "b", "B")

            assert text(b"A") + text(b"B", b"Connection: close\r\n") == client.read_all()
            stopped.result(60)
            assert ["a", "b"] == endpoints.called

    def test_a_partly_received_request_gets_its_response(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/now/a") + get("/now/b")[:20])
            client.expect(text(b"a"))
            stopped = asyncio.run_coroutine_threadsafe(server.server.stop(60), server.loop)
            server.run(lambda: asyncio.sleep(0))
            client.send(get("/now/b")[20:])

            assert text(b"b", b"Connection: close\r\n") == client.read_all()
            stopped.result(60)

    def test_connections_are_aborted_after_the_timeout(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        with server.connect() as client:
            client.send(get("/coroutine/a"))
            endpoints.await_called("a")
            server.run(lambda: server.server.stop(0.05))

            assert 0 == server.server.connection_count
            assert endpoints.futures["a"].cancelled()

    def test_a_connection_accepted_during_the_stop_is_closed(
        self, server: LiveServer, endpoints: ControlledEndpoints
    ) -> None:
        """The loop accepts a connection some time before it calls connection_made."""

        async def stop_in_between() -> asyncio.Server:
            accepted = server.server.new_connection()
            await server.server.stop(60)
            return await server.loop.create_server(lambda: accepted, "127.0.0.1", 0)

        async def close(listener: asyncio.Server) -> None:
            listener.close()
            await listener.wait_closed()

        listener = server.run(stop_in_between)
        with RawHttp(listener.sockets[0].getsockname()) as client, suppress(ConnectionError):
            client.send(get("/now/a"))
            client.expect_close()
        server.run(lambda: close(listener))
        assert [] == endpoints.called

    def test_a_server_without_connections_stops_at_once(self, server: LiveServer) -> None:
        server.run(lambda: server.server.stop(60))

        assert 0 == server.server.connection_count


def test_requests_are_logged_as_the_reference_logs_them(server: LiveServer) -> None:
    with server.connect() as client:
        client.send(get("/now/a?b=c"))
        client.expect(text(b"a"))
        host, port = client.socket.getsockname()

        (line,) = server.log_lines
        assert f" INFO: 200 GET /now/a?b=c ({host}:{port}) " in line


def test_endpoints_can_be_excluded_from_the_log() -> None:
    with live_server([Route("GET", "/now", lambda _: "now", is_logged=False)]) as server:
        with server.connect() as client:
            client.send(get("/now"))
            client.expect(text(b"now"))

        assert [] == server.log_lines


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    routes = [Route("GET", "/address", lambda request: request.client.address)]
    path = tmp_path / "http.sock"
    with live_server(routes, unix_path=path) as server, server.connect() as client:
        client.send(get("/address"))

        client.expect(text(b"@"))


def test_the_date_header_is_the_current_time(server: LiveServer) -> None:
    with server.connect() as client:
        client.send(get("/now/a"))
        answer = client.socket.recv(1000).decode()

    date = answer.partition("Date: ")[2].partition("\r\n")[0]
    assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 60
