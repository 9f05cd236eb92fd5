"""A small HTTP client: what our daemons and tools ask each other, and the auth servers, with.

    client = HttpClient(connect_timeout_seconds=2, request_timeout_seconds=5)
    stats = await client.get_json("http://127.0.0.1:4151/stats?format=json", dict[str, Any])

One request, one connection. Everything that can go wrong is an `HttpRequestError`. Nothing here
waits for ever, blocks the loop, or keeps more than the limits allow, whatever the server sends.
Redirects are an answer like any other, and there are no proxies.
"""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.common.go_json import decode_json
from penstock.net.http_client.connection import Broken, HttpConnection, HttpReply, TimedOut
from penstock.net.http_client.target import Headers, Target, https_instead, without_secrets

__all__ = ["ACCEPT_V1", "HttpClient", "HttpReply", "https_instead", "without_secrets"]

ACCEPT_V1 = ("Accept", "application/vnd.nsq; version=1.0")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """Makes requests within these limits. Connecting is part of the request's time too."""

    connect_timeout_seconds: float
    request_timeout_seconds: float
    body_bytes_max: int = 64 << 20
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)  # None: the system's CAs

    async def fetch(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> HttpReply:
        """Makes one request, whatever status it is answered with. Raises HttpRequestError."""
        target = Target(url)
        request = target.request(method, headers, body)
        try:
            async with asyncio.timeout(self.request_timeout_seconds):
                connection = await HttpConnection.connect(
                    target,
                    ssl_context=await self._context() if target.is_secure else None,
                    timeout_seconds=self.connect_timeout_seconds,
                    body_bytes_max=self.body_bytes_max,
                )
                try:
                    return await connection.ask(request, has_body=method != "HEAD")
                finally:
                    connection.close()
        except TimeoutError:
            raise target.failure("timed out", timed_out=True) from None
        except Broken as reason:
            timed_out = isinstance(reason, TimedOut)
            raise target.failure(str(reason), timed_out=timed_out) from None

    async def ask(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> HttpReply:
        """Makes a request of one of NSQ's daemons, in V1 of its API, whatever status it is answered
        with; over TLS if it says that it takes no other. Raises HttpRequestError."""
        headers = (ACCEPT_V1, *headers)
        reply = await self.fetch(method, url, headers=headers, body=body)
        https_url = https_instead(url, reply.status, reply.body)
        if https_url is None:
            return reply
        return await self.fetch(method, https_url, headers=headers, body=body)

    async def call(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> bytes:
        """The body of what `ask` gets, which must be a 200. Raises HttpRequestError."""
        reply = await self.ask(method, url, headers=headers, body=body)
        if reply.status != 200:
            raise Target(url).failure(_said(reply), status=reply.status)
        return reply.body

    async def get_json(self, url: str, type: type[T], *, headers: Headers = ()) -> T:
        """What `call` gets, decoded as a `type` of msgspec's. Raises HttpRequestError."""
        body = await self.call("GET", url, headers=headers)
        try:
            return decode_json(body, type)
        except ValueError as error:
            raise Target(url).failure(f"unexpected answer: {error}") from None

    async def _context(self) -> ssl.SSLContext:
        """Made in a thread, because reading the system's certificates takes its time."""
        if self.ssl_context is None:
            return await asyncio.to_thread(ssl.create_default_context)
        return self.ssl_context


def _said(reply: HttpReply) -> str:
    """A status, and the beginning of what came with it."""
    said = reply.body[:200].decode("utf-8", "replace")
    return f"got response {reply.status} {said!r}"
