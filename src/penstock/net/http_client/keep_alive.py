"""An HTTP client for many requests to few servers: connections are kept, and used again.

As many are kept for a server as there were requests to it at a time. One that the server has closed
meanwhile is no failure: the request is made again on another. So a request may arrive twice, if
the server took it and closed the connection without a word.
"""

import asyncio
import ssl
from collections import defaultdict

from penstock.net.http_client.connection import Broken, HttpConnection, HttpReply
from penstock.net.http_client.target import Headers, Target

__all__ = ["KeepAliveClient"]

_Server = tuple[str, int, bool]


class KeepAliveClient:
    """Makes requests within these limits. Connecting is part of the request's time too."""

    def __init__(
        self,
        *,
        connect_timeout_seconds: float,
        request_timeout_seconds: float,
        body_bytes_max: int = 64 << 20,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Without a context, the system's certificates are what servers are verified by."""
        self._connect_timeout_seconds = connect_timeout_seconds
        self._request_timeout_seconds = request_timeout_seconds
        self._body_bytes_max = body_bytes_max
        self._ssl_context = ssl_context
        self._idle: defaultdict[_Server, list[HttpConnection]] = defaultdict(list)

    async def fetch(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b""
    ) -> HttpReply:
        """Makes one request, whatever status it is answered with. Raises HttpRequestError."""
        target = Target(url)
        request = target.request(method, headers, body, keep_alive=True)
        try:
            async with asyncio.timeout(self._request_timeout_seconds):
                return await self._fetch(target, request, has_body=method != "HEAD")
        except TimeoutError:
            raise target.failure("timed out") from None
        except Broken as reason:
            raise target.failure(str(reason)) from None

    def close(self) -> None:
        """Closes what has been kept."""
        for kept in self._idle.values():
            while kept:
                kept.pop().close()

    async def _fetch(self, target: Target, request: bytes, *, has_body: bool) -> HttpReply:
        idle = self._idle[target.host, target.port, target.is_secure]
        while idle:
            connection = idle.pop()
            if not connection.is_reusable:
                connection.close()
                continue
            try:
                return await _ask(connection, request, idle, has_body=has_body)
            except Broken:
                if connection.has_begun_answer:
                    raise
        return await _ask(await self._connect(target), request, idle, has_body=has_body)

    async def _connect(self, target: Target) -> HttpConnection:
        if target.is_secure and self._ssl_context is None:
            # In a thread, because reading the system's certificates takes its time.
            self._ssl_context = await asyncio.to_thread(ssl.create_default_context)
        return await HttpConnection.connect(
            target,
            ssl_context=self._ssl_context if target.is_secure else None,
            timeout_seconds=self._connect_timeout_seconds,
            body_bytes_max=self._body_bytes_max,
        )


async def _ask(
    connection: HttpConnection, request: bytes, idle: list[HttpConnection], *, has_body: bool
) -> HttpReply:
    """Afterwards the connection is kept, if that can be. Raises Broken."""
    try:
        return await connection.ask(request, has_body=has_body)
    finally:
        if connection.is_reusable:
            idle.append(connection)
        else:
            connection.close()
