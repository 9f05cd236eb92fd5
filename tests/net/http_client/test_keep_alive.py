"""Kept connections, and servers that close them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
import uvloop
from tests.net.http_client.counting_server import CLOSE, OK, CountingServer, counting_server

from penstock.common.errors import HttpRequestError
from penstock.net.http_client import idle_connections
from penstock.net.http_client.client import HttpClient


def with_server(
    scenario: Callable[[HttpClient, str], Coroutine[Any, Any, None]],
    *answers: bytes,
    options: Mapping[str, Any] = {},
    **script: Any,
) -> CountingServer:
    """Runs the scenario with a client that has these `options` and a URL, and returns the server
    with its records."""

    async def scene() -> CountingServer:
        client = HttpClient(
            connect_timeout_seconds=60, request_timeout_seconds=60, keep_alive=True, **options
        )
        async with counting_server(*answers, **script) as server:
            try:
                await scenario(client, f"http://127.0.0.1:{server.port}/x")
            finally:
                client.close()
        return server

    return uvloop.run(scene())


async def twice(client: HttpClient, url: str) -> None:
    for _ in range(2):
        assert b"hi" == (await client.fetch("GET", url)).body
        await asyncio.sleep(0.01)  # so that we know of a connection that was closed


def test_one_connection_carries_consecutive_requests() -> None:
    server = with_server(twice)

    assert (1, 2) == server.counts
    assert b"Connection: close" not in server.requests[0]


def test_concurrent_requests_use_separate_connections_and_keep_them() -> None:
    async def scenario(client: HttpClient, url: str) -> None:
        for _ in range(3):
            await asyncio.gather(*(client.fetch("GET", url) for _ in range(4)))

    server = with_server(scenario)

    assert (4, 12) == server.counts


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"and more",
        OK + OK,
    ],
)
def test_a_connection_is_not_kept_if_the_response_forbids_it(answer: bytes) -> None:
    server = with_server(twice, answer)

    assert (2, 2) == server.counts


def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    server = with_server(twice, requests_max=1)

    assert (2, 2) == server.counts


def test_a_request_is_repeated_if_the_server_closes_a_kept_connection() -> None:
    server = with_server(twice, requests_max=1, waits_for_one_more=True)

    assert (2, 2) == server.counts


def test_half_a_response_is_an_error() -> None:
    async def scenario(client: HttpClient, url: str) -> None:
        for _ in range(2):
            with pytest.raises(HttpRequestError, match="closed before the response was complete"):
                await client.fetch("POST", url)

    with_server(scenario, OK[:-1], requests_max=1)


async def post_twice(client: HttpClient, url: str) -> None:
    for _ in range(2):
        assert b"hi" == (await client.fetch("POST", url)).body


def test_a_post_is_not_repeated_because_the_server_may_have_executed_it() -> None:
    async def scenario(client: HttpClient, url: str) -> None:
        with pytest.raises(HttpRequestError, match="closed before the response was complete"):
            await post_twice(client, url)

    server = with_server(scenario, OK, CLOSE)

    assert (1, 2) == server.counts


def test_a_post_is_repeated_if_the_client_is_told_so() -> None:
    server = with_server(post_twice, OK, CLOSE, OK, options={"repeats_posts": True})

    assert (2, 3) == server.counts


def test_a_request_is_repeated_only_once() -> None:
    async def scenario(client: HttpClient, url: str) -> None:
        await asyncio.gather(*(client.fetch("GET", url) for _ in range(4)))
        with pytest.raises(HttpRequestError, match="closed before the response was complete"):
            await client.fetch("GET", url)

    server = with_server(scenario, OK, OK, OK, OK, CLOSE)

    assert (5, 6) == server.counts


def test_the_number_of_idle_connections_is_limited() -> None:
    async def scenario(client: HttpClient, url: str) -> None:
        for _ in range(2):
            await asyncio.gather(*(client.fetch("GET", url) for _ in range(4)))

    server = with_server(scenario, options={"idle_per_server_max": 1})

    assert (7, 8) == server.counts


def test_an_expired_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_connections, "IDLE_SECONDS", 0.0)
    server = with_server(twice)

    assert (2, 2) == server.counts


def test_a_response_limit_of_one_request_does_not_cost_a_connection() -> None:
    async def scenario(client: HttpClient, url: str) -> None:
        await client.fetch("GET", url, body_bytes_max=2)
        await client.fetch("GET", url)
        with pytest.raises(HttpRequestError, match="response larger than 1 bytes"):
            await client.fetch("GET", url, body_bytes_max=1)

    server = with_server(scenario)

    assert (1, 3) == server.counts
