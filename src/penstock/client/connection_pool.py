"""The nsqds that a client uses: a connection to each is kept, and made again when it is lost.

Addresses that the user named are kept for good. Those that lookupds found are kept while they work
and while some lookupd names them: one that is lost and no longer named is let go.
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

# A connection that was lost sooner than this is not tried again as if nothing had happened.
USEFUL_SECONDS_MIN = 1.0


class ConnectionPool:
    """Keeps connections to nsqds; `joined` is called with each that is ready for use."""

    def __init__(
        self,
        config: ClientConfig,
        addresses: Iterable[str],
        discovery: Discovery | None,
        connect: Callable[[str], Awaitable[Connection]],
        joined: Callable[[Connection], None],
    ) -> None:
        self.connections: list[Connection] = []
        """Those that are ready for use."""
        self._config = config
        self._named = list(addresses)
        self._found: set[str] = set()
        self._discovery = discovery
        self._connect = connect
        self._joined = joined
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, ClientError] = {}
        self._discovering: asyncio.Task[None] | None = None
        self._attempted = asyncio.Event()  # set at every end of an attempt
        self._is_starting = False

    async def start(self, *, needs_one: bool, needs_lookupd: bool = True) -> None:
        """Return when an nsqd is ready for use.

        Raises ClientError if none can be used. Without `needs_one`, it returns without an nsqd if
        the addresses come from lookupds; without `needs_lookupd`, also if no lookupd answers.

        An nsqd that cannot be used is logged only if this returns; otherwise the error names it.
        """
        self._is_starting = True
        await self._start(needs_one=needs_one, needs_lookupd=needs_lookupd)
        self._is_starting = False
        for unusable in self._failures.values():
            log.warning("%s", unusable)

    async def _start(self, *, needs_one: bool, needs_lookupd: bool) -> None:
        if self._discovery is not None:
            try:
                self._set_found(await self._discovery.first())
            except NotConnectedError as no_answer:
                if needs_lookupd:
                    raise
                log.warning("%s", no_answer)
            self._tell_discovery()
            self._discovering = asyncio.create_task(self._discovery.run(self._set_found))
            self._discovering.add_done_callback(_tell_of_bug)
        self._keep_all()
        while not self.connections:
            if len(self._failures) == len(self._keepers):
                failure = self.maybe_failure()
                if failure is not None and (self._named or needs_one):
                    raise failure
                return
            self._attempted.clear()
            await self._attempted.wait()

    async def close(self) -> None:
        """Ends everything. Connections send what they have been given first."""
        tasks = [*self._keepers.values()]
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
        """All nsqds, whether they can be used now or not."""
        return self._keepers.keys()

    def maybe_failure(self) -> ClientError | None:
        """What is wrong with the nsqds that cannot be used now."""
        if len(self._failures) == 1:
            return next(iter(self._failures.values()))
        if not self._failures:
            return None if self._keepers else NotConnectedError("no lookupd knows of an nsqd")
        return NotConnectedError(
            "no nsqd can be used: " + "; ".join(map(str, self._failures.values()))
        )

    def _set_found(self, addresses: set[str]) -> None:
        self._found = addresses
        self._keep_all()

    def _keep_all(self) -> None:
        for address in [*self._named, *sorted(self._found)]:
            if address not in self._keepers:
                task = asyncio.create_task(self._keep(address))
                self._keepers[address] = task
                task.add_done_callback(_tell_of_bug)

    async def _keep(self, address: str) -> None:
        delay = RECONNECT_DELAY_SECONDS_MIN
        try:
            while address in self._named or address in self._found:
                if await self._use(address) >= USEFUL_SECONDS_MIN:
                    delay = RECONNECT_DELAY_SECONDS_MIN
                await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 (no secret)
                delay = min(2 * delay, self._config.reconnect_delay_max)
        finally:
            del self._keepers[address]
            self._failures.pop(address, None)

    async def _use(self, address: str) -> float:
        """Connects once, and returns when that is over: how many seconds it has lasted."""
        try:
            connection = await self._connect(address)
        except ClientError as failure:
            self._note_failure(address, failure)
            return 0.0
        began = asyncio.get_running_loop().time()
        self._failures.pop(address, None)
        self.connections.append(connection)
        self._tell_discovery()
        self._attempted.set()
        self._joined(connection)
        await asyncio.wait([connection.ended])  # which, other than awaiting it, does not cancel it
        self.connections.remove(connection)
        self._tell_discovery()
        self._note_failure(address, connection.ended.result())
        return asyncio.get_running_loop().time() - began

    def _tell_discovery(self) -> None:
        if self._discovery is not None:
            self._discovery.set_urgent(urgent=not self.connections)

    def _note_failure(self, address: str, failure: ClientError) -> None:
        if not self._is_starting and str(failure) != str(self._failures.get(address)):
            log.warning("%s", failure)
        self._failures[address] = failure
        self._attempted.set()


def _tell_of_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (bug := task.exception()) is not None:
        log.error("a task of the client ended by mistake", exc_info=bug)
