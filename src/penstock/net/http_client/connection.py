"""A connection of ours to an HTTP server: bytes of a request out, an answer back, read whole.

What can go wrong is a `Broken`, whose text says why. No more is kept than the limits allow,
whatever the server sends.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Self, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from penstock.net.connect_errors import describe_error
from penstock.net.http_client.target import Target

__all__ = ["Broken", "HttpConnection", "HttpReply", "TimedOut"]

# What a server may send beside the body: enough for any head, and for chunks of a byte each.
HEAD_BYTES_MAX = 64 * 1024
FRAMING_BYTES_PER_BODY_BYTE = 16


class Broken(Exception):
    """The exchange has failed; the text says why."""


class TimedOut(Broken):
    """It took too long."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer, read whole. Names of headers are in lower case; repeated ones are joined."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpConnection(asyncio.Protocol):
    """A connection on which one request after the other can be made. Also what the parser calls."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._is_open = True
        self._begin(has_body=True)

    @classmethod
    async def connect(
        cls,
        target: Target,
        *,
        ssl_context: ssl.SSLContext | None,
        timeout_seconds: float,
        body_bytes_max: int,
    ) -> Self:
        """Raises Broken."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: cls(body_bytes_max=body_bytes_max),
                    target.host,
                    target.port,
                    ssl=ssl_context,
                )
        except TimeoutError:
            raise TimedOut("timed out while connecting") from None
        except (OSError, UnicodeError) as error:
            raise Broken(describe_error(error)) from None
        return connection

    async def ask(self, request: bytes, *, has_body: bool = True) -> HttpReply:
        """Sends a request and waits for its answer, which has no body if it is one to a HEAD.
        Raises Broken."""
        if not self._is_open:
            raise Broken("the connection ended before it was used")
        self._begin(has_body=has_body)
        self._transport.write(request)
        return await self._reply

    @property
    def is_reusable(self) -> bool:
        """Whether another request can follow an answer that has come."""
        return self._is_open and self._can_be_kept

    @property
    def has_begun_answer(self) -> bool:
        """Whether some of the answer to the last request has come."""
        return self._received_bytes > 0

    def close(self) -> None:
        """The answer is there, or is not waited for any longer."""
        self._reply.cancel()
        self._transport.abort()

    def _begin(self, *, has_body: bool) -> None:
        self._reply: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        self._parser = HttpResponseParser(self)
        self._has_body = has_body
        self._can_be_kept = False
        self._received_bytes = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._ends_with_connection = False
        self._body = bytearray()

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
            broken = isinstance(error.__context__, Broken)
            self._fail(str(error.__context__) if broken else "what it answers is not HTTP")
        except Broken as reason:
            self._fail(str(reason))

    def eof_received(self) -> None:
        self._is_open = False
        if self._ends_with_connection:
            self._succeed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        why = f": {describe_error(exc)}" if exc else ""
        self._fail(f"the connection ended before the answer did{why}")

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._reply.done():
            self._can_be_kept = False  # nobody has asked for a second answer

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
            raise Broken(f"unknown transfer encoding {coding!r}")
        if not self._has_body:
            self._succeed()
        elif length and int(length) > self._body_bytes_max:
            raise self._too_long()
        self._ends_with_connection = not coding and not length

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._body_bytes_max:
            raise self._too_long()

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._headers.clear()
        else:
            self._can_be_kept = self._has_body and self._parser.should_keep_alive()
            self._succeed()

    # Within.

    @property
    def _is_interim(self) -> bool:
        return self._status < 200  # 100 Continue and its like: the answer is yet to come

    def _check_framing(self) -> None:
        allowed = HEAD_BYTES_MAX + (1 + FRAMING_BYTES_PER_BODY_BYTE) * len(self._body)
        if self._received_bytes > allowed and not self._reply.done():
            raise Broken(f"more than {HEAD_BYTES_MAX} bytes of headers")

    def _too_long(self) -> Broken:
        return Broken(f"answer longer than {self._body_bytes_max} bytes")

    def _succeed(self) -> None:
        if not self._reply.done():
            self._reply.set_result(HttpReply(self._status, self._headers, bytes(self._body)))

    def _fail(self, reason: str) -> None:
        self._can_be_kept = False
        if not self._reply.done():
            self._reply.set_exception(Broken(reason))
            self._reply.exception()  # Whoever does not wait for it any longer need not hear of it.
