"""Keeps one connection to each nsqd of a client, and reconnects when it is lost.

Addresses given by the user stay in the pool. An address found by discovery is removed when its
connection is lost and no nsqlookupd lists it any more.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, KeysView

from penstock.client.config import ClientConfig
from penstock.client.connection import Connection
from penstock.client.discovery import Discovery
from penstock.common.errors import ClientError, NotConnectedError

__all__ = ["ConnectionPool"]

log = logging.getLogger("penstock.client")

RECONNECT_DELAY_SECONDS_MIN = 0.1

# A connection that lasted this long resets the reconnect delay to its minimum.
USEFUL_SECONDS_MIN = 1.0


class ConnectionPool:
    """Connections to nsqds. Calls `on_connected` with each new connection."""

    def __init__(
        self,
        config: ClientConfig,
        addresses: Iterable[str],
        discovery: Discovery | None,
        connect: Callable[[str], Awaitable[Connection]],
        on_connected: Callable[[Connection], None],
    ) -> None:
        self.connections: list[Connection] = []
        """The established connections."""
        self._config = config
        self._given = list(addresses)
        self._found: set[str] = set()
        self._discovery = discovery
        self._connect = connect
        self._on_connected = on_connected
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, ClientError] = {}
        self._discovering: asyncio.Task[None] | None = None
        self._attempted = asyncio.Event()  # set after every attempt to connect
        self._is_starting = False

    async def start(self, *, needs_one: bool, needs_lookupd: bool = True) -> None:
        """Return when one connection is established. Raises ClientError if that is impossible.

        If the addresses come from discovery: without `needs_one`, return also if there is no
        nsqd yet; without `needs_lookupd`, also if no nsqlookupd answers.

        Unusable nsqds are named in the error, or logged if this returns.
        """
        self._is_starting = True
        await self._start(needs_one=needs_one, needs_lookupd=needs_lookupd)
        self._is_starting = False
        for unusable in self._failures.values():
            log.warning("%s", unusable)

    async def _start(self, *, needs_one: bool, needs_lookupd: bool) -> None:
        if self._discovery is not None:
            try:
                self._set_found(await self._discovery.ask_once())
            except NotConnectedError as no_answer:
                if needs_lookupd:
                    raise
                log.warning("%s", no_answer)
            if not self._found:
                self._discovery.poll_soon(again=False)
            self._discovering = asyncio.create_task(self._discovery.run(self._set_found))
            self._discovering.add_done_callback(_log_exception)
        self._start_missing_tasks()
        while not self.connections:
            if len(self._failures) == len(self._tasks):
                failure = self.maybe_failure()
                if failure is not None and (self._given or needs_one):
                    raise failure
                return
            self._attempted.clear()
            await self._attempted.wait()

    async def close(self) -> None:
        """Stop discovery and close all connections after they have sent their queued data."""
        tasks = [*self._tasks.values()]
        if self._discovering is not None:
            tasks.append(self._discovering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()
        ends = [connection.ended for connection in self.connections]
        if ends:
            _, late = await asyncio.wait(ends, timeout=self._config.write_timeout)
            if late:
                for connection in list(self.connections):
                    connection.abort()
        self.connections.clear()

    @property
    def addresses(self) -> KeysView[str]:
        """Addresses of all nsqds in the pool, connected or not."""
        return self._tasks.keys()

    def maybe_failure(self) -> ClientError | None:
        """The errors of all unusable nsqds as one error; None if there is none."""
        if len(self._failures) == 1:
            return next(iter(self._failures.values()))
        if not self._failures:
            return None if self._tasks else NotConnectedError("no nsqlookupd knows an nsqd")
        return NotConnectedError(
            "no nsqd can be used: " + "; ".join(map(str, self._failures.values()))
        )

    def _set_found(self, addresses: set[str]) -> None:
        self._found = addresses
        self._start_missing_tasks()

    def _start_missing_tasks(self) -> None:
        for address in [*self._given, *sorted(self._found)]:
            if address not in self._tasks:
                task = asyncio.create_task(self._keep_connected(address))
                self._tasks[address] = task
                task.add_done_callback(_log_exception)

    async def _keep_connected(self, address: str) -> None:
        delay = RECONNECT_DELAY_SECONDS_MIN
        try:
            while address in self._given or address in self._found:
                if await self._connect_and_wait(address) >= USEFUL_SECONDS_MIN:
                    delay = RECONNECT_DELAY_SECONDS_MIN
                await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 (no secret)
                delay = min(2 * delay, self._config.reconnect_delay_max)
        finally:
            del self._tasks[address]
            self._failures.pop(address, None)

    async def _connect_and_wait(self, address: str) -> float:
        """Connect and wait until the connection is lost. Returns how many seconds it lasted."""
        try:
            connection = await self._connect(address)
        except ClientError as failure:
            self._record_failure(address, failure)
            self._poll_soon(again=False)
            return 0.0
        began = asyncio.get_running_loop().time()
        self._failures.pop(address, None)
        self.connections.append(connection)
        self._attempted.set()
        self._on_connected(connection)
        await asyncio.wait([connection.ended])  # unlike `await`, this does not cancel the future
        self.connections.remove(connection)
        self._record_failure(address, connection.ended.result())
        seconds = asyncio.get_running_loop().time() - began
        self._poll_soon(again=seconds >= USEFUL_SECONDS_MIN)
        return seconds

    def _poll_soon(self, *, again: bool) -> None:
        if self._discovery is not None:
            self._discovery.poll_soon(again=again)

    def _record_failure(self, address: str, failure: ClientError) -> None:
        if not self._is_starting and str(failure) != str(self._failures.get(address)):
            log.warning("%s", failure)
        self._failures[address] = failure
        self._attempted.set()


def _log_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (bug := task.exception()) is not None:
        log.error("a task of the client failed", exc_info=bug)
