"""Kept connections of the blocking client, and servers that close them."""

import copy
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import trustme
from tests.net.http_client.counting_server import CLOSE, OK, CountingServer, counting_server
from tests.net.http_client.server_thread import in_thread
from tests.net.http_client.test_client import serves_with, trusts

from penstock.common.errors import HttpRequestError
from penstock.net.http_client import idle_connections
from penstock.net.http_client.blocking import BlockingHttpClient, HttpStream
from penstock.net.http_client.messages import HttpReply
from penstock.testing.waiting import wait_until

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
ECHO = b"HTTP/1.1 200 OK\r\nContent-Length: $SIZE\r\n\r\n$PATH"


@pytest.fixture
def client() -> BlockingHttpClient:
    return BlockingHttpClient(connect_timeout_seconds=60, request_timeout_seconds=60)


def counting(*answers: bytes, **script: Any) -> AbstractContextManager[CountingServer]:
    return in_thread(counting_server(*answers, **script))


def url_of(server: CountingServer, path: str = "/x") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def wait_for_open(server: CountingServer, count: int) -> None:
    wait_until(lambda: server.open_connections == count, f"{count} open connections")


class TestReuse:
    def test_one_connection_carries_consecutive_requests(self, client: BlockingHttpClient) -> None:
        with counting() as server:
            for method in ("GET", "POST", "GET"):
                assert b"hi" == client.fetch(method, url_of(server), body=b"").body

        assert (1, 3) == server.counts
        assert b"Connection: close" not in server.requests[0]

    def test_threads_get_their_own_responses(self, client: BlockingHttpClient) -> None:
        def fetch(number: int) -> bytes:
            return client.fetch("GET", url_of(server, f"/{number}")).body

        with counting(ECHO) as server, ThreadPoolExecutor(4) as threads:
            bodies = list(threads.map(fetch, range(200)))

        assert [b"/%d" % number for number in range(200)] == bodies
        assert server.connections <= 4

    def test_the_number_of_idle_connections_is_limited(self, client: BlockingHttpClient) -> None:
        idle_max = idle_connections.IDLE_PER_SERVER_MAX
        count = idle_max + 3
        all_open = threading.Barrier(count)

        def stream() -> None:
            with client.stream(url_of(server)) as answer:
                assert isinstance(answer, HttpStream)
                assert b"hi" == answer.read()
                all_open.wait(60)

        with counting() as server:
            with ThreadPoolExecutor(count) as threads:
                for each in [threads.submit(stream) for _ in range(count)]:
                    each.result()
            wait_for_open(server, idle_max)
            client.close()
            wait_for_open(server, 0)

        assert count == server.connections

    def test_an_expired_connection_is_replaced(
        self, client: BlockingHttpClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(idle_connections, "IDLE_SECONDS", 0.0)
        with counting() as server:
            for _ in range(2):
                client.fetch("GET", url_of(server))

        assert (2, 2) == server.counts

    def test_expired_connections_to_other_servers_are_closed(
        self, client: BlockingHttpClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with counting() as unused, counting() as used:
            client.fetch("GET", url_of(unused))
            monkeypatch.setattr(idle_connections, "IDLE_SECONDS", 0.0)
            client.fetch("GET", url_of(used))
            wait_for_open(unused, 0)

    @pytest.mark.parametrize(
        "answer",
        [
            OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            OK + b"and more",
            OK + OK,
        ],
    )
    def test_a_connection_is_not_kept_if_the_response_forbids_it(
        self, client: BlockingHttpClient, answer: bytes
    ) -> None:
        with counting(answer) as server:
            for _ in range(2):
                assert b"hi" == client.fetch("GET", url_of(server)).body

        assert (2, 2) == server.counts

    def test_an_encrypted_connection_is_kept(self) -> None:
        authority = trustme.CA()
        client = BlockingHttpClient(
            connect_timeout_seconds=60, request_timeout_seconds=60, ssl_context=trusts(authority)
        )
        with counting(context=serves_with(authority)) as server:
            for _ in range(3):
                url = f"https://127.0.0.1:{server.port}/"
                assert b"hi" == client.fetch("GET", url).body

        assert (1, 3) == server.counts


class TestRepeat:
    def test_a_kept_connection_that_the_server_closed_is_replaced(
        self, client: BlockingHttpClient
    ) -> None:
        with counting(requests_max=1) as server:
            client.fetch("POST", url_of(server))
            wait_for_open(server, 0)
            client.fetch("POST", url_of(server))

        assert (2, 2) == server.counts

    def test_a_get_is_repeated_if_the_server_closes_a_kept_connection(
        self, client: BlockingHttpClient
    ) -> None:
        with counting(requests_max=1, waits_for_one_more=True) as server:
            for _ in range(2):
                assert b"hi" == client.fetch("GET", url_of(server)).body

        assert (2, 2) == server.counts

    def test_a_post_is_not_repeated_because_the_server_may_have_executed_it(
        self, client: BlockingHttpClient
    ) -> None:
        with counting(OK, CLOSE) as server:
            client.fetch("POST", url_of(server))
            with pytest.raises(HttpRequestError, match="closed before the response was complete"):
                client.fetch("POST", url_of(server))

        assert (1, 2) == server.counts

    def test_a_post_is_repeated_if_it_was_not_sent_completely(
        self, client: BlockingHttpClient
    ) -> None:
        more_than_socket_buffers = bytes(32 << 20)
        with counting(requests_max=1, waits_for_one_more=True) as server:
            client.fetch("POST", url_of(server))
            client.fetch("POST", url_of(server), body=more_than_socket_buffers)

        assert (2, 2) == server.counts

    def test_half_a_response_is_an_error(self, client: BlockingHttpClient) -> None:
        with counting(OK, OK[:-1], requests_max=2) as server:
            client.fetch("GET", url_of(server))
            with pytest.raises(HttpRequestError, match="closed before the response was complete"):
                client.fetch("GET", url_of(server))

        assert (1, 2) == server.counts

    def test_a_request_is_repeated_only_once(self, client: BlockingHttpClient) -> None:
        with counting(OK, CLOSE) as server:
            client.fetch("GET", url_of(server))
            with pytest.raises(HttpRequestError, match="closed before the response was complete"):
                client.fetch("GET", url_of(server))

        assert (2, 3) == server.counts

    def test_a_timeout_is_not_repeated(self) -> None:
        hasty = BlockingHttpClient(connect_timeout_seconds=60, request_timeout_seconds=0.3)
        with counting(OK, b"") as server:
            hasty.fetch("GET", url_of(server))
            with pytest.raises(HttpRequestError, match="timed out"):
                hasty.fetch("GET", url_of(server))

        assert (1, 2) == server.counts


class TestStreams:
    def test_a_stream_that_was_read_completely_keeps_its_connection(
        self, client: BlockingHttpClient
    ) -> None:
        with counting(CHUNKED + b"0\r\n\r\n") as server:
            for _ in range(2):
                with client.stream(url_of(server)) as answer:
                    assert isinstance(answer, HttpStream)
                    assert b"hi" == answer.read()
                    assert b"" == answer.read()

        assert (1, 2) == server.counts

    def test_a_connection_is_not_used_twice_while_its_stream_is_open(
        self, client: BlockingHttpClient
    ) -> None:
        with counting() as server, client.stream(url_of(server)):
            client.fetch("GET", url_of(server))

        assert (2, 2) == server.counts

    def test_a_stream_that_was_not_read_completely_closes_its_connection(
        self, client: BlockingHttpClient
    ) -> None:
        with counting(CHUNKED, OK) as server:
            with client.stream(url_of(server)) as answer:
                assert isinstance(answer, HttpStream)
                assert b"hi" == answer.read()
            assert b"hi" == client.fetch("GET", url_of(server)).body

        assert (2, 2) == server.counts

    def test_a_complete_reply_in_place_of_a_stream_keeps_its_connection(
        self, client: BlockingHttpClient
    ) -> None:
        with counting(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno", OK) as server:
            with client.stream(url_of(server)) as answer:
                assert isinstance(answer, HttpReply)
            client.fetch("GET", url_of(server))

        assert (1, 2) == server.counts


class TestCopies:
    def test_a_closed_client_can_still_be_used(self, client: BlockingHttpClient) -> None:
        with counting() as server:
            client.fetch("GET", url_of(server))
            client.close()
            wait_for_open(server, 0)
            client.fetch("GET", url_of(server))

        assert (2, 2) == server.counts

    def test_connections_are_closed_with_the_client(self) -> None:
        with counting() as server:
            client = BlockingHttpClient(connect_timeout_seconds=60, request_timeout_seconds=60)
            client.fetch("GET", url_of(server))
            del client
            wait_for_open(server, 0)

    def test_a_copy_starts_without_connections(self, client: BlockingHttpClient) -> None:
        with counting() as server:
            client.fetch("GET", url_of(server))
            copies = [
                pickle.loads(pickle.dumps(client)),
                copy.copy(client),
                copy.deepcopy(client),
                replace(client),
            ]
            for each in copies:
                assert client == each
                each.fetch("GET", url_of(server))
            client.fetch("GET", url_of(server))

        assert (5, 6) == server.counts

    def test_a_forked_process_opens_its_own_connections(self) -> None:
        with counting(ECHO) as server:
            program = [sys.executable, "-c", _FORKING_PROGRAM, url_of(server, "")]
            done = subprocess.run(program, capture_output=True, check=False, timeout=60)

        assert (0, b"") == (done.returncode, done.stderr)
        assert (2, 4) == server.counts


_FORKING_PROGRAM = """
import os, sys
from penstock.net.http_client.blocking import BlockingHttpClient

client = BlockingHttpClient(connect_timeout_seconds=60, request_timeout_seconds=60)
url = sys.argv[1]
assert b"/1" == client.fetch("GET", url + "/1").body
child = os.fork()
if not child:
    assert b"/2" == client.fetch("GET", url + "/2").body
    assert b"/3" == client.fetch("GET", url + "/3").body
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert b"/4" == client.fetch("GET", url + "/4").body
sys.exit(os.waitstatus_to_exitcode(status))
"""
