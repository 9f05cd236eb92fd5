"""Blocking HTTP client: for Spark executors, the blocking NSQ client and command-line tools.

    client = BlockingHttpClient(connect_timeout_seconds=2, request_timeout_seconds=5)
    info = client.get_json("http://127.0.0.1:4151/info", InfoResponse)

Limits and errors are those of `client.HttpClient`. Threads may share a client.

The client keeps idle connections for later requests. If the server has closed a kept connection
before the client received any byte of the response, the client sends the request once more, on a
new connection, in these cases:

- the method is GET or HEAD;
- the request was not sent completely, so the server cannot have executed it.

In all other cases the request fails: the server may have executed a POST. A timeout is always an
error.
"""

import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from penstock.common.errors import HttpRequestError
from penstock.net.connect_errors import describe_error
from penstock.net.http_client.idle_connections import IdleConnections
from penstock.net.http_client.messages import (
    ACCEPT_V1,
    BODY_BYTES_MAX,
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

__all__ = ["BlockingHttpClient", "HttpStream"]

T = TypeVar("T")

FETCH_BYTES = 64 * 1024
STREAM_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingHttpClient:
    """Sends requests within these limits. The request timeout includes connecting; for a stream, it
    limits each wait for data.

    A copy of a client, by `copy`, `pickle` or `dataclasses.replace`, starts without connections; so
    does a client in a forked process. Connections are closed by `close`, or with the client.
    """

    connect_timeout_seconds: float
    request_timeout_seconds: float
    body_bytes_max: int = BODY_BYTES_MAX
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)  # None: the system's CAs
    _idle: IdleConnections["_BlockingConnection"] = field(
        init=False, repr=False, compare=False, default_factory=IdleConnections
    )

    def fetch(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> HttpReply:
        """Sends a request and returns the response, whatever its status. Raises
        HttpRequestError."""
        target = HttpTarget(url)
        request = target.request(method, headers, body, keep_alive=True)
        deadline = time.monotonic() + self.request_timeout_seconds
        parser = ResponseParser(has_body=method != "HEAD", body_bytes_max=self.body_bytes_max)
        exchange = _Exchange(target, parser, FETCH_BYTES, deadline=deadline)
        with self._begin(exchange, method, request), _errors_of(target):
            while not parser.is_complete:
                exchange.receive()
        return parser.reply()

    def ask(self, method: str, url: str, *, headers: Headers = (), body: bytes = b"") -> HttpReply:
        """Sends a request to a daemon of NSQ, in version 1 of its API, and repeats it over HTTPS if
        the daemon demands that. Returns the response, whatever its status. Raises
        HttpRequestError."""
        headers = (ACCEPT_V1, *headers)
        reply = self.fetch(method, url, headers=headers, body=body)
        secure_url = https_url(url, reply)
        if secure_url is None:
            return reply
        return self.fetch(method, secure_url, headers=headers, body=body)

    def call(self, method: str, url: str, *, headers: Headers = (), body: bytes = b"") -> bytes:
        """Like `ask`; returns the body. Raises HttpRequestError if the status is not 200."""
        return require_ok(url, self.ask(method, url, headers=headers, body=body))

    def get_json(self, url: str, type: type[T], *, headers: Headers = ()) -> T:
        """Like `call` with GET; returns the body decoded as a `type` of msgspec."""
        return decode_reply(url, self.ask("GET", url, headers=headers), type)

    @contextmanager
    def stream(self, url: str, *, headers: Headers = ()) -> Iterator["HttpStream | HttpReply"]:
        """Sends a GET, over HTTPS if the daemon demands that. Yields a stream if the status is 200,
        otherwise the complete response. Raises HttpRequestError."""
        with self._open_stream(url, headers) as (stream, reply):
            secure_url = https_url(url, reply) if reply is not None else None
            if secure_url is None:
                yield stream if reply is None else reply
                return
        with self._open_stream(secure_url, headers) as (stream, reply):
            yield stream if reply is None else reply

    def close(self) -> None:
        """Closes the idle connections. The client can still be used."""
        self._idle.close()

    def __reduce__(self) -> tuple[Callable[[], "BlockingHttpClient"], tuple[()]]:
        new = partial(
            BlockingHttpClient,
            connect_timeout_seconds=self.connect_timeout_seconds,
            request_timeout_seconds=self.request_timeout_seconds,
            body_bytes_max=self.body_bytes_max,
            ssl_context=self.ssl_context,
        )
        return new, ()

    @contextmanager
    def _open_stream(
        self, url: str, headers: Headers
    ) -> Iterator[tuple["HttpStream", HttpReply | None]]:
        """Yields the stream and, if the status is not 200, the complete response."""
        target = HttpTarget(url)
        request = target.request("GET", headers, b"", keep_alive=True)
        exchange = _Exchange(
            target, ResponseParser(), STREAM_BYTES, wait_seconds=self.request_timeout_seconds
        )
        with self._begin(exchange, "GET", request):
            stream = HttpStream(exchange)
            reply = None
            with _errors_of(target):
                stream.receive_head()
                if stream.status != 200:
                    reply = stream.receive_all(self.body_bytes_max)
            yield stream, reply

    @contextmanager
    def _begin(self, exchange: "_Exchange", method: str, request: bytes) -> Iterator[None]:
        """Sends a request and receives the first bytes of the response. At the end of the block,
        keeps the connection if the response was received completely, and closes it otherwise."""
        target = exchange.target
        with _errors_of(target):
            connection = self._send(exchange, method, request)
        try:
            yield
        finally:
            if exchange.parser.can_reuse_connection:
                self._idle.put(target.server, connection)
            else:
                connection.close()

    def _send(self, exchange: "_Exchange", method: str, request: bytes) -> "_BlockingConnection":
        """Sends a request on an idle connection, or on a new one if there is none, or if the idle
        one fails and the request can be repeated safely. Returns the connection. Raises
        ResponseError or OSError."""
        kept = self._idle.take(exchange.target.server)
        if kept is not None:
            try:
                exchange.start(kept, request)
            except (ResponseError, OSError) as error:
                is_repeatable = method in IDEMPOTENT_METHODS or not exchange.is_sent
                is_unanswered = not exchange.parser.received_bytes
                if not is_repeatable or not is_unanswered or isinstance(error, TimeoutError):
                    raise
            else:
                return kept
        connection = self._connect(exchange.target)
        exchange.start(connection, request)
        return connection

    def _connect(self, target: HttpTarget) -> "_BlockingConnection":
        timeout_seconds = min(self.connect_timeout_seconds, self.request_timeout_seconds)
        try:
            connection = socket.create_connection((target.host, target.port), timeout_seconds)
        except TimeoutError:
            raise ResponseError("timed out while connecting", timed_out=True) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not target.is_secure:
            return _BlockingConnection(connection)
        context = self.ssl_context or ssl.create_default_context()
        try:
            secured = context.wrap_socket(connection, server_hostname=target.host)
        except TimeoutError:
            connection.close()
            raise ResponseError("timed out while connecting", timed_out=True) from None
        except BaseException:
            connection.close()
            raise
        return _BlockingConnection(secured)


class HttpStream:
    """A response whose body is read as it arrives."""

    def __init__(self, exchange: "_Exchange") -> None:
        self._exchange = exchange
        self._parser = exchange.parser
        self._rest = memoryview(b"")

    @property
    def status(self) -> int:
        return self._parser.status

    @property
    def headers(self) -> dict[str, str]:
        """Names are in lower case."""
        return self._parser.headers

    def error(self, reason: str) -> HttpRequestError:
        """An error that names the URL of the stream."""
        return self._exchange.target.error(reason)

    def read(self) -> bytes:
        """The data that has arrived, or else the next to arrive; empty at the end of the response.
        Raises HttpRequestError if the response ends early or takes too long."""
        with _errors_of(self._exchange.target):
            parts = self._parser.body_parts
            while not parts and not self._parser.is_complete:
                self._exchange.receive()
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return data

    def readinto(self, buffer: memoryview) -> int:
        """Copies data into `buffer` and returns the number of bytes; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(self.read())
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def receive_head(self) -> None:
        """Receives until the head is complete. Raises ResponseError or OSError."""
        while not self._parser.has_head:
            self._exchange.receive()

    def receive_all(self, bytes_max: int) -> HttpReply:
        """The response with its whole body. Raises ResponseError or OSError."""
        while not self._parser.is_complete:
            if sum(map(len, self._parser.body_parts)) > bytes_max:
                raise ResponseError(f"response larger than {bytes_max} bytes")
            self._exchange.receive()
        return self._parser.reply()


class _Exchange:
    """A request and its response on one connection. The time is limited by a `deadline`, or each
    wait by `wait_seconds`."""

    def __init__(
        self,
        target: HttpTarget,
        parser: ResponseParser,
        buffer_bytes: int,
        *,
        deadline: float | None = None,
        wait_seconds: float | None = None,
    ) -> None:
        self.target = target
        self.parser = parser
        self.is_sent = False
        self._deadline = deadline
        self._wait_seconds = wait_seconds
        # One buffer for all reads saves an allocation of this size, and its page faults, per read.
        self._buffer = memoryview(bytearray(buffer_bytes))

    def start(self, connection: "_BlockingConnection", request: bytes) -> None:
        """Sends the request and receives the first bytes of the response. If that fails, closes the
        connection and raises ResponseError or OSError."""
        self._socket = connection.socket
        self.is_sent = False
        try:
            self._socket.settimeout(self._wait_seconds)
            self._apply_deadline()
            self._socket.sendall(request)
            self.is_sent = True
            self.receive()
        except BaseException:
            connection.close()
            raise

    def receive(self) -> None:
        """Passes the next received bytes to the parser. Raises ResponseError or OSError."""
        self._apply_deadline()
        count = self._socket.recv_into(self._buffer)
        if count:
            self.parser.feed(self._buffer[:count])
        else:
            self.parser.feed_eof()

    def _apply_deadline(self) -> None:
        if self._deadline is None:
            return
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)


class _BlockingConnection:
    """A connection that closes its socket when it is garbage-collected."""

    __slots__ = ("_pid", "socket")

    def __init__(self, socket: socket.socket) -> None:
        self.socket = socket
        self._pid = os.getpid()

    @property
    def is_reusable(self) -> bool:
        """Whether another request can be sent. If there is something to read, the server has closed
        the connection, or has sent data that was not requested."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return self._pid == os.getpid() and not poll.poll(0)

    def close(self) -> None:
        self.socket.close()

    __del__ = close


@contextmanager
def _errors_of(target: HttpTarget) -> Iterator[None]:
    """Converts each failure of a request to HttpRequestError."""
    try:
        yield
    except ResponseError as error:
        raise target.error(str(error), timed_out=error.timed_out) from None
    except (OSError, UnicodeError) as error:
        is_timeout = isinstance(error, TimeoutError)
        raise target.error(describe_error(error), timed_out=is_timeout) from None
