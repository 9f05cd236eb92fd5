"""The blocking client: the same limits and errors as the asyncio client, and streams."""

from contextlib import AbstractContextManager
from typing import Any

import pytest
import trustme
from tests.net.http_client.scripted_server import ScriptedServer, scripted_server
from tests.net.http_client.server_thread import in_thread
from tests.net.http_client.test_client import serves_with, trusts

from penstock.common.errors import HttpRequestError
from penstock.net.http_client.blocking import BlockingHttpClient, HttpStream
from penstock.net.http_client.messages import HttpReply

CLIENT = BlockingHttpClient(
    connect_timeout_seconds=60, request_timeout_seconds=60, body_bytes_max=1000
)
HASTY = BlockingHttpClient(connect_timeout_seconds=60, request_timeout_seconds=0.3)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def serving(*answers: bytes, **script: Any) -> AbstractContextManager[ScriptedServer]:
    """A scripted server in a thread."""
    return in_thread(scripted_server(*answers, **script))


def url_of(server: ScriptedServer) -> str:
    return f"http://127.0.0.1:{server.port}/x?secret"


class TestFetch:
    @pytest.mark.parametrize(
        ("answer", "body"),
        [
            (OK + b"Content-Length: 2\r\n\r\nhi", b"hi"),
            (CHUNKED + b"2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n", b"hi!"),
            (OK + b"\r\nuntil the end", b"until the end"),
        ],
    )
    def test_a_body_is_read_to_its_end(self, answer: bytes, body: bytes) -> None:
        with serving(answer) as server:
            assert body == CLIENT.fetch("GET", url_of(server)).body

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (b"", "the connection closed before the response was complete"),
            (
                OK + b"Content-Length: 9\r\n\r\nhi",
                "the connection closed before the response was complete",
            ),
            (b"SSH-2.0-OpenSSH\r\n", "the response is not HTTP"),
            (OK + b"Content-Length: 1001\r\n\r\n", "response larger than 1000 bytes"),
            (OK + b"\r\n" + b"x" * 1001, "response larger than 1000 bytes"),
        ],
    )
    def test_an_incomplete_response_is_an_error(self, answer: bytes, reason: str) -> None:
        with serving(answer) as server, pytest.raises(HttpRequestError) as failure:
            CLIENT.fetch("GET", url_of(server))

        assert reason == failure.value.reason
        assert "secret" not in str(failure.value)

    @pytest.mark.parametrize("answer", [b"", OK, OK + b"Content-Length: 9\r\n\r\nhi"])
    def test_a_server_that_hangs_is_a_timeout(self, answer: bytes) -> None:
        with serving(answer, hangs=True) as server, pytest.raises(HttpRequestError) as failure:
            HASTY.fetch("GET", url_of(server))

        assert ("timed out", True) == (failure.value.reason, failure.value.timed_out)

    def test_an_endless_response_ends_at_the_deadline(self) -> None:
        with (
            serving(OK + b"\r\nx", repeats=True) as server,
            pytest.raises(HttpRequestError, match=r"timed out|larger than"),
        ):
            HASTY.fetch("GET", url_of(server))


class TestStream:
    def test_a_body_is_read_as_it_arrives(self) -> None:
        with (
            serving(CHUNKED + b"5\r\nhello\r\n", hangs=True) as server,
            CLIENT.stream(url_of(server)) as answer,
        ):
            assert isinstance(answer, HttpStream)
            assert b"hello" == answer.read()

    def test_readinto_fills_small_buffers(self) -> None:
        buffer = bytearray(2)
        with (
            serving(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n") as server,
            CLIENT.stream(url_of(server)) as answer,
        ):
            assert isinstance(answer, HttpStream)
            pieces = []
            while count := answer.readinto(memoryview(buffer)):
                pieces.append(bytes(buffer[:count]))

        assert [b"he", b"ll", b"o"] == pieces

    def test_a_stream_that_breaks_off_is_an_error(self) -> None:
        with (
            serving(CHUNKED + b"5\r\nhello\r\n") as server,
            CLIENT.stream(url_of(server)) as answer,
        ):
            assert isinstance(answer, HttpStream)
            assert b"hello" == answer.read()
            with pytest.raises(HttpRequestError, match="closed before the response was complete"):
                answer.read()

    def test_another_status_is_a_complete_reply(self) -> None:
        with (
            serving(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nhi") as server,
            CLIENT.stream(url_of(server)) as answer,
        ):
            assert HttpReply(404, {"content-length": "2"}, b"hi") == answer


def test_a_daemon_that_demands_https_is_asked_over_https() -> None:
    authority = trustme.CA()
    client = BlockingHttpClient(
        connect_timeout_seconds=60, request_timeout_seconds=60, ssl_context=trusts(authority)
    )
    with serving(OK + b"\r\nhi", context=serves_with(authority)) as secure:
        refusal = b'HTTP/1.1 403 No\r\n\r\n{"https_port":%d}' % secure.port
        with serving(refusal) as plain:
            assert b"hi" == client.call("GET", url_of(plain))
            with client.stream(url_of(plain)) as answer:
                assert isinstance(answer, HttpStream)
                assert b"hi" == answer.read()
