"""Blocking HTTP client: for Spark executors, the blocking NSQ client and command-line tools.

    client = BlockingHttpClient(connect_timeout_seconds=2, request_timeout_seconds=5)
    info = client.get_json("http://127.0.0.1:4151/info", InfoResponse)

Limits and errors are those of `client.HttpClient`. Threads may share a client.
"""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.common.errors import HttpRequestError
from penstock.net.connect_errors import describe_error
from penstock.net.http_client.messages import (
    ACCEPT_V1,
    BODY_BYTES_MAX,
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
    """Sends requests within these limits, each on a connection of its own. The request timeout
    includes connecting; for a stream, it limits each wait for data."""

    connect_timeout_seconds: float
    request_timeout_seconds: float
    body_bytes_max: int = BODY_BYTES_MAX
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)  # None: the system's CAs

    def fetch(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> HttpReply:
        """Sends a request and returns the response, whatever its status. Raises
        HttpRequestError."""
        target = HttpTarget(url)
        deadline = time.monotonic() + self.request_timeout_seconds
        parser = ResponseParser(has_body=method != "HEAD", body_bytes_max=self.body_bytes_max)
        buffer = memoryview(bytearray(FETCH_BYTES))
        with _errors_of(target), self._connect(target) as connection:
            _set_deadline(connection, deadline)
            connection.sendall(target.request(method, headers, body))
            while not parser.is_complete:
                _set_deadline(connection, deadline)
                _receive(connection, parser, buffer)
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

    @contextmanager
    def _open_stream(
        self, url: str, headers: Headers
    ) -> Iterator[tuple["HttpStream", HttpReply | None]]:
        """Yields the stream and, if the status is not 200, the complete response."""
        target = HttpTarget(url)
        request = target.request("GET", headers, b"")
        with _errors_of(target):
            connection = self._connect(target)
        with connection:
            stream = HttpStream(target, connection)
            reply = None
            with _errors_of(target):
                connection.settimeout(self.request_timeout_seconds)
                connection.sendall(request)
                stream.receive_head()
                if stream.status != 200:
                    reply = stream.receive_all(self.body_bytes_max)
            yield stream, reply

    def _connect(self, target: HttpTarget) -> socket.socket:
        timeout_seconds = min(self.connect_timeout_seconds, self.request_timeout_seconds)
        try:
            connection = socket.create_connection((target.host, target.port), timeout_seconds)
        except TimeoutError:
            raise ResponseError("timed out while connecting", timed_out=True) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not target.is_secure:
            return connection
        context = self.ssl_context or ssl.create_default_context()
        try:
            return context.wrap_socket(connection, server_hostname=target.host)
        except TimeoutError:
            connection.close()
            raise ResponseError("timed out while connecting", timed_out=True) from None
        except BaseException:
            connection.close()
            raise


class HttpStream:
    """A response whose body is read as it arrives."""

    def __init__(self, target: HttpTarget, connection: socket.socket) -> None:
        self._target = target
        self._connection = connection
        self._parser = ResponseParser()
        self._rest = memoryview(b"")
        # One buffer for all reads saves an allocation of this size, and its page faults, per read.
        self._buffer = memoryview(bytearray(STREAM_BYTES))

    @property
    def status(self) -> int:
        return self._parser.status

    @property
    def headers(self) -> dict[str, str]:
        """Names are in lower case."""
        return self._parser.headers

    def error(self, reason: str) -> HttpRequestError:
        """An error that names the URL of the stream."""
        return self._target.error(reason)

    def read(self) -> bytes:
        """The data that has arrived, or else the next to arrive; empty at the end of the response.
        Raises HttpRequestError if the response ends early or takes too long."""
        with _errors_of(self._target):
            parts = self._parser.body_parts
            while not parts and not self._parser.is_complete:
                _receive(self._connection, self._parser, self._buffer)
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
        """Raises ResponseError or OSError."""
        while not self._parser.has_head:
            _receive(self._connection, self._parser, self._buffer)

    def receive_all(self, bytes_max: int) -> HttpReply:
        """The response with its whole body. Raises ResponseError or OSError."""
        while not self._parser.is_complete:
            if sum(map(len, self._parser.body_parts)) > bytes_max:
                raise ResponseError(f"response larger than {bytes_max} bytes")
            _receive(self._connection, self._parser, self._buffer)
        return self._parser.reply()


def _receive(connection: socket.socket, parser: ResponseParser, buffer: memoryview) -> None:
    count = connection.recv_into(buffer)
    if count:
        parser.feed(buffer[:count])
    else:
        parser.feed_eof()


def _set_deadline(connection: socket.socket, deadline: float) -> None:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    connection.settimeout(remaining)


@contextmanager
def _errors_of(target: HttpTarget) -> Iterator[None]:
    """Raises each failure as HttpRequestError."""
    try:
        yield
    except ResponseError as error:
        raise target.error(str(error), timed_out=error.timed_out) from None
    except (OSError, UnicodeError) as error:
        is_timeout = isinstance(error, TimeoutError)
        raise target.error(describe_error(error), timed_out=is_timeout) from None
