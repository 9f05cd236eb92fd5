"""HTTP client for asyncio.

    client = HttpClient(connect_timeout_seconds=2, request_timeout_seconds=5)
    stats = await client.get_json("http://127.0.0.1:4151/stats?format=json", StatsResponse)

Every failure is an `HttpRequestError`. Time and size of a response are limited, except those of a
`stream`. Redirects are not followed, and proxies are not used.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

from penstock.net.connect_errors import describe_error
from penstock.net.http_client.idle_connections import IDLE_PER_SERVER_MAX, IdleConnections
from penstock.net.http_client.messages import (
    ACCEPT_V1,
    BODY_BYTES_MAX,
    ENDED_EARLY,
    IDEMPOTENT_METHODS,
    Headers,
    HttpReply,
    HttpTarget,
    ResponseError,
    ResponseParser,
    decode_reply,
    https_url,
    require_ok,
)

__all__ = ["HttpClient", "ResponseStream"]

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.Protocol)

# While this much of a stream has not been read, nothing more is received.
STREAM_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """Sends requests within these limits. The request timeout includes connecting.

    With `keep_alive`, idle connections are kept for later requests until `close`, at most
    `idle_per_server_max` per server. If the server closes a kept connection before the client
    received any byte of the response, a GET or HEAD is sent once more, on a new connection. A POST
    fails, because the server may have executed it; with `repeats_posts`, it is sent once more, too,
    and may arrive twice.
    """

    connect_timeout_seconds: float
    request_timeout_seconds: float
    body_bytes_max: int = BODY_BYTES_MAX
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)  # None: the system's CAs
    keep_alive: bool = False
    idle_per_server_max: int = IDLE_PER_SERVER_MAX
    repeats_posts: bool = False
    _idle: IdleConnections["_Connection"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_idle", IdleConnections(self.idle_per_server_max))

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        body_bytes_max: int | None = None,
    ) -> HttpReply:
        """Sends a request and returns the response, whatever its status. `body_bytes_max` replaces
        the client's limit. Raises HttpRequestError."""
        target = HttpTarget(url)
        request = target.request(method, headers, body, keep_alive=self.keep_alive)
        bytes_max = self.body_bytes_max if body_bytes_max is None else body_bytes_max
        parser = ResponseParser(has_body=method != "HEAD", body_bytes_max=bytes_max)
        try:
            async with asyncio.timeout(self.request_timeout_seconds):
                return await self._exchange(target, method, request, parser)
        except TimeoutError:
            raise target.error("timed out", timed_out=True) from None
        except ResponseError as error:
            raise target.error(str(error), timed_out=error.timed_out) from None

    async def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        body_bytes_max: int | None = None,
    ) -> HttpReply:
        """Sends a request to a daemon of NSQ, in version 1 of its API, and repeats it over HTTPS if
        the daemon demands that. Returns the response, whatever its status. Raises
        HttpRequestError."""
        fetch = partial(
            self.fetch,
            method,
            headers=(ACCEPT_V1, *headers),
            body=body,
            body_bytes_max=body_bytes_max,
        )
        reply = await fetch(url)
        secure_url = https_url(url, reply)
        return reply if secure_url is None else await fetch(secure_url)

    async def call(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> bytes:
        """Like `ask`; returns the body. Raises HttpRequestError if the status is not 200."""
        return require_ok(url, await self.ask(method, url, headers=headers, body=body))

    async def get_json(self, url: str, type: type[T], *, headers: Headers = ()) -> T:
        """Like `call` with GET; returns the body decoded as a `type` of msgspec."""
        return decode_reply(url, await self.ask("GET", url, headers=headers), type)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> AsyncIterator["ResponseStream"]:
        """Sends a request, and yields the response, whatever its status, once its headers have
        arrived. The request timeout limits the wait for them; the body may take any time. The
        connection is new, and is closed at the end of the block. Raises HttpRequestError."""
        target = HttpTarget(url)
        request = target.request(method, headers, body)
        connection = None
        try:
            try:
                async with asyncio.timeout(self.request_timeout_seconds):
                    connection = await self._connect(target, _StreamConnection)
                    await connection.send(request)
            except TimeoutError:
                raise target.error("timed out", timed_out=True) from None
            except ResponseError as error:
                raise target.error(str(error), timed_out=error.timed_out) from None
            yield ResponseStream(target, connection)
        finally:
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Closes the idle connections. The client can still be used."""
        self._idle.close()

    async def _exchange(
        self, target: HttpTarget, method: str, request: bytes, parser: ResponseParser
    ) -> HttpReply:
        kept = self._idle.take(target.server)
        if kept is not None:
            try:
                return await self._send(kept, target, request, parser)
            except ResponseError:
                is_repeatable = method in IDEMPOTENT_METHODS or self.repeats_posts
                if not is_repeatable or parser.received_bytes:
                    raise
        connection = await self._connect(target, _Connection)
        return await self._send(connection, target, request, parser)

    async def _send(
        self, connection: "_Connection", target: HttpTarget, request: bytes, parser: ResponseParser
    ) -> HttpReply:
        try:
            return await connection.send(request, parser)
        finally:
            if self.keep_alive and connection.is_reusable:
                self._idle.put(target.server, connection)
            else:
                connection.close()

    async def _connect(self, target: HttpTarget, make_connection: Callable[[], P]) -> P:
        context = None
        if target.is_secure:
            # In a thread: loading the system's certificates blocks for milliseconds.
            context = self.ssl_context or await asyncio.to_thread(ssl.create_default_context)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_seconds):
                _, connection = await loop.create_connection(
                    make_connection, target.host, target.port, ssl=context
                )
        except TimeoutError:
            raise ResponseError("timed out while connecting", timed_out=True) from None
        except (OSError, UnicodeError) as error:
            raise ResponseError(describe_error(error)) from None
        return connection


class ResponseStream:
    """A response whose body is read as it arrives."""

    def __init__(self, target: HttpTarget, connection: "_StreamConnection") -> None:
        self._target = target
        self._connection = connection

    @property
    def status(self) -> int:
        return self._connection.parser.status

    async def read(self) -> bytes:
        """The data that has arrived, or else the next to arrive; empty at the end of the response.
        If the call is cancelled, no data is lost. Raises HttpRequestError."""
        try:
            return await self._connection.read()
        except ResponseError as error:
            raise self._target.error(str(error)) from None


class _Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self._is_open = True
        self._parser: ResponseParser | None = None
        self._reply: asyncio.Future[HttpReply] | None = None

    async def send(self, request: bytes, parser: ResponseParser) -> HttpReply:
        """Sends a request and returns the response. Raises ResponseError if the connection closes
        before the response is complete, or if the response is invalid."""
        if not self._is_open:
            raise ResponseError("the connection closed before it was used")
        self._parser = parser
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    @property
    def is_reusable(self) -> bool:
        """Whether another request can be sent after a complete response."""
        return self._is_open and self._parser is not None and self._parser.can_reuse_connection

    def close(self) -> None:
        if self._reply is not None:
            self._reply.cancel()
        self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self._is_open = False  # data before any request
            return
        try:
            self._parser.feed(data)
        except ResponseError as error:
            self._fail(error)
        else:
            self._finish_if_complete(self._parser)

    def eof_received(self) -> None:
        self._is_open = False
        if self._parser is None:
            return
        try:
            self._parser.feed_eof()
        except ResponseError:
            return  # connection_lost follows, with the reason
        self._finish_if_complete(self._parser)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        self._fail(ResponseError(f"{ENDED_EARLY}: {describe_error(exc)}" if exc else ENDED_EARLY))

    def _finish_if_complete(self, parser: ResponseParser) -> None:
        if parser.is_complete and self._reply is not None and not self._reply.done():
            self._reply.set_result(parser.reply())

    def _fail(self, error: ResponseError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
            self._reply.exception()  # A caller that was cancelled does not retrieve it.


class _StreamConnection(asyncio.Protocol):
    """A connection for one request, whose response is read as it arrives."""

    def __init__(self) -> None:
        self.parser = ResponseParser()
        self._unread_bytes = 0
        self._is_paused = False
        self._error: ResponseError | None = None
        self._progress = asyncio.Event()

    async def send(self, request: bytes) -> None:
        """Returns when the headers of the response have arrived. Raises ResponseError."""
        self._transport.write(request)
        while not self.parser.has_head:
            await self._wait()

    async def read(self) -> bytes:
        """Empty at the end of the response. Raises ResponseError."""
        while not self.parser.body_parts and not self.parser.is_complete:
            await self._wait()
        data = b"".join(self.parser.body_parts)
        self.parser.body_parts.clear()
        self._unread_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._progress.clear()
        await self._progress.wait()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed(data)
        except ResponseError as error:
            self._fail(error)
        self._unread_bytes += len(data)
        if self._unread_bytes > STREAM_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._progress.set()

    def eof_received(self) -> None:
        try:
            self.parser.feed_eof()
        except ResponseError as error:
            self._fail(error)
        self._progress.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ResponseError(f"{ENDED_EARLY}: {describe_error(exc)}" if exc else ENDED_EARLY))

    def _fail(self, error: ResponseError) -> None:
        self._error = self._error or error
        self._progress.set()
