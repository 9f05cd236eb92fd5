"""The head of a request: its line and its headers, from the bytes as they came.

Whatever two servers might read differently is refused with `BadRequest`, so that none can be made
to disagree with us about where a request ends:

- llhttp (httptools) judges the headers. It takes neither bare line feeds nor folded lines, nor a
  space before a colon, nor two lengths, nor a length beside a transfer coding.
- The request line is judged here, because llhttp takes two spaces and HTTP/0.9, and knows only a
  closed list of methods; so are transfer codings other than `chunked`, and `Host`.
"""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from penstock.net.http_server.errors import BadRequest
from penstock.net.http_server.query import has_bad_escape, parse_query

__all__ = ["HEADER_LINES_MAX", "Head", "RequestLine", "may_become_head", "parse_headers"]

# The limit on bytes bounds the memory of a head, this one the time that it takes.
HEADER_LINES_MAX = 512

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE = re.compile(rb"(%b++) ([!-~]++) HTTP/([0-9])\.([0-9])\r\n" % _TOKEN)
_REQUEST_LINE_SO_FAR = re.compile(
    rb"\r\Z|%b++(?:\Z| (?:\Z|[!-~]++(?:\Z| [HTP/.0-9]*+(?:\Z|\r(?:\Z|\n)))))" % _TOKEN
)
_ABSOLUTE_FORM = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.\-]*+://[^/?]*+(.*)")
_HOST = re.compile(rb"[!$%&'()*+,\-.:;=\[\]_~0-9A-Za-z]*")

Headers = dict[bytes, bytes]


def may_become_head(start: bytes | bytearray) -> bool:
    """Whether more bytes could make `start` a head: tells garbage before its end is waited for."""
    return _REQUEST_LINE_SO_FAR.match(start) is not None


class RequestLine:
    """The first line of a request. Bytes that are no UTF-8 are surrogates in `path` and `args`."""

    __slots__ = ("args", "http_11", "method", "path", "query", "target")

    def __init__(self, raw: bytes) -> None:
        """Parses `raw`, which ends with the line. Raises BadRequest."""
        line = _REQUEST_LINE.fullmatch(raw)
        if line is None:
            raise BadRequest
        method, target, major, minor = line.groups()
        if major != b"1":
            raise BadRequest(505, "unsupported protocol version")
        self.method: Final = method.decode()
        self.target: Final = target
        self.http_11: Final = minor != b"0"
        self.path, self.query = _split(target)
        self.args: Final = _maybe_args(self.query)
        """Of a repeated one, the first. None where there is no telling what they are."""


def _maybe_args(query: bytes) -> dict[str, str] | None:
    try:
        return parse_query(query)
    except ValueError:
        return None


def _split(target: bytes) -> tuple[str, bytes]:
    """The decoded path and the raw query. An absolute form is taken without its host."""
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    raw_path, _, query = (absolute[1] if absolute else target).partition(b"?")
    if not absolute and target[:1] != b"/" and target != b"*":
        raise BadRequest
    if has_bad_escape(raw_path):
        raise BadRequest
    return unquote_to_bytes(raw_path).decode("utf-8", "surrogateescape"), query


def parse_headers(raw: bytes) -> Headers:
    """The headers in `raw`, which ends with the empty line after them. Raises BadRequest.

    Names are in lower case; a repeated header is one, its values joined by commas.
    """
    if raw.count(b"\n") > HEADER_LINES_MAX + 1:
        raise BadRequest(431)
    collector = _Collector()
    headers = collector.headers
    try:
        HttpRequestParser(collector).feed_data(b"POST / HTTP/1.1\r\n" + raw)
    except HttpParserUpgrade:
        pass  # We upgrade to nothing, and may ignore the offer (RFC 9110, section 7.8).
    except HttpParserError:
        _refuse_unknown_coding(headers)
        raise BadRequest from None
    if b"transfer-encoding" in headers:
        _refuse_unknown_coding(headers)
    return headers


class _Collector:
    """Takes what llhttp finds."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: Headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.rstrip(b" \t")
        if name in self.headers:
            value = self.headers[name] + b", " + value
        self.headers[name] = value


def _refuse_unknown_coding(headers: Headers) -> None:
    coding = headers.get(b"transfer-encoding", b"chunked").lower()
    if coding != b"chunked" and b"content-length" not in headers:
        raise BadRequest(501, "unsupported transfer encoding")


class Head:
    """A request without its body."""

    __slots__ = (
        "chunked",
        "content_length",
        "expects_continue",
        "headers",
        "keep_alive",
        "line",
        "unknown_expectation",
    )

    def __init__(self, line: RequestLine, headers: Headers) -> None:
        """Raises BadRequest if the two do not go together."""
        self.line: Final = line
        self.headers: Final = headers
        _check_host(line, headers)
        self.chunked: Final = b"transfer-encoding" in headers
        if self.chunked and not line.http_11:
            raise BadRequest  # HTTP/1.0 has no such thing: somebody before us reads it otherwise.
        self.content_length: Final = int(headers.get(b"content-length", b"0"))
        self.keep_alive: Final = _keeps_alive(headers.get(b"connection"), http_11=line.http_11)
        expect = headers.get(b"expect")
        expects_continue = expect is not None and b"100-continue" in _tokens(expect)
        self.unknown_expectation: Final = bool(expect) and not expects_continue
        has_body = self.chunked or self.content_length > 0
        self.expects_continue: Final = expects_continue and has_body and line.http_11


def _check_host(line: RequestLine, headers: Headers) -> None:
    host = headers.get(b"host")
    if host is None:
        if line.http_11:
            raise BadRequest(400, "missing required Host header")
    elif not _is_host(host):
        what = "too many Host headers" if b", " in host else "malformed Host header"
        raise BadRequest(400, what)


# Clients name the same few hosts; the bound keeps a hostile peer's memory out.
@lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _keeps_alive(connection: bytes | None, *, http_11: bool) -> bool:
    if connection is None:
        return http_11
    tokens = _tokens(connection)
    return b"close" not in tokens and (http_11 or b"keep-alive" in tokens)


def _tokens(value: bytes) -> list[bytes]:
    """The elements of a header that is a list."""
    return [part.strip(b" \t") for part in value.lower().split(b",")]
