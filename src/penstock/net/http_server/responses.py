"""Responses: complete, streamed and deferred, and the two formats of an API's results.

An endpoint returns a result or raises HttpError, and the format of its route makes the response:
`V1` for every endpoint except `/ping`, which has `PLAIN_TEXT`. An endpoint that needs another
status or content type returns a `Response`, which is sent unchanged.

The lines of a response are in the order in which Go's server sends them: the headers of the
endpoint, then Date, Content-Length, a guessed Content-Type, and Connection.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from http import HTTPStatus
from typing import Final, Protocol

from penstock.common.errors import Error
from penstock.common.go_json import to_json

__all__ = [
    "INTERNAL_ERROR",
    "OK",
    "PLAIN_TEXT",
    "V1",
    "DeferredResponse",
    "HttpError",
    "Response",
    "ResponseFormat",
    "StreamAbortedError",
    "StreamingResponse",
    "error_response",
    "json_response",
    "reason_phrase",
]

JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"

# Go's phrases, where those of `http` differ between versions of Python.
_REASONS = {413: "Request Entity Too Large"}

HeaderPairs = tuple[tuple[str, str], ...]

_V1_HEADERS: HeaderPairs = (("X-Nsq-Content-Type", "nsq; version=1.0"),)
_V1_JSON_HEADERS: HeaderPairs = (("Content-Type", JSON_TYPE), *_V1_HEADERS)


class HttpError(Error):
    """An endpoint raises this to respond with `status` and the API's error `code`. The connection
    stays open."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


class StreamAbortedError(Error):
    """The source of a streamed body raises this when it cannot continue; its text is logged. The
    connection is closed without the end of the body, so that the client sees that it is incomplete.
    """


class Response:
    """A status, headers and a body. Immutable, so that one instance can be sent many times."""

    __slots__ = (
        "_bytes",
        "_bytes_date",
        "_lines_after_date",
        "_lines_before_date",
        "body",
        "status",
    )

    def __init__(
        self, status: int, body: bytes = b"", *, headers: HeaderPairs = (), guessed_type: str = ""
    ) -> None:
        self.status: Final = status
        self.body: Final = body
        self._lines_before_date: Final = _header_lines(headers)
        length = (("Content-Length", str(len(body))),)
        self._lines_after_date: Final = _header_lines(
            length + ((("Content-Type", guessed_type),) if guessed_type else ())
        )
        self._bytes = b""
        self._bytes_date: bytes | None = None

    def to_bytes(self, date_line: bytes) -> bytes:
        """The response to an HTTP/1.1 request on a connection that stays open.

        The bytes are cached until the date line changes: rendering them once a second, not once per
        request, matters for the OK of publishes.
        """
        if self._bytes_date is not date_line:
            self._bytes_date = date_line
            self._bytes = self.render(date_line, is_http_11=True, keep_alive=True, head_only=False)
        return self._bytes

    def render(
        self, date_line: bytes, *, is_http_11: bool, keep_alive: bool, head_only: bool
    ) -> bytes:
        """The response to a request of any version and method; not cached."""
        return b"".join(
            (
                _status_line(self.status, is_http_11=is_http_11),
                self._lines_before_date,
                date_line,
                self._lines_after_date,
                _connection_line(is_http_11=is_http_11, keep_alive=keep_alive),
                b"\r\n",
                b"" if head_only else self.body,
            )
        )


class StreamingResponse:
    """A response whose body is sent piece by piece, at the pace of the client. For one request.

    With a `length`, which the pieces must add up to, the body has a Content-Length. Without one it
    is chunked or, for an HTTP/1.0 client, ends with the connection.
    """

    __slots__ = ("_headers", "length", "pieces", "status")

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        *,
        status: int = 200,
        headers: HeaderPairs = (),
        length: int | None = None,
    ) -> None:
        self.pieces: Final = pieces
        self.status: Final = status
        self.length: Final = length
        self._headers: Final = headers

    def render_head(self, date_line: bytes, *, is_http_11: bool, keep_alive: bool) -> bytes:
        """All lines before the body."""
        framing: HeaderPairs = ()
        if self.length is not None:
            framing = (("Content-Length", str(self.length)),)
        elif is_http_11:
            framing = (("Transfer-Encoding", "chunked"),)
        return b"".join(
            (
                _status_line(self.status, is_http_11=is_http_11),
                _header_lines(self._headers),
                date_line,
                _header_lines(framing),
                _connection_line(is_http_11=is_http_11, keep_alive=keep_alive),
                b"\r\n",
            )
        )

    async def checked_pieces(self) -> AsyncIterator[bytes]:
        """The non-empty pieces. Raises ValueError if they do not add up to `length`."""
        sent = 0
        async for piece in self.pieces:
            sent += len(piece)
            if self.length is not None and sent > self.length:
                raise ValueError("a streamed body is longer than announced")
            if piece:
                yield piece
        if self.length is not None and sent < self.length:
            raise ValueError("a streamed body is shorter than announced")

    async def close(self) -> None:
        """Closes the source of the pieces, even if it has not been read to its end."""
        if isinstance(self.pieces, AsyncGenerator):
            await self.pieces.aclose()


_PENDING = object()


class DeferredResponse:
    """A result that an endpoint provides later, once, to one listener.

    Unlike an asyncio future, it calls its callback at once, not in the next turn of the loop. For
    publishes, nearly all of which are deferred, this saves a third of the cost of a request.
    """

    outcome: object = _PENDING
    """The result, or an HttpError, once resolved."""
    _on_resolved: Callable[[], None] | None = None

    def resolve(self, outcome: object) -> None:
        """Sets the result, or the HttpError to respond with."""
        assert self.outcome is _PENDING
        self.outcome = outcome
        on_resolved = self._on_resolved
        if on_resolved is not None:
            on_resolved()

    def on_client_ended(self) -> None:
        """Called while it is not resolved, when the client has closed its side of the connection or
        has disconnected. A response that waits for an event should be resolved now."""

    def done(self) -> bool:
        """Whether it is resolved."""
        return self.outcome is not _PENDING

    def result(self) -> object:
        """The result; raises it if it is an HttpError. May be called only after `resolve`."""
        outcome = self.outcome
        assert outcome is not _PENDING
        if isinstance(outcome, HttpError):
            raise outcome
        return outcome

    def set_callback(self, on_resolved: Callable[[], None]) -> None:
        """Calls `on_resolved` once resolved; at once if it already is."""
        self._on_resolved = on_resolved
        if self.outcome is not _PENDING:
            on_resolved()


def reason_phrase(status: int) -> str:
    """The phrase after the number in a status line."""
    return _REASONS.get(status) or HTTPStatus(status).phrase


def _status_line(status: int, *, is_http_11: bool) -> bytes:
    return f"HTTP/1.{int(is_http_11)} {status} {reason_phrase(status)}\r\n".encode()


def _connection_line(*, is_http_11: bool, keep_alive: bool) -> bytes:
    """The Connection header, if the version's default does not apply."""
    if is_http_11:
        return b"" if keep_alive else b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if keep_alive else b""


def _header_lines(headers: HeaderPairs) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode()


def json_response(status: int, body: bytes, *, extra_headers: HeaderPairs = ()) -> Response:
    """A V1 response with an encoded JSON body."""
    headers = tuple(sorted(extra_headers + _V1_JSON_HEADERS)) if extra_headers else _V1_JSON_HEADERS
    return Response(status, body, headers=headers)


def error_response(status: int, code: str, *, extra_headers: HeaderPairs = ()) -> Response:
    """A V1 response with an error code."""
    return json_response(status, to_json({"message": code}), extra_headers=extra_headers)


class ResponseFormat(Protocol):
    """Makes responses of an endpoint's results and errors."""

    def success(self, result: object) -> Response:
        """Makes the response for a result."""

    def failure(self, error: HttpError) -> Response:
        """Makes the response for an error."""


class _V1:
    """A str is sent as text, None as an empty body, anything else as JSON."""

    def success(self, result: object) -> Response:
        match result:
            case None | "":  # Go cannot guess the type of an empty body, and sends none.
                return _EMPTY
            case str():
                return Response(200, _encode(result), headers=_V1_HEADERS, guessed_type=TEXT_TYPE)
            case _:
                return json_response(200, to_json(result))

    def failure(self, error: HttpError) -> Response:
        return error_response(error.status, error.code)


class _PlainText:
    """Results and error codes are sent as text."""

    def success(self, result: object) -> Response:
        assert isinstance(result, str), "a plain text endpoint returns a str"
        return Response(200, _encode(result), guessed_type=TEXT_TYPE)

    def failure(self, error: HttpError) -> Response:
        return Response(error.status, _encode(error.code), guessed_type=TEXT_TYPE)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


V1: Final = _V1()
PLAIN_TEXT: Final = _PlainText()

_EMPTY: Final = Response(200, headers=_V1_HEADERS)
OK: Final = V1.success("OK")
INTERNAL_ERROR: Final = error_response(500, "INTERNAL_ERROR")
