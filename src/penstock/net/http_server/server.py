"""The HTTP server that the APIs of the daemons share.

    server = HttpServer(Router(ROUTES), log=log)
    listener = await loop.create_server(server.new_connection, host, port)
    ...
    listener.close()
    await server.stop(timeout_seconds=5)

The listener is the caller's: one server may stand behind several, plain, TLS and unix, as long as
they belong to one loop. While it has connections, a tick about once a second gives them the time of
day and looks at their deadlines; without any it sleeps.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate

from penstock.common.logs import Logger
from penstock.net.connection_limits import Admission
from penstock.net.http_server.connection import Connection
from penstock.net.http_server.origins import OriginPolicy
from penstock.net.http_server.route_cache import Planner
from penstock.net.http_server.routing import Router
from penstock.net.http_server.state import Gate, Limits, OpenConnection, ServerState

__all__ = ["HttpServer"]

# The longest time between two looks at deadlines, and what the Date header needs.
TICK_SECONDS_MAX = 1.0


class HttpServer:
    """Serves the routes of one router."""

    def __init__(
        self,
        router: Router,
        *,
        log: Logger,
        limits: Limits | None = None,
        gates: Iterable[Gate] = (),
        admission: Admission | None = None,
        allowed_origins: Iterable[str] = (),
    ) -> None:
        """Each of `gates` sees every request before its body is read, and may answer it; those
        after it then do not see it. `admission` may be shared with servers of other protocols. Web
        pages of other sites can only change something if their origin is in `allowed_origins`.
        """
        limits, gates = limits or Limits(), tuple(gates)
        planner = Planner(
            router,
            head_bytes_max=limits.head_bytes_max,
            gated=bool(gates),
            origins=OriginPolicy(allowed_origins),
        )
        self._state = ServerState(planner, limits, log, gates, admission or Admission())
        self._tick_seconds = min(TICK_SECONDS_MAX, limits.shortest_seconds)
        self._ticking: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._state.connections)

    @property
    def answers(self) -> Mapping[int, int]:
        """How many requests were answered, by the status of the answer."""
        return self._state.answers

    @property
    def refusals(self) -> Mapping[int, int]:
        """How often peers were refused as peers, by the status they were told."""
        return self._state.refusals

    def new_connection(self) -> Connection:
        """The protocol factory for a listener."""
        if self._ticking is None:
            self._tick()
        return Connection(self._state)

    async def stop(self, timeout_seconds: float) -> None:
        """Answers what has been asked for, and closes everything; what takes longer is cut off.

        Listeners are to be closed before.
        """
        state = self._state
        state.stopping = True
        for connection in tuple(state.connections):
            connection.finish()
        if state.connections:
            await self._wait_until_all_gone(timeout_seconds)
        for task in tuple(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _wait_until_all_gone(self, timeout_seconds: float) -> None:
        state = self._state
        try:
            await asyncio.wait_for(state.all_gone.wait(), timeout_seconds)
        except TimeoutError:
            for connection in tuple(state.connections):
                connection.abort()
            await state.all_gone.wait()

    def _tick(self) -> None:
        state, loop = self._state, asyncio.get_running_loop()
        state.now = loop.time()
        state.idle_deadline = state.now + state.limits.idle_seconds
        wall = time.time()
        # Responses are kept by the identity of this line, so the same second keeps the same one.
        date = f"Date: {formatdate(wall, usegmt=True)}\r\n".encode()
        state.date = state.date if state.date == date else date
        for connection in tuple(state.connections):
            if connection.deadline < state.now:
                self._expire(connection)
        # Just after the second changes, so that the date is right all through it.
        delay = self._tick_seconds - wall % self._tick_seconds + 0.002
        self._ticking = loop.call_later(delay, self._tick_again)

    def _expire(self, connection: OpenConnection) -> None:
        try:
            connection.expire()
        except Exception:
            self._state.log.exception("HTTP: failed to end a connection that took too long")
            connection.abort()

    def _tick_again(self) -> None:
        self._ticking = None
        if self._state.connections:
            self._tick()
