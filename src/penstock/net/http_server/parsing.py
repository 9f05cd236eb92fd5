"""Parsing of HTTP/1.1 requests: request line, headers, query string, sized and chunked bodies.

Anything that two servers might read differently is refused with `BadRequestError`. Otherwise a
proxy in front of us and this server could disagree about where a request ends, and an attacker
could smuggle requests past the proxy.

- llhttp (httptools) parses the headers. It refuses bare line feeds, folded lines, a space before a
  colon, two lengths, and a length beside a transfer coding.
- The request line is parsed here, because llhttp accepts two spaces and HTTP/0.9, and knows only a
  closed list of methods. Transfer codings other than `chunked`, and `Host`, are checked here, too.
- Chunks (RFC 9112, section 7.1) are parsed strictly: lines end in CRLF, a size consists of
  hexadecimal digits only, chunk data is followed by CRLF. Chunk extensions and trailers are
  skipped.
- The query string is parsed as Go's url.ParseQuery does.
"""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from penstock.common.errors import Error
from penstock.net.http_server.responses import reason_phrase

__all__ = [
    "HEADER_LINES_MAX",
    "BadRequestError",
    "Body",
    "BodyTooLargeError",
    "ChunkedBody",
    "RequestHead",
    "RequestLine",
    "SizedBody",
    "is_valid_head_prefix",
    "parse_headers",
    "parse_query",
]

# The limit on bytes bounds the memory of a head; this one bounds its parsing time.
HEADER_LINES_MAX = 512

# Length of a chunk's size line, or of one trailer. Go's limit is its buffer's 4096.
LINE_BYTES_MAX = 4096
TRAILER_BYTES_MAX = 16 * 1024

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE = re.compile(rb"(%b++) ([!-~]++) HTTP/([0-9])\.([0-9])\r\n" % _TOKEN)
_REQUEST_LINE_PREFIX = re.compile(
    rb"\r\Z|%b++(?:\Z| (?:\Z|[!-~]++(?:\Z| [HTP/.0-9]*+(?:\Z|\r(?:\Z|\n)))))" % _TOKEN
)
_ABSOLUTE_FORM = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.\-]*+://[^/?]*+(.*)")
_HOST = re.compile(rb"[!$%&'()*+,\-.:;=\[\]_~0-9A-Za-z]*")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")

# 15 digits are a petabyte: the limit on bodies applies first, and proxies cannot overflow.
_CHUNK_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")

Headers = dict[bytes, bytes]


class BadRequestError(Error):
    """The request is malformed or too large for this server. No endpoint sees it, and the
    connection is closed after the response.

    `detail` is sent to the client, so it must not quote the request.
    """

    def __init__(self, status: int = 400, detail: str = "") -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail

    def __str__(self) -> str:
        line = f"{self.status} {reason_phrase(self.status)}"
        return f"{line}: {self.detail}" if self.detail else line

    def to_bytes(self) -> bytes:
        """The whole response, in the form that Go's server gives it."""
        return (
            f"HTTP/1.1 {self}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            "Connection: close\r\n"
            "\r\n"
            f"{self}"
        ).encode()


class BodyTooLargeError(Exception):
    """The body exceeds the limit of its route."""


def is_valid_head_prefix(start: bytes | bytearray) -> bool:
    """Whether `start` can be the beginning of a head. Garbage is refused before a full head has
    arrived."""
    return _REQUEST_LINE_PREFIX.match(start) is not None


class RequestLine:
    """The first line of a request. Bytes of `path` and `args` that are not UTF-8 are surrogates."""

    __slots__ = ("args", "is_http_11", "method", "path", "query", "target")

    def __init__(self, raw: bytes) -> None:
        """Parses a line including its CRLF. Raises BadRequestError."""
        line = _REQUEST_LINE.fullmatch(raw)
        if line is None:
            raise BadRequestError
        method, target, major, minor = line.groups()
        if major != b"1":
            raise BadRequestError(505, "unsupported protocol version")
        self.method: Final = method.decode()
        self.target: Final = target
        self.is_http_11: Final = minor != b"0"
        self.path, self.query = _split_target(target)
        self.args: Final = _maybe_args(self.query)
        """Arguments of the query string (the first of each name); None if it cannot be decoded."""


def _maybe_args(query: bytes) -> dict[str, str] | None:
    try:
        return parse_query(query)
    except ValueError:
        return None


def _split_target(target: bytes) -> tuple[str, bytes]:
    """The decoded path and the raw query. The host of an absolute form is ignored."""
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    raw_path, _, query = (absolute[1] if absolute else target).partition(b"?")
    if not absolute and target[:1] != b"/" and target != b"*":
        raise BadRequestError
    if _has_bad_escape(raw_path):
        raise BadRequestError
    return unquote_to_bytes(raw_path).decode("utf-8", "surrogateescape"), query


def parse_query(raw: bytes) -> dict[str, str]:
    """Arguments by name; of a repeated argument, the first.

    Raises ValueError where Go does: for a `;`, which only some servers take for a separator, and
    for an invalid escape. Bytes that are not UTF-8 become surrogates, so that different arguments
    stay different.
    """
    if b";" in raw or _has_bad_escape(raw):
        raise ValueError("undecodable query")
    args: dict[str, str] = {}
    for pair in raw.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            args.setdefault(_unescape(name), _unescape(value))
    return args


def _has_bad_escape(text: bytes) -> bool:
    return b"%" in text and _BAD_ESCAPE.search(text) is not None


def _unescape(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "surrogateescape")


def parse_headers(raw: bytes) -> Headers:
    """Parses headers including the empty line after them. Raises BadRequestError.

    Names are in lower case; the values of a repeated header are joined by commas.
    """
    if raw.count(b"\n") > HEADER_LINES_MAX + 1:
        raise BadRequestError(431)
    collector = _HeaderCollector()
    headers = collector.headers
    try:
        HttpRequestParser(collector).feed_data(b"POST / HTTP/1.1\r\n" + raw)
    except HttpParserUpgrade:
        pass  # No upgrade is supported; a server may ignore the offer (RFC 9110, section 7.8).
    except HttpParserError:
        _refuse_unknown_coding(headers)
        raise BadRequestError from None
    if b"transfer-encoding" in headers:
        _refuse_unknown_coding(headers)
    return headers


class _HeaderCollector:
    """Receives the callbacks of llhttp."""

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
        raise BadRequestError(501, "unsupported transfer encoding")


class RequestHead:
    """A request without its body: the request line, the headers, and how to read the body."""

    __slots__ = (
        "content_length",
        "expects_continue",
        "has_unknown_expectation",
        "headers",
        "is_chunked",
        "is_keep_alive",
        "line",
    )

    def __init__(self, line: RequestLine, headers: Headers) -> None:
        """Raises BadRequestError if a header is missing or contradicts the HTTP version."""
        self.line: Final = line
        self.headers: Final = headers
        _check_host(line, headers)
        self.is_chunked: Final = b"transfer-encoding" in headers
        if self.is_chunked and not line.is_http_11:
            raise BadRequestError  # HTTP/1.0 has no chunks: a proxy may see another body end.
        self.content_length: Final = int(headers.get(b"content-length", b"0"))
        connection = headers.get(b"connection")
        self.is_keep_alive: Final = _is_keep_alive(connection, is_http_11=line.is_http_11)
        expect = headers.get(b"expect")
        expects_continue = expect is not None and b"100-continue" in _tokens(expect)
        self.has_unknown_expectation: Final = bool(expect) and not expects_continue
        has_body = self.is_chunked or self.content_length > 0
        self.expects_continue: Final = expects_continue and has_body and line.is_http_11


def _check_host(line: RequestLine, headers: Headers) -> None:
    host = headers.get(b"host")
    if host is None:
        if line.is_http_11:
            raise BadRequestError(400, "missing required Host header")
    elif not _is_host(host):
        what = "too many Host headers" if b", " in host else "malformed Host header"
        raise BadRequestError(400, what)


# Clients send the same few hosts. The bound limits the memory that a hostile client can fill.
@lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _is_keep_alive(connection: bytes | None, *, is_http_11: bool) -> bool:
    if connection is None:
        return is_http_11
    tokens = _tokens(connection)
    return b"close" not in tokens and (is_http_11 or b"keep-alive" in tokens)


def _tokens(value: bytes) -> list[bytes]:
    """The elements of a list header."""
    return [part.strip(b" \t") for part in value.lower().split(b",")]


class SizedBody:
    """Collects a body of `size` bytes.

    Both kinds of bodies grow one buffer, so that memory is bounded by the body's size, not by the
    number of pieces in which the client sends it.
    """

    __slots__ = ("_body", "_bytes_left", "is_complete")

    def __init__(self, size: int) -> None:
        self.is_complete = not size
        self._body = bytearray()
        self._bytes_left = size

    def feed(self, data: bytes, start: int = 0) -> int:
        """Adds the part of `data[start:]` that belongs to the body; returns the index after it."""
        end = min(start + self._bytes_left, len(data))
        self._body += data[start:end]
        self._bytes_left -= end - start
        self.is_complete = not self._bytes_left
        return end

    def take(self) -> bytes:
        """The whole body. Only for a complete one."""
        assert self.is_complete
        return bytes(self._body)


class ChunkedBody:
    """Collects a chunked body of at most `bytes_max` bytes."""

    __slots__ = (
        "_body",
        "_bytes_max",
        "_chunk_bytes_left",
        "_line",
        "_parse_next",
        "_trailer_bytes",
        "is_complete",
    )

    def __init__(self, bytes_max: int) -> None:
        self.is_complete = False
        self._body = bytearray()
        self._bytes_max = bytes_max
        self._line = bytearray()
        self._chunk_bytes_left = 0
        self._trailer_bytes = 0
        self._parse_next = self._parse_size_line

    def feed(self, data: bytes, start: int = 0) -> int:
        """Adds the part of `data[start:]` that belongs to the body; returns the index after it.

        Raises BadRequestError if the chunking is invalid, and BodyTooLargeError.
        """
        while start < len(data) and not self.is_complete:
            start = self._parse_next(data, start)
        return start

    def take(self) -> bytes:
        """The whole body. Only for a complete one."""
        assert self.is_complete
        return bytes(self._body)

    def _parse_size_line(self, data: bytes, start: int) -> int:
        line, start = self._maybe_line(data, start)
        if line is not None:
            match = _CHUNK_SIZE_LINE.fullmatch(line)
            if match is None:
                raise BadRequestError
            self._chunk_bytes_left = int(match[1], 16)
            if len(self._body) + self._chunk_bytes_left > self._bytes_max:
                raise BodyTooLargeError
            has_data = self._chunk_bytes_left > 0
            self._parse_next = self._parse_chunk_data if has_data else self._parse_trailer
        return start

    def _parse_chunk_data(self, data: bytes, start: int) -> int:
        end = min(start + self._chunk_bytes_left, len(data))
        self._body += data[start:end]
        self._chunk_bytes_left -= end - start
        if not self._chunk_bytes_left:
            self._parse_next = self._parse_chunk_end
        return end

    def _parse_chunk_end(self, data: bytes, start: int) -> int:
        line, start = self._maybe_line(data, start)
        if line is not None:
            if line:
                raise BadRequestError
            self._parse_next = self._parse_size_line
        return start

    def _parse_trailer(self, data: bytes, start: int) -> int:
        line, start = self._maybe_line(data, start)
        if line is not None:
            self._trailer_bytes += len(line)
            is_trailer = _TRAILER_LINE.fullmatch(line) is not None
            if self._trailer_bytes > TRAILER_BYTES_MAX or not (is_trailer or not line):
                raise BadRequestError
            self.is_complete = not line
        return start

    def _maybe_line(self, data: bytes, start: int) -> tuple[bytes | None, int]:
        """The line that ends in `data`, without its CRLF, or None until it is complete."""
        end = data.find(b"\n", start) + 1
        self._line += data[start : end or len(data)]
        if len(self._line) > LINE_BYTES_MAX:
            raise BadRequestError
        if not end:
            return None, len(data)
        line = bytes(self._line)
        self._line.clear()
        if not line.endswith(b"\r\n"):
            raise BadRequestError
        return line[:-2], end


Body = SizedBody | ChunkedBody
