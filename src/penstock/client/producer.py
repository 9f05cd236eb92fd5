"""Publishing, on asyncio.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")

What is published to a topic while nsqd is busy is gathered, and leaves in one multi-publish;
several of these are under way on each connection. `publish` returns when nsqd has confirmed. With
several nsqds they take turns, and what one did not confirm before it was lost goes to another:
nothing that was confirmed is lost, and what was not may be stored twice.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from penstock.client.addresses import Addresses, parse_addresses, parse_lookupds
from penstock.client.config import ClientConfig
from penstock.client.connection import AwaitedBatch, Connection, connect
from penstock.client.connection_pool import ConnectionPool
from penstock.client.discovery import ALL_NODES, Discovery
from penstock.client.handshake import producer_handshake
from penstock.client.message import Delay, Message, to_ms
from penstock.client.publish_batch import checked_bodies, checked_body, split_into_batches
from penstock.client.publish_queue import PublishQueue
from penstock.common.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    NotConfirmedError,
    ProtocolError,
    QueueFullError,
    RefusedError,
)

__all__ = ["TRY_ELSEWHERE", "Producer", "is_leaving"]

# nsqd is stopping or draining, or cannot write to its disk: try another nsqd.
TRY_ELSEWHERE = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})

# One message among many may be what nsqd does not take.
_TRY_ONE_BY_ONE = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})


class Producer:
    """Publishes to one nsqd, to several in turn, or to all that lookupds know.

    `nsqd` is `host:port`, the path of a unix socket, or several of these; `lookupd` the same, or
    URLs. Use it as a context manager, or call `start` and `close`.
    """

    def __init__(
        self,
        nsqd: Addresses = (),
        *,
        lookupd: Addresses = (),
        config: ClientConfig | None = None,
    ) -> None:
        self._config = config or ClientConfig()
        self._nsqds, self._lookupds = parse_addresses(nsqd), parse_lookupds(lookupd)
        if not self._nsqds and not self._lookupds:
            raise ConfigError("a producer needs the address of an nsqd or of a lookupd")
        self._pool: ConnectionPool | None = None
        self._turn = 0
        self._pump_is_due = False
        self._expiry: asyncio.TimerHandle | None = None
        self._last_failure: ClientError | None = None
        self._closed = False

    # Its life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects. Raises NotConnectedError or RefusedError if there is no nsqd to be used."""
        if self._pool is not None:
            raise ClientError("a producer can be started only once")
        self._loop = asyncio.get_running_loop()
        self._queue = PublishQueue(self._config, self._schedule_pump)
        config, opening_for = self._config, producer_handshake(self._config)
        self._pool = ConnectionPool(
            config,
            self._nsqds,
            Discovery(self._lookupds, ALL_NODES, config) if self._lookupds else None,
            lambda address: connect(address, opening_for(address), config, self),
            lambda _connection: self._pump(),
        )
        try:
            await self._pool.start(needs_one=True)
        except BaseException:
            await self.close()
            raise

    async def flush(self) -> None:
        """Waits until all that was published before is confirmed or has failed."""
        self._check_open()
        await self._queue.wait_until_empty()

    async def close(self) -> None:
        """Waits until all is confirmed or has failed, and disconnects."""
        if self._closed or self._pool is None:
            return
        self._closed = True
        try:
            await self._queue.wait_until_empty()
        finally:
            await self._pool.close()
            if self._expiry is not None:
                self._expiry.cancel()

    # Publishing.

    async def publish(self, topic: str, body: bytes, *, defer: Delay = 0) -> None:
        """Publish a message; return when nsqd has stored it.

        `defer` delays the delivery (seconds or timedelta). Raises RefusedError if nsqd refuses the
        message or the disks of all nsqds are full, and NotConfirmedError if no nsqd confirms within
        `publish_timeout`. Cancelling this call does not withdraw the message.
        """
        self._check_open()
        if type(body) is not bytes or not body:
            body = checked_body(body)
        if self._queue.is_full:
            await self._wait_for_room()
        if defer:
            await self._queue.add_batch(topic, [body], defer_ms=to_ms(defer))
        else:
            await self._queue.add(topic, body)

    async def publish_many(self, topic: str, bodies: Iterable[bytes], *, defer: Delay = 0) -> None:
        """Publishes messages, in as few commands as they fit into.

        What fits into one is stored whole or not at all; if this raises, some of the others may
        have been stored. Deferred messages take a command each.
        """
        self._check_open()
        defer_ms = to_ms(defer)
        waiters = []
        for run in split_into_batches(
            checked_bodies(bodies), 0 if defer_ms else self._config.max_batch_size
        ):
            if self._queue.is_full:
                await self._wait_for_room()
            waiters.append(self._queue.add_batch(topic, run, defer_ms=defer_ms))
        await _all_done(waiters)

    def publish_nowait(self, topic: str, body: bytes) -> asyncio.Future[None]:
        """Queue a message; the returned future is done when nsqd has stored it.

        Raises QueueFullError if `max_queued_bytes` are not confirmed yet. If a failed future is
        never awaited, asyncio logs its exception.
        """
        self._check_open()
        if self._queue.is_full:
            raise QueueFullError("as much waits to be confirmed as may: max_queued_bytes")
        return self._queue.add(topic, checked_body(body))

    async def _wait_for_room(self) -> None:
        await self._queue.wait_for_room()
        self._check_open()  # it may have been closed meanwhile

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the producer is closed")
        if self._pool is None:
            raise ClientError("the producer has not been started: use it in an `async with`")

    # Sending.

    def _schedule_pump(self) -> None:
        """At the end of this turn of the loop, when all that is published in it has been added."""
        if not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Sends what can be sent."""
        self._pump_is_due = False
        while self._queue and (connection := self._next_connection()) is not None:
            connection.publish(self._queue.take())
        if self._expiry is None:
            self._watch_expiry()

    def _next_connection(self) -> Connection | None:
        """The next, in turn, that takes another batch."""
        assert self._pool is not None
        connections = self._pool.connections
        for _ in connections:
            self._turn = (self._turn + 1) % len(connections)
            if connections[self._turn].has_room:
                return connections[self._turn]
        return None

    def _watch_expiry(self) -> None:
        """One timer for all: it is set anew only when it has run out."""
        deadline = self._queue.next_deadline
        self._expiry = None if deadline is None else self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        for batch in self._queue.take_expired():
            self._queue.failed(batch, self._not_confirmed())
        self._watch_expiry()

    def _not_confirmed(self) -> NotConfirmedError:
        assert self._pool is not None
        busy = ", ".join(connection.address for connection in self._pool.connections)
        why = self._last_failure or self._pool.maybe_failure() or f"still waiting for {busy}"
        return NotConfirmedError(f"not confirmed within {self._config.publish_timeout:g} s: {why}")

    # What connections tell.

    def confirmed(self, connection: Connection, batches: list[AwaitedBatch]) -> None:
        """See Owner."""
        self._last_failure = None
        for batch in batches:
            self._queue.confirmed(batch)
        if self._queue:
            self._pump()

    def refused(self, connection: Connection, error: ProtocolError, batch: AwaitedBatch) -> None:
        """See Owner."""
        refusal = RefusedError(connection.address, error.code, error.detail)
        if error.code in TRY_ELSEWHERE:
            self._last_failure = refusal
            if not is_leaving(refusal):
                batch.refused_by |= {connection.address}
            assert self._pool is not None
            if batch.refused_by >= self._pool.addresses:
                self._queue.failed(batch, refusal)
            else:
                self._try_again([batch])
        elif error.code not in _TRY_ONE_BY_ONE or not self._queue.split(batch):
            self._queue.failed(batch, refusal)

    def writable(self, connection: Connection) -> None:
        """See Owner."""
        self._pump()

    def lost(self, connection: Connection, unconfirmed: list[AwaitedBatch]) -> None:
        """See Owner."""
        if unconfirmed:
            self._last_failure = connection.ended.result()
            self._try_again(unconfirmed)

    def delivered(self, connection: Connection, messages: list[Message]) -> None:
        """See Owner. A producer has subscribed to nothing."""
        raise ProtocolError("E_INVALID", "a message for a producer")

    def _try_again(self, batches: list[AwaitedBatch]) -> None:
        # Not at once: the connection that failed is still in the list.
        self._queue.put_back(batches)
        self._schedule_pump()


def is_leaving(refusal: RefusedError) -> bool:
    """Whether nsqd is stopping or draining, and may be back soon; otherwise its disk is full or
    broken, which an operator has to repair."""
    return refusal.detail.endswith((" exiting", " draining"))


async def _all_done(waiters: list[asyncio.Future[None]]) -> None:
    """Waits for all, then raises the first error."""
    if len(waiters) > 1:
        await asyncio.wait(waiters)
    failures = [failure for each in waiters if each.done() and (failure := each.exception())]
    if failures:
        raise failures[0]
    for waiter in waiters:
        await waiter
