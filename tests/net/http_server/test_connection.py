"""Raw requests and their raw responses; each request is sent whole, and byte by byte."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.net.http_server.live_server import DATE, LiveServer, RawHttp, crlf, live_server

from penstock.net.http_server import OK, PLAIN_TEXT, HttpError, HttpLimits, Request, Route

BODY_BYTES_MAX = 20
HEAD_BYTES_MAX = 4096


def ping(_: Request) -> str:
    return "OK"


def echo(request: Request) -> object:
    """Everything that an endpoint sees of a request."""
    return {
        "method": request.method,
        "path": request.path,
        "args": request.args,
        "params": request.params,
        "agent": request.header("User-Agent"),
        "body": request.body.decode(),
    }


def publish(request: Request) -> object:
    if not request.body:
        raise HttpError(400, "MSG_EMPTY")
    return OK


def fail(_: Request) -> object:
    raise ZeroDivisionError("secret")


def refuse_plainly(_: Request) -> object:
    raise HttpError(500, "NOK - disk full")


ROUTES = [
    Route("GET", "/ping", ping, response_format=PLAIN_TEXT),
    Route("GET", "/sick", refuse_plainly, response_format=PLAIN_TEXT),
    Route("GET", "/echo", echo),
    Route("POST", "/echo", echo, body_bytes_max=BODY_BYTES_MAX),
    Route("POST", "/pub", publish, body_bytes_max=BODY_BYTES_MAX, too_large_code="MSG_TOO_BIG"),
    Route("POST", "/topic/create", lambda _: None),
    Route("GET", "/config/:opt", lambda request: request.params["opt"]),
    Route("PUT", "/config/:opt", echo, body_bytes_max=BODY_BYTES_MAX),
    Route("GET", "/fail", fail),
    Route("GET", "/json", lambda _: {"a": [1, 2.5, None, True, "<&>"]}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    # A test that sends byte by byte may take long to finish sending after it was refused.
    limits = HttpLimits(head_bytes_max=HEAD_BYTES_MAX, linger_seconds=60)
    with live_server(ROUTES, limits=limits) as live:
        yield live


V1 = "X-Nsq-Content-Type: nsq; version=1.0"
JSON = "Content-Type: application/json; charset=utf-8"
TEXT = "Content-Type: text/plain; charset=utf-8"


def response(status: str, *headers: str, body: str = "", after: tuple[str, ...] = ()) -> bytes:
    """A response as Go's server orders it: set headers, date, length, and the rest."""
    lines = [f"HTTP/1.1 {status}", *headers, DATE.decode(), f"Content-Length: {len(body)}", *after]
    return "\r\n".join([*lines, "", body]).encode()


def v1_text(text: str, *after: str) -> bytes:
    return response("200 OK", V1, body=text, after=(TEXT, *after))


def v1_json(text: str) -> bytes:
    return response("200 OK", JSON, V1, body=text)


def v1_error(status: str, code: str, *after: str) -> bytes:
    return response(status, JSON, V1, body=f'{{"message":"{code}"}}', after=after)


def refused(status: str) -> bytes:
    """The response to a malformed request."""
    return f"HTTP/1.1 {status}\r\n{TEXT}\r\nConnection: close\r\n\r\n{status}".encode()


BAD = refused("400 Bad Request")
NOT_FOUND = v1_error("404 Not Found", "NOT_FOUND")
PONG = response("200 OK", body="OK", after=(TEXT,))
PING = crlf("""
    GET /ping HTTP/1.1
    Host: a
""")


def not_allowed(allow: str) -> bytes:
    body = '{"message":"METHOD_NOT_ALLOWED"}'
    return response("405 Method Not Allowed", f"Allow: {allow}", JSON, V1, body=body)


def moved(location: str) -> bytes:
    body = f'<a href="{location.replace("&", "&amp;")}">Moved Permanently</a>.\n\n'
    html = "Content-Type: text/html; charset=utf-8"
    return response("301 Moved Permanently", html, f"Location: {location}", body=body)


def elsewhere(location: str) -> bytes:
    return response("307 Temporary Redirect", f"Location: {location}")


def request(line: str, *headers: str, body: str = "") -> bytes:
    return crlf("\n".join([f"{line} HTTP/1.1", "Host: a", *headers])) + body.encode()


def post(target: str, body: str, *headers: str) -> bytes:
    return request(f"POST {target}", f"Content-Length: {len(body)}", *headers, body=body)


def chunked(target: str, chunks: str, *headers: str) -> bytes:
    return request(f"POST {target}", "Transfer-Encoding: chunked", *headers, body=chunks)


def echoed(
    method: str = "POST",
    path: str = "/echo",
    *,
    args: dict[str, str] | None = None,
    agent: str | None = None,
    body: str = "",
) -> bytes:
    seen = {
        "method": method,
        "path": path,
        "args": args or {},
        "params": {},
        "agent": agent,
        "body": body,
    }
    return v1_json(json.dumps(seen, separators=(",", ":")))


class Exchange(NamedTuple):
    """A request and its response; then the connection stays open if `stays`."""

    name: str
    sent: bytes
    expected: bytes
    stays: bool = True


ENVELOPES = [
    Exchange("plain text", PING, PONG),
    Exchange(
        "a plain text error",
        request("GET /sick"),
        response("500 Internal Server Error", body="NOK - disk full", after=(TEXT,)),
    ),
    Exchange("V1 text", post("/pub", "x"), v1_text("OK")),
    Exchange("V1 nothing", request("POST /topic/create"), response("200 OK", V1)),
    Exchange(
        "V1 JSON",
        request("GET /json"),
        v1_json('{"a":[1,2.5,null,true,"\\u003c\\u0026\\u003e"]}'),
    ),
    Exchange("a V1 error", request("POST /pub"), v1_error("400 Bad Request", "MSG_EMPTY")),
    Exchange(
        "an internal error has no details",
        request("GET /fail"),
        v1_error("500 Internal Server Error", "INTERNAL_ERROR"),
    ),
]

ROUTING = [
    Exchange("an unknown path", request("GET /nope"), NOT_FOUND),
    Exchange("the root", request("GET /"), NOT_FOUND),
    Exchange("an unknown path, any method", request("BREW /nope"), NOT_FOUND),
    Exchange("a wrong method", request("POST /ping"), not_allowed("GET, OPTIONS")),
    Exchange("an unknown method", request("BREW /ping"), not_allowed("GET, OPTIONS")),
    Exchange("a method in lower case", request("get /ping"), not_allowed("GET, OPTIONS")),
    Exchange("several methods", request("DELETE /echo"), not_allowed("GET, OPTIONS, POST")),
    Exchange("a parameter", request("GET /config/mem"), v1_text("mem")),
    Exchange("a parameter is decoded", request("GET /config/a%20b"), v1_text("a b")),
    Exchange("a parameter is not empty", request("GET /config/"), NOT_FOUND),
    Exchange("a parameter has no slash", request("GET /config/a/b"), NOT_FOUND),
    Exchange(
        "a path with a parameter", request("POST /config/a"), not_allowed("GET, OPTIONS, PUT")
    ),
    Exchange("a path is decoded", request("GET /p%69ng"), PONG),
    Exchange("an absolute form", request("GET http://a:4151/ping?x=1"), PONG),
    Exchange("an absolute form without a path", request("GET http://a:4151"), NOT_FOUND),
    Exchange("OPTIONS", request("OPTIONS /echo"), response("200 OK", "Allow: GET, OPTIONS, POST")),
    Exchange("OPTIONS of the server", request("OPTIONS *"), response("200 OK")),
    Exchange("OPTIONS of nothing", request("OPTIONS /nope"), NOT_FOUND),
    Exchange("the server as a path", request("GET *"), not_allowed("GET, OPTIONS, POST, PUT")),
    Exchange("a slash too many", request("GET /ping/"), moved("/ping")),
    Exchange("the query comes along", request("GET /ping/?a=b+%20&c"), moved("/ping?a=b+%20&c")),
    Exchange("a slash too many, parameter", request("GET /config/x/"), moved("/config/x")),
    Exchange("a wrong case", request("GET /PinG"), moved("/ping")),
    Exchange("a wrong case keeps parameters", request("GET /CONFIG/Ab"), moved("/config/Ab")),
    Exchange("two slashes", request("GET //ping"), moved("/ping")),
    Exchange("dots", request("GET /a/.././ping"), moved("/ping")),
    Exchange("dots beyond the root", request("GET /../ping"), moved("/ping")),
    Exchange("wrong case and a slash", request("GET /PING/"), moved("/ping")),
    Exchange("escapes are kept", request("GET /CONFIG/a%0d%0ab"), moved("/config/a%0D%0Ab")),
    Exchange("another method", request("POST /topic/create/"), elsewhere("/topic/create")),
    Exchange("another method's query", request("POST /PUB?topic=a;b"), elsewhere("/pub?topic=a;b")),
    Exchange("only the method's own paths", request("POST /ping/"), NOT_FOUND),
]

ARGUMENTS = [
    Exchange("one", request("GET /echo?topic=a"), echoed("GET", args={"topic": "a"})),
    Exchange("the first of two", request("GET /echo?a=1&a=2"), echoed("GET", args={"a": "1"})),
    Exchange("without a value", request("GET /echo?a&b="), echoed("GET", args={"a": "", "b": ""})),
    Exchange("empty ones", request("GET /echo?&&a=1&"), echoed("GET", args={"a": "1"})),
    Exchange("escapes", request("GET /echo?a=%41+%2B%3b"), echoed("GET", args={"a": "A +;"})),
    Exchange("an equals sign", request("GET /echo?a=b=c"), echoed("GET", args={"a": "b=c"})),
    Exchange("a question mark", request("GET /echo?a=b?c"), echoed("GET", args={"a": "b?c"})),
    Exchange(
        "a form body is a body", post("/echo?a=1", "a=2"), echoed(args={"a": "1"}, body="a=2")
    ),
    *(
        Exchange(
            f"undecodable: {query}",
            request(f"GET /echo?{query}"),
            v1_error("400 Bad Request", "INVALID_REQUEST"),
        )
        for query in ("a=%", "a=%4", "a=%zz", "%=a", "a=1;b=2", ";", "a=1&b=%x1")
    ),
    Exchange("an unused query is not parsed", request("GET /ping?%;"), PONG),
]

BODIES = [
    Exchange("a length", post("/echo", "hello"), echoed(body="hello")),
    Exchange("no length", request("POST /echo"), echoed()),
    Exchange("a length of zero", post("/echo", ""), echoed()),
    Exchange("the longest", post("/echo", "x" * 20), echoed(body="x" * 20)),
    Exchange(
        "too long",
        post("/pub", "x" * 21),
        v1_error("413 Request Entity Too Large", "MSG_TOO_BIG", "Connection: close"),
        stays=False,
    ),
    Exchange(
        "too long, and not sent",
        request("POST /pub", "Content-Length: 1000000000"),
        v1_error("413 Request Entity Too Large", "MSG_TOO_BIG", "Connection: close"),
        stays=False,
    ),
    Exchange(
        "too long for an endpoint that reads none",
        request("POST /topic/create", "Content-Length: 262145"),
        v1_error("413 Request Entity Too Large", "BODY_TOO_BIG", "Connection: close"),
        stays=False,
    ),
    Exchange(
        "too long for an unknown path",
        request("POST /nope", "Content-Length: 262145"),
        v1_error("404 Not Found", "NOT_FOUND", "Connection: close"),
        stays=False,
    ),
    Exchange("an unused body", post("/topic/create", "x" * 100), response("200 OK", V1)),
    Exchange("a body for an unknown path", post("/nope", "x" * 100), NOT_FOUND),
    Exchange("a body in a GET", request("GET /ping", "Content-Length: 2", body="{}"), PONG),
    Exchange(
        "chunks", chunked("/echo", "5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n"), echoed(body="helloyou")
    ),
    Exchange("no chunks", chunked("/echo", "0\r\n\r\n"), echoed()),
    Exchange(
        "a size in hex",
        chunked("/echo", "0a\r\n0123456789\r\n0\r\n\r\n"),
        echoed(body="0123456789"),
    ),
    Exchange("extensions", chunked("/echo", '1;a="b"\r\nx\r\n0;c\r\n\r\n'), echoed(body="x")),
    Exchange(
        "trailers", chunked("/echo", "1\r\nx\r\n0\r\nHost: b\r\nX: y\r\n\r\n"), echoed(body="x")
    ),
    Exchange(
        "CHUNKED", request("POST /echo", "transfer-encoding: CHUNKED", body="0\r\n\r\n"), echoed()
    ),
    Exchange(
        "the longest, in chunks",
        chunked("/echo", "14\r\n" + "x" * 20 + "\r\n0\r\n\r\n"),
        echoed(body="x" * 20),
    ),
    *(
        Exchange(
            f"too long, in {name}",
            chunked("/pub", chunks),
            v1_error("413 Request Entity Too Large", "MSG_TOO_BIG", "Connection: close"),
            stays=False,
        )
        for name, chunks in {
            "a chunk": "15\r\n" + "x" * 21 + "\r\n0\r\n\r\n",
            "a chunk to come": "ffffffff\r\n",
            "many chunks": "1\r\nx\r\n" * 21,
        }.items()
    ),
]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
EXPECT = "Expect: 100-continue"

EXPECTATIONS = [
    Exchange("a length", post("/echo", "abc", EXPECT), CONTINUE + echoed(body="abc")),
    Exchange(
        "chunks", chunked("/echo", "1\r\nx\r\n0\r\n\r\n", EXPECT), CONTINUE + echoed(body="x")
    ),
    Exchange(
        "in another case", post("/echo", "a", "expect: 100-CONTINUE"), CONTINUE + echoed(body="a")
    ),
    Exchange("nothing to continue with", request("POST /echo", EXPECT), echoed()),
    Exchange(
        "refused before the body is sent",
        request("POST /pub", "Content-Length: 21", EXPECT),
        v1_error("413 Request Entity Too Large", "MSG_TOO_BIG", "Connection: close"),
        stays=False,
    ),
    Exchange(
        "an unknown path",
        request("POST /nope", "Content-Length: 1", EXPECT),
        v1_error("404 Not Found", "NOT_FOUND", "Connection: close"),
        stays=False,
    ),
    Exchange(
        "something else",
        request("POST /pub", "Expect: 200-ok"),
        response("417 Expectation Failed", after=("Connection: close",)),
        stays=False,
    ),
    Exchange(
        "HTTP/1.0 has none",
        crlf("POST /echo HTTP/1.0\nContent-Length: 1\nExpect: 100-continue\n") + b"x",
        echoed(body="x").replace(b"HTTP/1.1", b"HTTP/1.0"),
        stays=False,
    ),
]

PONG_10 = PONG.replace(b"HTTP/1.1", b"HTTP/1.0")
PONG_10_STAYS = PONG_10.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
PONG_CLOSE = PONG.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

PERSISTENCE = [
    Exchange("HTTP/1.1 stays", PING, PONG),
    Exchange("HTTP/1.1 closes", request("GET /ping", "Connection: close"), PONG_CLOSE, stays=False),
    Exchange("in a list", request("GET /ping", "Connection: x, CLOSE"), PONG_CLOSE, stays=False),
    Exchange(
        "in a second line",
        request("GET /ping", "Connection: keep-alive", "Connection: close"),
        PONG_CLOSE,
        stays=False,
    ),
    Exchange("HTTP/1.0 closes", crlf("GET /ping HTTP/1.0"), PONG_10, stays=False),
    Exchange("HTTP/1.0 stays", crlf("GET /ping HTTP/1.0\nConnection: Keep-Alive"), PONG_10_STAYS),
    Exchange("HTTP/1.2 is 1.1", crlf("GET /ping HTTP/1.2\nHost: a"), PONG),
    Exchange(
        "an upgrade is not taken up",
        request("GET /ping", "Connection: Upgrade", "Upgrade: h2c"),
        PONG,
    ),
    Exchange("three in one", PING * 3, PONG * 3),
    Exchange(
        "different ones in one",
        post("/echo", "1") + PING + chunked("/echo", "1\r\n2\r\n0\r\n\r\n") + request("GET /nope"),
        echoed(body="1") + PONG + echoed(body="2") + NOT_FOUND,
    ),
    Exchange(
        "nothing after the last",
        request("GET /ping", "Connection: close") + PING,
        PONG_CLOSE,
        stays=False,
    ),
    Exchange("empty lines before", b"\r\n\r\n" + PING + b"\r\n" + PING, PONG * 2),
]

HEAD_ONLY = [
    Exchange(
        "has the headers of a GET that is not there",
        request("HEAD /ping"),
        response("405 Method Not Allowed", "Allow: GET, OPTIONS", JSON, V1, body="x" * 32)[:-32],
    ),
    Exchange(
        "of nothing", request("HEAD /nope"), NOT_FOUND.removesuffix(b'{"message":"NOT_FOUND"}')
    ),
]

HOSTS = [
    Exchange(
        "none",
        crlf("GET /ping HTTP/1.1"),
        refused("400 Bad Request: missing required Host header"),
        stays=False,
    ),
    Exchange(
        "two",
        request("GET /ping", "Host: b"),
        refused("400 Bad Request: too many Host headers"),
        stays=False,
    ),
    Exchange(
        "no host",
        crlf("GET /ping HTTP/1.1\nHost: a/b"),
        refused("400 Bad Request: malformed Host header"),
        stays=False,
    ),
    Exchange("empty", crlf("GET /ping HTTP/1.1\nHost:"), PONG),
    Exchange("with a port", crlf("GET /ping HTTP/1.1\nHost: [::1]:4151"), PONG),
]

GET = b"GET /ping HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# Each is followed by a request that must not be handled.
MALFORMED = {
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "two equal lengths": POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "a list of lengths": POST + b"Content-Length: 1, 1\r\n\r\nx",
    "a signed length": POST + b"Content-Length: +1\r\n\r\nx",
    "a negative length": POST + b"Content-Length: -1\r\n\r\nx",
    "a length in hex": POST + b"Content-Length: 0x1\r\n\r\nx",
    "an empty length": POST + b"Content-Length:\r\n\r\n",
    "an endless length": POST + b"Content-Length: 99999999999999999999\r\n\r\n",
    "a length and chunks": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "a length and an unknown coding": POST + b"Content-Length: 1\r\nTransfer-Encoding: x\r\n\r\nx",
    "chunks in chunks": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
    "chunks and something": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding behind a control": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a folded header": GET + b"X: a\r\n b\r\n\r\n",
    "a folded length": POST + b"Content-Length:\r\n 1\r\n\r\nx",
    "a space before the colon": POST + b"Content-Length : 1\r\n\r\nx",
    "a tab before the colon": POST + b"Content-Length\t: 1\r\n\r\nx",
    "a space before the first header": b"GET /ping HTTP/1.1\r\n Host: a\r\n\r\n",
    "a bare line feed after the line": b"GET /ping HTTP/1.1\nHost: a\r\n\r\n",
    "a bare line feed after a header": b"GET /ping HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "a bare line feed at the end": GET + b"X: b\n\r\n\r\n",
    "a bare return in a header": GET + b"X: a\rY: b\r\n\r\n",
    "a return before the end": GET + b"X: a\r\r\n\r\n",
    "a zero byte": GET + b"X: a\x00b\r\n\r\n",
    "a control": GET + b"X: \x01\r\n\r\n",
    "a header without a colon": GET + b"X\r\n\r\n",
    "a header without a name": GET + b": a\r\n\r\n",
    "a name with a bracket": GET + b"X[: a\r\n\r\n",
    "a name beyond ASCII": GET + b"X\xe9: a\r\n\r\n",
    "two spaces": b"GET  /ping HTTP/1.1\r\nHost: a\r\n\r\n",
    "a tab in the line": b"GET\t/ping HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space after the line": b"GET /ping HTTP/1.1 \r\nHost: a\r\n\r\n",
    "a space in the target": b"GET /pi ng HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target beyond ASCII": b"GET /p\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target without a slash": b"GET ping HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target with a bad escape": b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
    "an authority": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method with a bracket": b"G(T /ping HTTP/1.1\r\nHost: a\r\n\r\n",
    "no method": b" /ping HTTP/1.1\r\nHost: a\r\n\r\n",
    "no version": b"GET /ping\r\nHost: a\r\n\r\n",
    "another protocol": b"GET /ping HTCPCP/1.0\r\nHost: a\r\n\r\n",
    "a long version": b"GET /ping HTTP/1.10\r\nHost: a\r\n\r\n",
    "a TLS client": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an NSQ client": b"  V2",
    "an invalid line": b"hello\r\n",
    "a chunk without a size": CHUNKED + b"\r\nx\r\n0\r\n\r\n",
    "a chunk of -1": CHUNKED + b"-1\r\nx\r\n0\r\n\r\n",
    "a chunk of 0x1": CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n",
    "a chunk of 1_0": CHUNKED + b"1_0\r\nx\r\n0\r\n\r\n",
    "a space after a size": CHUNKED + b"1 \r\nx\r\n0\r\n\r\n",
    "a space before a size": CHUNKED + b" 1\r\nx\r\n0\r\n\r\n",
    "a size beyond any": CHUNKED + b"10000000000000001\r\nx\r\n0\r\n\r\n",
    "a bare line feed after a size": CHUNKED + b"1\nx\r\n0\r\n\r\n",
    "a bare line feed after a chunk": CHUNKED + b"1\r\nx\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"1\r\nxy\r\n0\r\n\r\n",
    "a return in an extension": CHUNKED + b"1;a\rb\r\nx\r\n0\r\n\r\n",
    "an endless extension": CHUNKED + b"1;" + b"a" * 4096,
    "an invalid trailer": CHUNKED + b"0\r\nx\r\n\r\n",
    "a folded trailer": CHUNKED + b"0\r\nX: a\r\n b\r\n\r\n",
    "endless trailers": CHUNKED + b"0\r\n" + b"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 600,
}

REFUSALS = [
    *(Exchange(name, sent + PING, BAD, stays=False) for name, sent in MALFORMED.items()),
    *(
        Exchange(
            f"coding: {coding}",
            POST + f"Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n".encode() + PING,
            refused("501 Not Implemented: unsupported transfer encoding"),
            stays=False,
        )
        for coding in (
            "gzip",
            "identity",
            "xchunked",
            "gzip, chunked",
        )
    ),
    *(
        Exchange(
            version,
            f"GET /ping {version}\r\nHost: a\r\n\r\n".encode() + PING,
            refused("505 HTTP Version Not Supported: unsupported protocol version"),
            stays=False,
        )
        for version in ("HTTP/0.9", "HTTP/2.0", "HTTP/3.0")
    ),
    *(
        Exchange(
            name,
            GET + sent + PING,
            refused("431 Request Header Fields Too Large"),
            stays=False,
        )
        for name, sent in {
            "a long header": b"X: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
            "a header that does not end": b"X: " + b"x" * HEAD_BYTES_MAX,
            "many headers": b"X:\r\n" * 600 + b"\r\n",
        }.items()
    ),
]


def named(exchanges: list[Exchange]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "exchange", exchanges, ids=[each.name.replace(" ", "-") for each in exchanges]
    )


ALL = [
    *ENVELOPES,
    *ROUTING,
    *ARGUMENTS,
    *BODIES,
    *EXPECTATIONS,
    *PERSISTENCE,
    *HEAD_ONLY,
    *HOSTS,
    *REFUSALS,
]


def check(client: RawHttp, exchange: Exchange) -> None:
    client.expect(exchange.expected)
    if exchange.stays:
        client.send(PING)
        client.expect(PONG)
    else:
        client.expect_close()


@named(ALL)
def test_the_response_to_a_request_sent_whole(server: LiveServer, exchange: Exchange) -> None:
    with server.connect() as client:
        client.send(exchange.sent)

        check(client, exchange)


@named(ALL)
def test_the_response_to_a_request_sent_byte_by_byte(
    server: LiveServer, exchange: Exchange
) -> None:
    with server.connect() as client:
        client.send_bytewise(exchange.sent)

        check(client, exchange)


@named([each for each in ALL if each.stays])
def test_a_repeated_request_gets_the_same_response(server: LiveServer, exchange: Exchange) -> None:
    """From the third time on, the head is in the route cache."""
    with server.connect() as client:
        client.send(exchange.sent * 3)

        check(client, exchange._replace(expected=exchange.expected * 3))


@named([each for each in ALL if each.stays])
def test_a_client_that_has_closed_its_sending_side_gets_its_response(
    server: LiveServer, exchange: Exchange
) -> None:
    with server.connect() as client:
        client.send(exchange.sent)
        client.end()

        assert exchange.expected == client.read_all()


@pytest.mark.parametrize("size", range(1, len(PING)))
def test_an_incomplete_head_is_refused(server: LiveServer, size: int) -> None:
    with server.connect() as client:
        client.send(PING[:size])
        client.end()

        assert BAD == client.read_all()


@pytest.mark.parametrize("cut", [1, 4, 5])
def test_an_incomplete_body_is_refused(server: LiveServer, cut: int) -> None:
    with server.connect() as client:
        client.send(post("/pub", "hello")[:-cut])
        client.end()

        assert BAD == client.read_all()


def test_a_client_that_sends_nothing_gets_no_response(server: LiveServer) -> None:
    with server.connect() as client:
        client.end()

        assert b"" == client.read_all()


def test_a_client_that_is_still_sending_can_read_the_error(server: LiveServer) -> None:
    with server.connect() as client:
        client.send(request("POST /pub", "Content-Length: 100000000"))
        for _ in range(50):
            client.send(b"x" * 10_000)

        expected = v1_error("413 Request Entity Too Large", "MSG_TOO_BIG", "Connection: close")
        client.expect(expected)


PIECES = st.sampled_from(
    [
        *(PING, GET, POST, CHUNKED, CONTINUE, b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0"),
        *(b"GET ", b"/ping", b"/pub?topic=%", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"Host: a\r\n"),
        *(b"Content-Length: 3\r\n", b"Content-Length: 99\r\n", b"Transfer-Encoding: chunked\r\n"),
        *(
            b"Expect: 100-continue\r\n",
            b"Connection: close\r\n",
            b"abc",
            b"3\r\nabc\r\n",
            b"0\r\n\r\n",
        ),
    ]
)


@given(st.lists(PIECES | st.binary(max_size=8), max_size=20))
def test_any_bytes_get_http_responses_and_a_close(server: LiveServer, pieces: list[bytes]) -> None:
    """The pieces are nearly requests: all that comes back is HTTP, and the connection ends."""
    with server.connect() as client:
        for piece in pieces:
            client.send(piece)
        client.end()
        answers = client.read_all()

    assert not answers or answers.startswith(b"HTTP/1.")
    assert not [line for line in server.log_lines if "ERROR" in line and "/fail" not in line]
