"""The HTTP server of nsqd's and nsqlookupd's APIs.

    server = HttpServer(Router(ROUTES), log=log)
    listener = await loop.create_server(server.new_connection, host, port)
    ...
    listener.close()
    await server.stop(timeout_seconds=5)

The caller owns the listeners. One server may have several (plain, TLS, unix socket) on one event
loop. While connections are open, a timer updates the time and the Date header about once a second,
and checks the connections' deadlines.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate

from penstock.common.logs import Logger
from penstock.net.connection_limits import ConnectionLimits
from penstock.net.http_server.connection import (
    HttpLimits,
    HttpServerConnection,
    Middleware,
    ServerState,
)
from penstock.net.http_server.routing import RouteCache, Router
from penstock.net.origins import OriginPolicy

__all__ = ["HttpServer"]

# Maximum time between two checks of deadlines; the Date header needs one per second.
TICK_SECONDS_MAX = 1.0


class HttpServer:
    """Serves the routes of one router."""

    def __init__(
        self,
        router: Router,
        *,
        log: Logger,
        limits: HttpLimits | None = None,
        middleware: Iterable[Middleware] = (),
        connection_limits: ConnectionLimits | None = None,
        allowed_origins: Iterable[str] = (),
    ) -> None:
        """Each `middleware` is called with every request before its body is read. If it returns a
        response, the rest of the middleware and the route are skipped. `connection_limits` may be
        shared with servers of other protocols. Web pages of other sites can only change something
        if their origin is in `allowed_origins`.
        """
        limits, middleware = limits or HttpLimits(), tuple(middleware)
        route_cache = RouteCache(
            router,
            head_bytes_max=limits.head_bytes_max,
            has_middleware=bool(middleware),
            origins=OriginPolicy(allowed_origins),
        )
        self._state = ServerState(
            route_cache, limits, log, middleware, connection_limits or ConnectionLimits()
        )
        self._tick_seconds = min(TICK_SECONDS_MAX, limits.shortest_seconds)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._state.connections)

    @property
    def responses_by_status(self) -> Mapping[int, int]:
        """Number of responses to requests, by status."""
        return self._state.responses_by_status

    @property
    def rejections_by_status(self) -> Mapping[int, int]:
        """Number of requests and connections refused without calling an endpoint, by status."""
        return self._state.rejections_by_status

    def new_connection(self) -> HttpServerConnection:
        """Protocol factory for a listener."""
        if self._timer is None:
            self._tick()
        return HttpServerConnection(self._state)

    async def stop(self, timeout_seconds: float) -> None:
        """Responds to the requests that have been received, and closes all connections; aborts
        those that are left after the timeout.

        The caller closes the listeners first.
        """
        state = self._state
        state.is_stopping = True
        for connection in tuple(state.connections):
            connection.finish()
        if state.connections:
            await self._wait_until_all_closed(timeout_seconds)
        for task in tuple(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait_until_all_closed(self, timeout_seconds: float) -> None:
        state = self._state
        try:
            await asyncio.wait_for(state.all_closed.wait(), timeout_seconds)
        except TimeoutError:
            for connection in tuple(state.connections):
                connection.abort()
            await state.all_closed.wait()

    def _tick(self) -> None:
        state, loop = self._state, asyncio.get_running_loop()
        state.now = loop.time()
        state.idle_deadline = state.now + state.limits.idle_seconds
        wall = time.time()
        # Responses cache their bytes by the identity of this object: keep it within one second.
        date_line = f"Date: {formatdate(wall, usegmt=True)}\r\n".encode()
        state.date_line = state.date_line if state.date_line == date_line else date_line
        for connection in tuple(state.connections):
            if connection.deadline < state.now:
                self._expire(connection)
        # Just after the second changes, so that the date is right during all of it.
        delay = self._tick_seconds - wall % self._tick_seconds + 0.002
        self._timer = loop.call_later(delay, self._on_timer)

    def _expire(self, connection: HttpServerConnection) -> None:
        try:
            connection.expire()
        except Exception:
            self._state.log.exception("HTTP: failed to end a connection that took too long")
            connection.abort()

    def _on_timer(self) -> None:
        self._timer = None
        if self._state.connections:
            self._tick()
