"""The life of a server and of its connections: slow peers, the gate, the log, and the end."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
from tests.net.http_server.endpoints import HEADERS, INTERNAL_ERROR, TEXT, Waiter, get, text
from tests.net.http_server.live_server import LiveServer, RawHttp, live_server

from penstock.net.http_server import Limits, Request, Response, Route, json_response
from penstock.testing.waiting import wait_until

TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\n" + TEXT + b"Connection: close\r\n\r\n408 Request Timeout"
)


HASTE = 0.1
HURRY = Limits(
    head_seconds=HASTE,
    body_seconds=HASTE,
    idle_seconds=HASTE,
    write_seconds=HASTE,
    linger_seconds=HASTE,
)


def connected(server: LiveServer, sent: bytes) -> RawHttp:
    """One whose first bytes come with its connection, however busy the machine is."""
    with server.asleep():
        client = server.connect()
        client.send(sent)
    return client


class TestSlowPeers:
    @pytest.fixture
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/now", lambda _: "now"),
            Route("POST", "/pub", lambda _: "OK"),
            Route("GET", "/big", lambda _: "x" * (1 << 20)),
        ]

    def test_one_that_says_nothing_is_left(self, routes: list[Route]) -> None:
        with live_server(routes, limits=HURRY) as server, server.connect() as client:
            assert b"" == client.read_all()

    def test_one_that_asks_no_more_is_left(self, routes: list[Route]) -> None:
        limits = Limits(idle_seconds=HASTE)
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
    def test_one_that_does_not_finish_its_request_is_told_and_left(
        self, routes: list[Route], sent: bytes
    ) -> None:
        with live_server(routes, limits=HURRY) as server, connected(server, sent) as client:
            assert TOO_LATE == client.read_all()
            assert {408: 1} == server.server.refusals

    @pytest.mark.parametrize(
        "start", [b"x", b"POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n"]
    )
    def test_one_that_sends_a_byte_now_and_then_gains_no_time(
        self, routes: list[Route], start: bytes
    ) -> None:
        limits = replace(HURRY, linger_seconds=60)  # Who is told need not have gone by then.
        with live_server(routes, limits=limits) as server, connected(server, start) as client:
            client.socket.settimeout(HASTE / 10)
            for _ in range(6000):
                try:
                    client.send(b"x")
                    if answer := client.socket.recv(1000):
                        assert answer.startswith(b"HTTP/1.1 408 ")
                        break
                except TimeoutError:
                    continue
            else:
                pytest.fail("it was never told")

    def test_one_that_does_not_read_is_not_served(self) -> None:
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

    def test_one_that_does_not_read_is_left(self, routes: list[Route]) -> None:
        with live_server(routes, limits=HURRY) as server, connected(server, get("/big") * 20):
            wait_until(lambda: not server.server.connections, "the connection to be closed")

    def test_one_that_reads_slowly_gets_all_of_its_last_answer(self) -> None:
        limits = Limits(linger_seconds=HASTE)
        size = 1 << 24  # more than sockets hold
        routes = [Route("GET", "/big", lambda _: "x" * size)]
        with live_server(routes, limits=limits) as server, server.connect() as client:
            client.send(get("/big", "Connection: close"))
            client.read(1000)
            long_after = time.monotonic() + 5 * HASTE
            wait_until(lambda: time.monotonic() > long_after, "the time to linger to pass")

            assert size - 1000 < len(client.read_all()) < size

    def test_one_that_goes_on_sending_after_it_was_refused_is_left(
        self, routes: list[Route]
    ) -> None:
        with live_server(routes, limits=HURRY) as server, connected(server, b"garbage\r\n"):
            wait_until(lambda: not server.server.connections, "the connection to be closed")


class TestTheGate:
    @pytest.fixture
    def server(self) -> Iterator[LiveServer]:
        def gate(request: Request) -> Response | None:
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
        with live_server(routes, gates=(gate,)) as live:
            yield live

    FORBIDDEN = (
        b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json; charset=utf-8\r\n"
        + HEADERS
        + b"Content-Length: 24\r\n\r\n"
        + b'{"message": "FORBIDDEN"}'
    )

    def test_it_may_answer_in_place_of_a_route(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/now") + get("/nope") + get("/now", "Authorization: Bearer good"))

            client.expect(self.FORBIDDEN * 2 + text(b"now"))

    def test_of_several_the_first_to_answer_does(self) -> None:
        def second(request: Request) -> Response | None:
            return json_response(403, b"2") if request.path == "/second" else None

        def third(request: Request) -> Response | None:
            return json_response(403, b"3") if request.path != "/now" else None

        routes = [Route("GET", "/now", lambda _: "now")]
        gates = (lambda _: None, second, third)
        with live_server(routes, gates=gates) as live, live.connect() as client:
            client.send(get("/second") + get("/third") + get("/now"))

            forbidden = self.FORBIDDEN.replace(b"24", b"1").replace(
                b'{"message": "FORBIDDEN"}', b"%b"
            )
            client.expect(forbidden % b"2" + forbidden % b"3" + text(b"now"))

    def test_it_lets_bodies_through(self, server: LiveServer) -> None:
        with server.connect() as client:
            head = b"POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
            client.send(head + b"\r\nhello" + head + b"Authorization: Bearer good\r\n\r\nhello")

            client.expect(self.FORBIDDEN + text(b"hello"))

    def test_it_answers_before_a_body_is_asked_for(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(
                b"POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )

            expected = self.FORBIDDEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            assert expected == client.read_all()

    def test_its_failure_opens_nothing(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/now", "Authorization: Bearer bug"))

            client.expect(INTERNAL_ERROR)


class TestTheEnd:
    def test_idle_connections_are_closed(self, server: LiveServer) -> None:
        with server.connect() as client, server.connect() as silent:
            client.send(get("/now/a"))
            client.expect(text(b"a"))
            wait_until(lambda: server.server.connections == 2, "both")
            server.run(lambda: server.server.stop(60))

            client.expect_close()
            silent.expect_close()

    def test_what_was_asked_for_is_answered(self, server: LiveServer, waiter: Waiter) -> None:
        with server.connect() as client:
            client.send(get("/future/a") + get("/future/b"))
            waiter.await_served("a", "b")
            stopped = asyncio.run_coroutine_threadsafe(server.server.stop(60), server.loop)
            server.run(lambda: asyncio.sleep(0))
            client.send(get("/now/c"))
            waiter.answer(server, "a", "A")
            waiter.answer(server, "b", "B")

            assert text(b"A") + text(b"B", b"Connection: close\r\n") == client.read_all()
            stopped.result(60)
            assert ["a", "b"] == waiter.served

    def test_a_request_under_way_is_answered(self, server: LiveServer) -> None:
        with server.connect() as client:
            client.send(get("/now/a") + get("/now/b")[:20])
            client.expect(text(b"a"))
            stopped = asyncio.run_coroutine_threadsafe(server.server.stop(60), server.loop)
            server.run(lambda: asyncio.sleep(0))
            client.send(get("/now/b")[20:])

            assert text(b"b", b"Connection: close\r\n") == client.read_all()
            stopped.result(60)

    def test_it_does_not_wait_for_ever(self, server: LiveServer, waiter: Waiter) -> None:
        with server.connect() as client:
            client.send(get("/coroutine/a"))
            waiter.await_served("a")
            server.run(lambda: server.server.stop(0.05))

            assert 0 == server.server.connections
            assert waiter.futures["a"].cancelled()

    def test_who_was_accepted_and_comes_too_late_is_not_served(
        self, server: LiveServer, waiter: Waiter
    ) -> None:
        """The loop accepts a connection a moment before it says that there is one."""

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
        assert [] == waiter.served

    def test_nobody_there_is_no_wait(self, server: LiveServer) -> None:
        server.run(lambda: server.server.stop(60))

        assert 0 == server.server.connections


def test_requests_are_logged_as_the_reference_logs_them(server: LiveServer) -> None:
    with server.connect() as client:
        client.send(get("/now/a?b=c"))
        client.expect(text(b"a"))
        host, port = client.socket.getsockname()

        (line,) = server.log_lines
        assert f" INFO: 200 GET /now/a?b=c ({host}:{port}) " in line


def test_endpoints_may_keep_out_of_the_log() -> None:
    with live_server([Route("GET", "/now", lambda _: "now", logged=False)]) as server:
        with server.connect() as client:
            client.send(get("/now"))
            client.expect(text(b"now"))

        assert [] == server.log_lines


def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    routes = [Route("GET", "/who", lambda request: request.peer.address)]
    path = tmp_path / "http.sock"
    with live_server(routes, unix_path=path) as server, server.connect() as client:
        client.send(get("/who"))

        client.expect(text(b"@"))


def test_the_date_is_now(server: LiveServer) -> None:
    with server.connect() as client:
        client.send(get("/now/a"))
        answer = client.socket.recv(1000).decode()

    date = answer.partition("Date: ")[2].partition("\r\n")[0]
    assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 60
