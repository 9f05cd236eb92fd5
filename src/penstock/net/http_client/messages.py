"""HTTP/1.1 requests and responses, without I/O: what the asyncio and the blocking client share.

A response is parsed within limits: a server cannot make the client store more than they allow.
"""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from penstock.common.errors import HttpRequestError
from penstock.common.go_json import decode_json

__all__ = [
    "ACCEPT_V1",
    "BODY_BYTES_MAX",
    "ENDED_EARLY",
    "IDEMPOTENT_METHODS",
    "Headers",
    "HttpReply",
    "HttpTarget",
    "ResponseError",
    "ResponseParser",
    "decode_reply",
    "https_url",
    "require_ok",
    "without_secrets",
]

T = TypeVar("T")

Headers = Iterable[tuple[str, str]]

ACCEPT_V1 = ("Accept", "application/vnd.nsq; version=1.0")

BODY_BYTES_MAX = 64 << 20

IDEMPOTENT_METHODS = ("GET", "HEAD")
"""Methods of requests that may be executed twice."""

# Limits on the bytes beside the body: enough for any headers, and for chunks of one byte each.
HEAD_BYTES_MAX = 64 * 1024
FRAMING_BYTES_PER_BODY_BYTE = 16

ENDED_EARLY = "the connection closed before the response was complete"

_PORTS = {"http": 80, "https": 443}
_REQUEST_LINE = re.compile(r"[A-Z]+ /[!-~]* HTTP/1\.1")
_HEADER_LINE = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t -~]*")
_SECRETS = re.compile(r"(?<=//)[^/?#]*@|[?#].*", re.DOTALL)


class ResponseError(Exception):
    """The exchange failed; the text is the reason."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete response. Header names are in lower case; repeated headers are joined."""

    status: int
    headers: dict[str, str]
    body: bytes


# Requests.


def without_secrets(url: str) -> str:
    """`url` without user, password and query, for errors and logs."""
    return _SECRETS.sub("", url)


class HttpTarget:
    """The server and resource that a URL names."""

    def __init__(self, url: str) -> None:
        """Raises HttpRequestError if `url` is not an HTTP URL."""
        self._shown_url = without_secrets(url)
        try:
            self._parts = urlsplit(url)
            self.host = self._parts.hostname or ""
            port = self._parts.port
        except ValueError as error:
            raise self.error(f"not a URL: {error}") from None
        if self._parts.scheme not in _PORTS or not self.host or not url.isascii():
            raise self.error("not an http:// or https:// URL")
        self.is_secure = self._parts.scheme == "https"
        self.port = _PORTS[self._parts.scheme] if port is None else port
        self.server = self.host, self.port, self.is_secure

    def error(
        self, reason: str, *, status: int | None = None, timed_out: bool = False
    ) -> HttpRequestError:
        """An error that names this target, without the secrets in its URL."""
        return HttpRequestError(self._shown_url, reason, status=status, timed_out=timed_out)

    def request(
        self, method: str, headers: Headers, body: bytes, *, keep_alive: bool = False
    ) -> bytes:
        """The bytes of a request. Raises HttpRequestError if a character could end a line."""
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        has_body = body or method not in ("GET", "HEAD")
        own = self._own_headers(len(body) if has_body else None, keep_alive=keep_alive)
        lines = [f"{name}: {value}" for name, value in (*own, *headers)]
        start = f"{method} {path} HTTP/1.1"
        if not _REQUEST_LINE.fullmatch(start) or not all(map(_HEADER_LINE.fullmatch, lines)):
            raise self.error("the request has a character that HTTP does not allow")
        return "\r\n".join((start, *lines, "", "")).encode() + body

    def _own_headers(self, body_size: int | None, *, keep_alive: bool) -> Headers:
        user_info, _, authority = self._parts.netloc.rpartition("@")
        yield "Host", authority
        if not keep_alive:
            yield "Connection", "close"
        if body_size is not None:
            yield "Content-Length", str(body_size)
        if user_info:
            basic = base64.b64encode(unquote(user_info).encode()).decode()
            yield "Authorization", f"Basic {basic}"


# Responses.


class ResponseParser:
    """Parses one response. The `on_...` methods are called by httptools."""

    def __init__(self, *, has_body: bool = True, body_bytes_max: int | None = None) -> None:
        """A response to HEAD has no body. Without `body_bytes_max`, the caller takes the body from
        `body_parts` as it arrives."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body_parts: list[bytes] = []
        self.has_head = False
        self.is_complete = False
        self.can_reuse_connection = False
        self.received_bytes = 0
        self._body_bytes = 0
        self._body_bytes_max = body_bytes_max
        self._expects_body = has_body
        self._ends_with_connection = False
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received bytes. Raises ResponseError if the response is invalid. Data after the end
        of the response is ignored, but the connection cannot be used again."""
        self.received_bytes += len(data)
        try:
            self._feed(data)
        except ResponseError:
            self.can_reuse_connection = False
            if not self.is_complete:
                raise

    def feed_eof(self) -> None:
        """The server has closed the connection. Raises ResponseError if that is too early."""
        self.can_reuse_connection = False
        if self._ends_with_connection:
            self.is_complete = True
        if not self.is_complete:
            raise ResponseError(ENDED_EARLY)

    def reply(self) -> HttpReply:
        return HttpReply(self.status, self.headers, b"".join(self.body_parts))

    def _feed(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise ResponseError("the server switched to another protocol") from None
        except HttpParserError as error:
            # httptools raises its own error if a callback fails; the callback's is the context.
            cause = error.__context__
            reason = str(cause) if isinstance(cause, ResponseError) else "the response is not HTTP"
            raise ResponseError(reason) from None
        allowed = HEAD_BYTES_MAX + (1 + FRAMING_BYTES_PER_BODY_BYTE) * self._body_bytes
        if self.received_bytes > allowed and not self.is_complete:
            raise ResponseError(f"more than {HEAD_BYTES_MAX} bytes of headers")

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.can_reuse_connection = False  # a second response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        self.status = self._parser.get_status_code()
        if self._is_interim:
            return
        coding = self.headers.get("transfer-encoding", "")
        length = self.headers.get("content-length", "")
        if coding.lower() not in ("", "chunked"):
            raise ResponseError(f"unknown transfer encoding {coding!r}")
        self.has_head = True
        if not self._expects_body:
            self.is_complete = True
        elif length and self._body_bytes_max is not None and int(length) > self._body_bytes_max:
            raise self._too_long()
        self._ends_with_connection = not coding and not length

    def on_body(self, piece: bytes) -> None:
        if self.is_complete:
            return
        self._body_bytes += len(piece)
        if self._body_bytes_max is not None and self._body_bytes > self._body_bytes_max:
            raise self._too_long()
        self.body_parts.append(piece)

    def on_message_complete(self) -> None:
        if self.is_complete:
            return
        if self._is_interim:
            self.headers.clear()
        else:
            self.can_reuse_connection = self._expects_body and self._parser.should_keep_alive()
            self.is_complete = True

    @property
    def _is_interim(self) -> bool:
        return self.status < 200  # such as 100 Continue; the final response follows

    def _too_long(self) -> ResponseError:
        return ResponseError(f"response larger than {self._body_bytes_max} bytes")


# Replies of NSQ's daemons.


class _HttpsPort(msgspec.Struct):
    https_port: int


def https_url(url: str, reply: HttpReply) -> str | None:
    """The HTTPS URL to use instead of `url`, if the reply demands it: NSQ's daemons then answer 403
    with their HTTPS port."""
    parts = urlsplit(url)
    if reply.status != 403 or parts.scheme != "http":
        return None
    try:
        port = decode_json(reply.body, _HttpsPort).https_port
    except ValueError:
        return None
    host = parts.netloc.removesuffix(f":{parts.port}")
    return parts._replace(scheme="https", netloc=f"{host}:{port}").geturl()


def require_ok(url: str, reply: HttpReply) -> bytes:
    """The body of the reply. Raises HttpRequestError if the status is not 200."""
    if reply.status != 200:
        text = reply.body[:200].decode("utf-8", "replace")
        reason = f"got response {reply.status} {text!r}"
        raise HttpTarget(url).error(reason, status=reply.status)
    return reply.body


def decode_reply(url: str, reply: HttpReply, type: type[T]) -> T:
    """The JSON of the reply, decoded by msgspec. Raises HttpRequestError."""
    try:
        return decode_json(require_ok(url, reply), type)
    except ValueError as error:
        raise HttpTarget(url).error(f"unexpected response: {error}") from None
