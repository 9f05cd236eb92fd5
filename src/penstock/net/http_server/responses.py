"""Answers, and the two envelopes that an endpoint's results are put into.

An endpoint returns what it found, or raises HttpError, and the envelope of its route makes the
response: `V1` that of every endpoint but `/ping`, which has `PLAIN_TEXT`. An endpoint that needs
another status or type returns a `Response` itself, which goes out as it is.

The lines of a response are in the order in which Go's server sends them: the headers that were set,
then Date, Content-Length, a Content-Type that was guessed, and Connection.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Protocol

from penstock.common.go_json import to_json
from penstock.net.http_server.errors import HttpError, reason_phrase

__all__ = [
    "INTERNAL_ERROR",
    "OK",
    "PLAIN_TEXT",
    "V1",
    "Envelope",
    "Response",
    "Streaming",
    "error_response",
    "json_response",
]

JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"

Headers = tuple[tuple[str, str], ...]

_V1_HEADERS: Headers = (("X-Nsq-Content-Type", "nsq; version=1.0"),)
_V1_JSON_HEADERS: Headers = (("Content-Type", JSON_TYPE), *_V1_HEADERS)


class Response:
    """A status, headers and a body. Immutable, so that one may answer any number of requests."""

    __slots__ = ("_after_date", "_before_date", "_wire", "_wire_date", "body", "status")

    def __init__(
        self, status: int, body: bytes = b"", *, headers: Headers = (), guessed_type: str = ""
    ) -> None:
        self.status: Final = status
        self.body: Final = body
        self._before_date: Final = _lines(headers)
        length = (("Content-Length", str(len(body))),)
        self._after_date: Final = _lines(
            length + ((("Content-Type", guessed_type),) if guessed_type else ())
        )
        self._wire = b""
        self._wire_date: bytes | None = None

    def wire(self, date: bytes) -> bytes:
        """The response to an HTTP/1.1 request on a connection that stays. `date` is the line.

        The same response at the same date is the same bytes: they are kept for the next request.
        """
        if self._wire_date is not date:
            self._wire_date = date
            self._wire = self.wire_to(date, http_11=True, keep_alive=True, head_only=False)
        return self._wire

    def wire_to(self, date: bytes, *, http_11: bool, keep_alive: bool, head_only: bool) -> bytes:
        """The response to any other request."""
        return b"".join(
            (
                status_line(self.status, http_11=http_11),
                self._before_date,
                date,
                self._after_date,
                connection_line(http_11=http_11, keep_alive=keep_alive),
                b"\r\n",
                b"" if head_only else self.body,
            )
        )


class Streaming:
    """A response whose body comes in pieces, each sent when the peer has taken those before it.

    With a `length`, which the pieces must add up to, the body is sent bare; without, in chunks, or
    to an HTTP/1.0 peer until the end of the connection. Serves one request.
    """

    __slots__ = ("_headers", "length", "pieces", "status")

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        *,
        status: int = 200,
        headers: Headers = (),
        length: int | None = None,
    ) -> None:
        self.pieces: Final = pieces
        self.status: Final = status
        self.length: Final = length
        self._headers: Final = headers

    def head_wire(self, date: bytes, *, http_11: bool, keep_alive: bool) -> bytes:
        """All lines before the body."""
        framing: Headers = ()
        if self.length is not None:
            framing = (("Content-Length", str(self.length)),)
        elif http_11:
            framing = (("Transfer-Encoding", "chunked"),)
        return b"".join(
            (
                status_line(self.status, http_11=http_11),
                _lines(self._headers),
                date,
                _lines(framing),
                connection_line(http_11=http_11, keep_alive=keep_alive),
                b"\r\n",
            )
        )

    async def checked_pieces(self) -> AsyncIterator[bytes]:
        """The pieces that are not empty. Raises ValueError if they do not add up to `length`."""
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
        """Lets the source of the pieces clean up, however far it got."""
        if isinstance(self.pieces, AsyncGenerator):
            await self.pieces.aclose()


def status_line(status: int, *, http_11: bool) -> bytes:
    """The first line of an answer."""
    return f"HTTP/1.{int(http_11)} {status} {reason_phrase(status)}\r\n".encode()


def connection_line(*, http_11: bool, keep_alive: bool) -> bytes:
    """What has to be said about the connection: only what the version does not imply."""
    if http_11:
        return b"" if keep_alive else b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if keep_alive else b""


def _lines(headers: Headers) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode()


def json_response(status: int, body: bytes, *, extra_headers: Headers = ()) -> Response:
    """A response of V1 with JSON that is already written."""
    headers = tuple(sorted(extra_headers + _V1_JSON_HEADERS)) if extra_headers else _V1_JSON_HEADERS
    return Response(status, body, headers=headers)


def error_response(status: int, code: str, *, extra_headers: Headers = ()) -> Response:
    """V1's answer to what went wrong."""
    return json_response(status, to_json({"message": code}), extra_headers=extra_headers)


class Envelope(Protocol):
    """How the results of an endpoint become responses."""

    def respond(self, result: object) -> Response:
        """The response to a request that went well."""

    def refuse(self, error: HttpError) -> Response:
        """The response to one that did not."""


class _V1:
    """A str is bare text, or nothing, None is an empty body, anything else is JSON."""

    def respond(self, result: object) -> Response:
        match result:
            case None | "":  # the type of nothing cannot be guessed
                return _EMPTY
            case str():
                return Response(200, _encode(result), headers=_V1_HEADERS, guessed_type=TEXT_TYPE)
            case _:
                return json_response(200, to_json(result))

    def refuse(self, error: HttpError) -> Response:
        return error_response(error.status, error.code)


class _PlainText:
    """Text, whatever happens."""

    def respond(self, result: object) -> Response:
        assert isinstance(result, str), "a plain text endpoint returns a str"
        return Response(200, _encode(result), guessed_type=TEXT_TYPE)

    def refuse(self, error: HttpError) -> Response:
        return Response(error.status, _encode(error.code), guessed_type=TEXT_TYPE)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


V1: Final = _V1()
PLAIN_TEXT: Final = _PlainText()

_EMPTY: Final = Response(200, headers=_V1_HEADERS)
OK: Final = V1.respond("OK")
INTERNAL_ERROR: Final = error_response(500, "INTERNAL_ERROR")
