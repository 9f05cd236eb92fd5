"""A small HTTP client: what our daemons and tools ask each other, and the auth servers, with.

    client = HttpClient(connect_timeout_seconds=2, request_timeout_seconds=5)
    stats = await client.get_json("http://127.0.0.1:4151/stats?format=json", dict[str, Any])

One request, one connection. Everything that can go wrong is an `HttpRequestError`. Nothing here
waits for ever, blocks the loop, or keeps more than the limits allow, whatever the server sends.
Redirects are an answer like any other, and there are no proxies.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar, cast
from urllib.parse import unquote, urlsplit

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from penstock.errors import HttpRequestError

__all__ = ["ACCEPT_V1", "HttpClient", "HttpReply", "without_secrets"]

ACCEPT_V1 = ("Accept", "application/vnd.nsq; version=1.0")

# What a server may send beside the body: enough for any head, and for chunks of a byte each.
HEAD_BYTES_MAX = 64 * 1024
FRAMING_BYTES_PER_BODY_BYTE = 16

_PORTS = {"http": 80, "https": 443}
_REQUEST_LINE = re.compile(r"[A-Z]+ /[!-~]* HTTP/1\.1")
_SECRETS = re.compile(r"(?<=//)[^/?#]*@|[?#].*", re.DOTALL)
_HEADER_LINE = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t -~]*")

T = TypeVar("T")
Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer, read whole. Names of headers are in lower case; repeated ones are joined."""

    status: int
    headers: dict[str, str]
    body: bytes


class _PortForHttps(msgspec.Struct):
    https_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """Makes requests within these limits. Connecting is part of the request's time too."""

    connect_timeout_seconds: float
    request_timeout_seconds: float
    body_bytes_max: int = 64 << 20
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)  # None: the system's CAs

    async def fetch(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> HttpReply:
        """Makes one request, whatever status it is answered with. Raises HttpRequestError."""
        target = _Target(url)
        request = target.request(method, headers, body)
        expected = _Expected(has_body=method != "HEAD", body_bytes_max=self.body_bytes_max)
        try:
            async with asyncio.timeout(self.request_timeout_seconds):
                exchange = await self._connect(target, expected)
                try:
                    return await exchange.run(request)
                finally:
                    exchange.close()
        except TimeoutError:
            raise target.failure("timed out") from None
        except _Broken as reason:
            raise target.failure(str(reason)) from None

    async def call(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> bytes:
        """The body of NSQ's V1 answer to a request, which must be 200.

        A server that takes this request over TLS only says so by a 403 and its port: it is then
        asked there. Raises HttpRequestError.
        """
        headers = (ACCEPT_V1, *headers)
        reply = await self.fetch(method, url, headers=headers, body=body)
        if reply.status == 403 and (https_url := _https_url(url, reply.body)):
            url = https_url
            reply = await self.fetch(method, url, headers=headers, body=body)
        if reply.status != 200:
            raise _Target(url).failure(_said(reply), status=reply.status)
        return reply.body

    async def get_json(self, url: str, type: type[T], *, headers: Headers = ()) -> T:
        """What `call` gets, decoded as a `type` of msgspec's. Raises HttpRequestError."""
        body = await self.call("GET", url, headers=headers)
        try:
            return msgspec.json.decode(body, type=type)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Target(url).failure(f"unexpected answer: {error}") from None

    async def _connect(self, target: "_Target", expected: "_Expected") -> "_Exchange":
        context = await self._context() if target.is_secure else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_seconds):
                _, exchange = await loop.create_connection(
                    lambda: _Exchange(expected), target.host, target.port, ssl=context
                )
        except TimeoutError:
            raise _Broken("timed out while connecting") from None
        except (OSError, UnicodeError) as error:
            raise _Broken(_one_line(error)) from None
        return exchange

    async def _context(self) -> ssl.SSLContext:
        """Made in a thread, because reading the system's certificates takes its time."""
        if self.ssl_context is None:
            return await asyncio.to_thread(ssl.create_default_context)
        return self.ssl_context


def without_secrets(url: str) -> str:
    """`url` as it may be shown: its password and query are nobody's business."""
    return _SECRETS.sub("", url)


def _https_url(url: str, refusal: bytes) -> str | None:
    parts = urlsplit(url)
    if parts.scheme != "http":
        return None
    try:
        port = msgspec.json.decode(refusal, type=_PortForHttps).https_port
    except (msgspec.DecodeError, RecursionError):
        return None
    host = parts.netloc.removesuffix(f":{parts.port}")
    return parts._replace(scheme="https", netloc=f"{host}:{port}").geturl()


def _said(reply: HttpReply) -> str:
    """A status, and the beginning of what came with it."""
    said = reply.body[:200].decode("utf-8", "replace")
    return f"got response {reply.status} {said!r}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Target:
    """Where a request goes."""

    def __init__(self, url: str) -> None:
        """Raises HttpRequestError if `url` is no URL of HTTP's."""
        self._shown_url = without_secrets(url)
        try:
            self._parts = urlsplit(url)
            self.host = self._parts.hostname or ""
            port = self._parts.port
        except ValueError as error:
            raise self.failure(f"not a URL: {error}") from None
        if self._parts.scheme not in _PORTS or not self.host or not url.isascii():
            raise self.failure("not a URL of http:// or https://")
        self.is_secure = self._parts.scheme == "https"
        self.port = _PORTS[self._parts.scheme] if port is None else port

    def failure(self, reason: str, *, status: int | None = None) -> HttpRequestError:
        """The error that names this target, without what may be secret in its URL."""
        return HttpRequestError(self._shown_url, reason, status=status)

    def request(self, method: str, headers: Headers, body: bytes) -> bytes:
        """What is sent. Raises HttpRequestError rather than send what could be read otherwise."""
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        has_body = body or method not in ("GET", "HEAD")
        own = self._own_headers(len(body) if has_body else None)
        lines = [f"{name}: {value}" for name, value in (*own, *headers)]
        start = f"{method} {path} HTTP/1.1"
        if not _REQUEST_LINE.fullmatch(start) or not all(map(_HEADER_LINE.fullmatch, lines)):
            raise self.failure("cannot be asked: a character that HTTP does not allow")
        return "\r\n".join((start, *lines, "", "")).encode() + body

    def _own_headers(self, body_size: int | None) -> Headers:
        user_info, _, authority = self._parts.netloc.rpartition("@")
        yield "Host", authority
        yield "Connection", "close"
        if body_size is not None:
            yield "Content-Length", str(body_size)
        if user_info:
            basic = base64.b64encode(unquote(user_info).encode()).decode()
            yield "Authorization", f"Basic {basic}"


class _Broken(Exception):
    """The exchange has failed; the text says why."""


@dataclass(frozen=True, slots=True)
class _Expected:
    has_body: bool
    body_bytes_max: int


class _Exchange(asyncio.Protocol):
    """One request and its answer, on a connection of their own. Also what the parser calls."""

    def __init__(self, expected: _Expected) -> None:
        self._expected = expected
        self._reply: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        self._parser = HttpResponseParser(self)
        self._received_bytes = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._ends_with_connection = False
        self._body = bytearray()

    async def run(self, request: bytes) -> HttpReply:
        """Sends the request and waits for the answer. Raises _Broken."""
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        """The answer is there, or is not waited for any longer."""
        self._reply.cancel()
        self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
            self._check_framing()
        except HttpParserUpgrade:
            self._fail("the server wants another protocol")
        except HttpParserError as error:
            # What a callback raises comes as the context of the parser's own error.
            broken = isinstance(error.__context__, _Broken)
            self._fail(str(error.__context__) if broken else f"no HTTP answer: {_one_line(error)}")
        except _Broken as reason:
            self._fail(str(reason))

    def eof_received(self) -> None:
        if self._ends_with_connection:
            self._succeed()

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {_one_line(exc)}" if exc else ""
        self._fail(f"the connection ended before the answer did{why}")

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._is_interim:
            return
        coding = self._headers.get("transfer-encoding", "")
        length = self._headers.get("content-length", "")
        if coding.lower() not in ("", "chunked"):
            raise _Broken(f"unknown transfer encoding {coding!r}")
        if not self._expected.has_body:
            self._succeed()
        elif length and int(length) > self._expected.body_bytes_max:
            raise self._too_long()
        self._ends_with_connection = not coding and not length

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._expected.body_bytes_max:
            raise self._too_long()

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._headers.clear()
        else:
            self._succeed()

    # Within.

    @property
    def _is_interim(self) -> bool:
        return self._status < 200  # 100 Continue and its like: the answer is yet to come

    def _check_framing(self) -> None:
        allowed = HEAD_BYTES_MAX + (1 + FRAMING_BYTES_PER_BODY_BYTE) * len(self._body)
        if self._received_bytes > allowed and not self._reply.done():
            raise _Broken(f"more than {HEAD_BYTES_MAX} bytes of headers")

    def _too_long(self) -> _Broken:
        return _Broken(f"answer longer than {self._expected.body_bytes_max} bytes")

    def _succeed(self) -> None:
        if not self._reply.done():
            self._reply.set_result(HttpReply(self._status, self._headers, bytes(self._body)))

    def _fail(self, reason: str) -> None:
        if not self._reply.done():
            self._reply.set_exception(_Broken(reason))
            self._reply.exception()  # Whoever does not wait for it any longer need not hear of it.
