"""Requests to the HTTP APIs of nsqd and nsqlookupd, on plain sockets.

Every wait is bounded. What goes wrong on the way is an `HttpRequestError`; an answer that came is
one only where the caller says which answers he wants.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

from penstock.common.errors import HttpRequestError
from penstock.net.connect_errors import describe_error
from pyspark_nsq.access import Access

__all__ = ["Answer", "HttpCalls", "Streamed"]

ANSWER_BYTES_MAX = 64 << 20

_ACCEPT_V1 = "application/vnd.nsq; version=1.0"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, read whole. `url` is the one that was asked, without its arguments."""

    url: str
    status: int
    body: bytes

    def json(self) -> Any:
        """Raises HttpRequestError if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise HttpRequestError(self.url, f"no JSON: {self.body[:80]!r}") from None

    def refusal(self) -> HttpRequestError:
        """The error that says what nsqd has said."""
        said = self.body[:200].decode("utf-8", "replace")
        return HttpRequestError(self.url, f"got {self.status} {said}", status=self.status)


class Streamed:
    """The body of an answer that is read while it comes."""

    def __init__(self, url: str, response: HTTPResponse) -> None:
        self.url = url
        self._response = response

    def header(self, name: str) -> str:
        """Empty if there is none."""
        return self._response.headers.get(name, "")

    def readinto(self, room: memoryview) -> int:
        """How many bytes have been put there; 0 at the end of a body that is whole."""
        with _failing_as(self.url):
            return self._response.readinto(room)


class HttpCalls:
    """Asks who answers at a base URL, with the token and the certificates of `access`.

    An nsqd that answers over TLS only says so, and at which port: it is then asked there.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def get(self, base: str, path: str, **args: object) -> Answer:
        """The answer, whatever its status. Raises HttpRequestError if there is none."""
        return self._call("GET", base, path, args)

    def post(self, base: str, path: str, content: bytes = b"", /, **args: object) -> Answer:
        """The same, by POST."""
        return self._call("POST", base, path, args, content)

    def get_json(self, base: str, path: str, **args: object) -> Any:
        """What is in the answer, which must be 200. Raises HttpRequestError."""
        answer = self.get(base, path, **args)
        if answer.status != 200:
            raise answer.refusal()
        return answer.json()

    @contextmanager
    def stream(
        self, base: str, path: str, accept: str, **args: object
    ) -> Iterator[Streamed | Answer]:
        """The body of a 200, to be read; an answer of any other status has been read."""
        with self._opened("GET", base, path, accept, args) as (url, response):
            if response.status == 200:
                yield Streamed(url, response)
                return
            answer = _read_whole(url, response)
        if https_base := _https_base(base, answer):
            with self.stream(https_base, path, accept, **args) as streamed:
                yield streamed
        else:
            yield answer

    def _call(
        self, method: str, base: str, path: str, args: dict[str, object], content: bytes = b""
    ) -> Answer:
        with self._opened(method, base, path, _ACCEPT_V1, args, content) as (url, response):
            answer = _read_whole(url, response)
        https_base = _https_base(base, answer)
        return self._call(method, https_base, path, args, content) if https_base else answer

    @contextmanager
    def _opened(
        self,
        method: str,
        base: str,
        path: str,
        accept: str,
        args: dict[str, object],
        content: bytes = b"",
    ) -> Iterator[tuple[str, HTTPResponse]]:
        url = base + path
        with _failing_as(url):
            connection = self._connect(base)
        try:
            with _failing_as(url):
                target = f"{path}?{urlencode(args)}" if args else path
                connection.request(method, target, content or None, self._headers(accept))
                response = connection.getresponse()
            yield url, response
        finally:
            connection.close()

    def _connect(self, base: str) -> HTTPConnection:
        parts, access = urlsplit(base), self._access
        connection = (
            HTTPSConnection(parts.netloc, context=access.ssl_context())
            if parts.scheme == "https"
            else HTTPConnection(parts.netloc)
        )
        connection.timeout = access.connect_seconds
        connection.connect()
        assert connection.sock is not None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.settimeout(access.request_seconds)
        return connection

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        if self._access.http_token:
            headers["Authorization"] = f"Bearer {self._access.http_token}"
        return headers


def _read_whole(url: str, response: HTTPResponse) -> Answer:
    with _failing_as(url):
        return Answer(url, response.status, response.read(ANSWER_BYTES_MAX))


def _https_base(base: str, answer: Answer) -> str | None:
    """Where an nsqd wants to be asked instead."""
    parts = urlsplit(base)
    if answer.status != 403 or parts.scheme != "http":
        return None
    try:
        port = answer.json()["https_port"]
    except (HttpRequestError, KeyError, TypeError):
        return None
    return f"https://{parts.netloc.rpartition(':')[0]}:{port}"


@contextmanager
def _failing_as(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise HttpRequestError(url, describe_error(failure)) from None
    except HTTPException as failure:
        why = f"no whole answer: {type(failure).__name__} {failure}".rstrip()
        raise HttpRequestError(url, why) from None
