"""The asyncio client, with correct, broken, endless and missing responses."""

import socket
import ssl
from typing import Any

import pytest
import trustme
import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import HttpClient
from penstock.net.http_client.messages import HttpReply

CLIENT = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=60, body_bytes_max=1000)
HASTY = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=0.3, body_bytes_max=1000)

OK = b"HTTP/1.1 200 OK\r\n"


def fetch(answer: bytes, *, method: str = "GET", client: HttpClient = CLIENT, **script: Any) -> Any:
    """The reply to a request that the server answers with `answer`, or the reason of the error."""

    async def scene() -> object:
        async with scripted_server(answer, **script) as server:
            try:
                return await client.fetch(method, f"http://127.0.0.1:{server.port}/x")
            except HttpRequestError as error:
                return error.reason

    return uvloop.run(scene())


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (OK + b"Content-Length: 2\r\n\r\nhi", b"hi"),
            (OK + b"Content-Length: 0\r\n\r\n", b""),
            (
                OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\nA: b\r\n\r\n",
                b"hi!",
            ),
            (OK + b"\r\nuntil the end", b"until the end"),
            (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
            (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi", b"hi"),
            (OK + b"Content-Length: 2\r\n\r\nhi and garbage", b"hi"),
            (OK + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000, b"x" * 1000),
        ],
    )
    def test_a_body_is_read_to_its_end(self, answer: bytes, expected: bytes) -> None:
        reply = fetch(answer)

        assert (200, expected) == (reply.status, reply.body)

    def test_headers_are_in_lower_case_and_joined(self) -> None:
        reply = fetch(b"HTTP/1.1 404 Nope\r\nA: b \r\na: c\r\nContent-Length: 0\r\n\r\n")

        assert HttpReply(404, {"a": "b, c", "content-length": "0"}, b"") == reply

    def test_the_client_does_not_wait_after_the_end_of_a_response(self) -> None:
        assert b"hi" == fetch(OK + b"Content-Length: 2\r\n\r\nhi", hangs=True).body
        assert b"" == fetch(OK + b"Content-Length: 2\r\n\r\n", hangs=True, method="HEAD").body
        assert 204 == fetch(b"HTTP/1.1 204 No Content\r\n\r\n", hangs=True).status

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (b"", "the connection closed before the response was complete"),
            (
                OK + b"Content-Length: 9\r\n\r\nhi",
                "the connection closed before the response was complete",
            ),
            (OK + b"Content-Le", "the connection closed before the response was complete"),
            (
                OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
                "the connection closed before the response was complete",
            ),
            (b"SSH-2.0-OpenSSH\r\n", "the response is not HTTP"),
            (OK + b"Transfer-Encoding: gzip\r\n\r\nhi", "unknown transfer encoding 'gzip'"),
            (
                b"HTTP/1.1 101 Hm\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
                "the server switched to another protocol",
            ),
            (OK + b"Content-Length: 1001\r\n\r\n", "response larger than 1000 bytes"),
            (OK + b"\r\n" + b"x" * 1001, "response larger than 1000 bytes"),
        ],
    )
    def test_an_incomplete_response_is_an_error(self, answer: bytes, reason: str) -> None:
        assert reason == fetch(answer)

    @pytest.mark.parametrize(
        ("endless", "reason"),
        [
            (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "more than 65536 bytes of headers"),
            (OK + b"\r\n" + b"x" * 10000, "response larger than 1000 bytes"),
        ],
    )
    def test_an_endless_response_is_cut_off(self, endless: bytes, reason: str) -> None:
        assert reason == fetch(endless, repeats=True)

    @pytest.mark.parametrize("start", [OK + b"A: ", OK + b"Transfer-Encoding: chunked\r\n\r\n1;"])
    def test_an_endless_line_is_cut_off(self, start: bytes) -> None:
        assert "more than 65536 bytes of headers" == fetch(start + b"x" * (1 << 20), hangs=True)

    @pytest.mark.parametrize(
        "answer", [b"", OK, OK + b"Content-Length: 9\r\n\r\nhi", OK + b"\r\nhi"]
    )
    def test_a_server_that_hangs_is_a_timeout(self, answer: bytes) -> None:
        assert "timed out" == fetch(answer, hangs=True, client=HASTY)


class TestRequests:
    def test_bytes_of_a_request(self) -> None:
        async def scene() -> bytes:
            async with scripted_server(OK + b"Content-Length: 0\r\n\r\n") as server:
                await CLIENT.fetch(
                    "POST",
                    f"http://ann:s%20@127.0.0.1:{server.port}?a=b",
                    headers=[("X-Y", "z")],
                    body=b"{}",
                )
                return server.requests[0].replace(str(server.port).encode(), b"PORT")

        expected = (
            b"POST /?a=b HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n"
            b"Content-Length: 2\r\nAuthorization: Basic YW5uOnMg\r\nX-Y: z\r\n\r\n{}"
        )
        assert expected == uvloop.run(scene())

    def test_ipv6(self) -> None:
        async def scene() -> tuple[int, bytes]:
            async with scripted_server(OK + b"Content-Length: 0\r\n\r\n", host="::1") as server:
                reply = await CLIENT.fetch("GET", f"http://[::1]:{server.port}/")
                return reply.status, server.requests[0].split(b"\r\n")[1][:12]

        assert (200, b"Host: [::1]:") == uvloop.run(scene())

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("ftp://a/", "ftp://a/: not an http:// or https:// URL"),
            ("a:4161/x", "a:4161/x: not an http:// or https:// URL"),
            ("http:///x", "http:///x: not an http:// or https:// URL"),
            ("http://ä/", "http://ä/: not an http:// or https:// URL"),
            (
                "http://a:b/",
                "http://a:b/: not a URL: Port could not be cast to integer value as 'b'",
            ),
            ("http://a:99999/", "http://a:99999/: not a URL: Port out of range 0-65535"),
            ("http://u:secret@a:x/?secret", "http://a:x/: not a URL: Port could not be cast to"),
            ("http://a/b c", "http://a/b c: the request has a character that HTTP does not"),
        ],
    )
    def test_an_invalid_url_is_an_error_without_secrets(self, url: str, shown: str) -> None:
        with pytest.raises(HttpRequestError) as failure:
            uvloop.run(CLIENT.fetch("GET", url))

        assert str(failure.value).startswith(shown)

    @pytest.mark.parametrize("header", [("A", "b\r\nC: d"), ("A b", "c"), ("A", "ä")])
    def test_a_header_cannot_smuggle_another_in(self, header: tuple[str, str]) -> None:
        with pytest.raises(HttpRequestError, match="a character that HTTP does not allow"):
            uvloop.run(CLIENT.fetch("GET", "http://127.0.0.1:1/", headers=[header]))

    def test_a_refused_connection_is_an_error(self) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]

            with pytest.raises(HttpRequestError, match=r"refused|Connect call failed"):
                uvloop.run(CLIENT.fetch("GET", f"http://127.0.0.1:{port}/?secret"))

    def test_an_unknown_host_is_an_error(self) -> None:
        for host in ("no-such-host.invalid", f"{'a' * 64}.invalid"):
            with pytest.raises(HttpRequestError, match=host):
                uvloop.run(CLIENT.fetch("GET", f"http://{host}/"))


class TestTls:
    def test_the_certificate_of_a_server_is_verified(self) -> None:
        authority = trustme.CA()
        trusting = HttpClient(
            connect_timeout_seconds=60, request_timeout_seconds=60, ssl_context=trusts(authority)
        )

        async def scene() -> tuple[bytes, str]:
            served = serves_with(authority)
            answer = OK + b"Content-Length: 2\r\n\r\nhi"
            async with scripted_server(answer, context=served) as server:
                url = f"https://127.0.0.1:{server.port}/"
                body = (await trusting.fetch("GET", url)).body
                try:
                    await CLIENT.fetch("GET", url)
                except HttpRequestError as error:
                    return body, error.reason
                return body, "was not verified"

        body, reason = uvloop.run(scene())

        assert b"hi" == body
        assert reason.startswith("certificate verify failed: ")

    def test_a_tls_handshake_that_hangs_is_a_timeout(self) -> None:
        async def scene() -> None:
            client = HttpClient(connect_timeout_seconds=0.2, request_timeout_seconds=10)
            async with scripted_server(hangs=True) as server:
                await client.fetch("GET", f"https://127.0.0.1:{server.port}/")

        with pytest.raises(HttpRequestError, match="timed out while connecting"):
            uvloop.run(scene())


def trusts(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def serves_with(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


class TestV1:
    def test_version_1_is_requested_and_json_decoded(self) -> None:
        async def scene() -> tuple[object, bytes]:
            async with scripted_server(OK + b'Content-Length: 7\r\n\r\n{"a":1}') as server:
                url = f"http://127.0.0.1:{server.port}/x"
                return await CLIENT.get_json(url, dict[str, int]), server.requests[0]

        decoded, request = uvloop.run(scene())

        assert {"a": 1} == decoded
        assert b"\r\nAccept: application/vnd.nsq; version=1.0\r\n" in request

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (OK + b"\r\n{", "unexpected response: Input data was truncated"),
            (OK + b"\r\n[]", "unexpected response: Expected `object`, got `array`"),
            (OK + b"\r\n" + b"[" * 1000, "unexpected response: "),
            (OK + b'\r\n{"\xff":1}', "unexpected response: JSON is malformed: not UTF-8"),
            (b"HTTP/1.1 500 Oh\r\n\r\nno", "got response 500 'no'"),
            (b"HTTP/1.1 403 No\r\n\r\n{}", "got response 403 '{}'"),
            (b'HTTP/1.1 403 No\r\n\r\n{"https_port":99999}', "not a URL: Port out of range"),
            (b"HTTP/1.1 302 There\r\nLocation: /\r\n\r\n", "got response 302 ''"),
        ],
    )
    def test_any_other_response_is_an_error(self, answer: bytes, reason: str) -> None:
        async def scene() -> None:
            async with scripted_server(answer) as server:
                await CLIENT.get_json(f"http://127.0.0.1:{server.port}/?secret", dict[str, int])

        with pytest.raises(HttpRequestError) as failure:
            uvloop.run(scene())

        assert failure.value.reason.startswith(reason)
        assert "secret" not in str(failure.value)

    def test_a_daemon_that_demands_https_is_asked_over_https(self) -> None:
        authority = trustme.CA()
        client = HttpClient(
            connect_timeout_seconds=60, request_timeout_seconds=60, ssl_context=trusts(authority)
        )
        served = serves_with(authority)

        async def scene() -> tuple[bytes, bytes]:
            async with scripted_server(OK + b"\r\nhi", context=served) as secure:
                refusal = b'HTTP/1.1 403 No\r\n\r\n{"https_port":%d}' % secure.port
                async with scripted_server(refusal) as plain:
                    body = await client.call(
                        "POST", f"http://127.0.0.1:{plain.port}/x?y", body=b"z"
                    )
                    return body, secure.requests[0].replace(str(secure.port).encode(), b"PORT")

        body, request = uvloop.run(scene())

        assert b"hi" == body
        assert request.startswith(b"POST /x?y HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n")
        assert request.endswith(b"\r\n\r\nz")
