"""The asyncio producer.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")

`publish` returns when nsqd has confirmed the message. While nsqd is busy, messages of a topic are
batched into one MPUB; each connection has several of them in flight. With several nsqds, the
producer publishes to each in turn. If a connection is lost, its unconfirmed batches go to another
nsqd: no confirmed message is lost, and an unconfirmed one may be stored twice.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from penstock.client.addresses import Addresses, parse_servers
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
    NotConfirmedError,
    ProtocolError,
    QueueFullError,
    RefusedError,
)

__all__ = ["RETRY_ELSEWHERE_CODES", "Producer", "is_temporary"]

# nsqd is stopping or draining, has too few members in sync, or cannot write to its disk: another
# nsqd may accept the batch.
RETRY_ELSEWHERE_CODES = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})

# nsqd may refuse only one message of the batch.
_SPLIT_CODES = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})


class Producer:
    """Publishes to one nsqd, to several in turn, or to all nsqds that nsqlookupds list.

    `nsqd` is `host:port`, the path of a unix socket, or several of these; `lookupd` accepts URLs,
    too. Use it as a context manager, or call `start` and `close`.
    """

    def __init__(
        self,
        nsqd: Addresses = (),
        *,
        lookupd: Addresses = (),
        config: ClientConfig | None = None,
    ) -> None:
        self._config = config or ClientConfig()
        self._nsqds, self._lookupds = parse_servers(nsqd, lookupd, "producer")
        self._pool: ConnectionPool | None = None
        self._turn = 0
        self._pump_is_due = False
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._last_failure: ClientError | None = None
        self._closed = False

    # Start and stop.

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
        """Connect. Raises NotConnectedError or RefusedError if no nsqd can be used."""
        if self._pool is not None:
            raise ClientError("the producer is already started")
        self._loop = asyncio.get_running_loop()
        self._queue = PublishQueue(self._config, self._schedule_pump)
        config, handshake_for = self._config, producer_handshake(self._config)
        self._pool = ConnectionPool(
            config,
            self._nsqds,
            Discovery(self._lookupds, ALL_NODES, config) if self._lookupds else None,
            lambda address: connect(address, handshake_for(address), config, self),
            lambda _connection: self._pump(),
        )
        try:
            await self._pool.start(needs_one=True)
        except BaseException:
            await self.close()
            raise

    async def flush(self) -> None:
        """Wait until every message published so far is confirmed or has failed."""
        self._check_open()
        await self._queue.wait_until_empty()

    async def close(self) -> None:
        """Wait until every message is confirmed or has failed, then disconnect."""
        if self._closed or self._pool is None:
            return
        self._closed = True
        try:
            await self._queue.wait_until_empty()
        finally:
            await self._pool.close()
            if self._expiry_timer is not None:
                self._expiry_timer.cancel()

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
        """Publish messages in as few MPUBs as `max_batch_size` allows.

        Each MPUB is atomic. If this raises, some of the MPUBs may have been stored. With `defer`,
        each message is published by its own DPUB.
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
        await _wait_for_all(waiters)

    def publish_nowait(self, topic: str, body: bytes) -> asyncio.Future[None]:
        """Queue a message; the returned future is done when nsqd has stored it.

        Raises QueueFullError if `max_queued_bytes` are not confirmed yet. If a failed future is
        never awaited, asyncio logs its exception.
        """
        self._check_open()
        if self._queue.is_full:
            raise QueueFullError("max_queued_bytes of messages are not confirmed yet")
        return self._queue.add(topic, checked_body(body))

    async def _wait_for_room(self) -> None:
        await self._queue.wait_for_room()
        self._check_open()  # the producer may have been closed meanwhile

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the producer is closed")
        if self._pool is None:
            raise ClientError("the producer is not started: use `async with` or call start()")

    # Sending.

    def _schedule_pump(self) -> None:
        """Schedule `_pump` for the end of this loop turn, so that all its publishes are batched."""
        if not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send batches while a connection has room."""
        self._pump_is_due = False
        while self._queue and (connection := self._next_connection()) is not None:
            connection.publish(self._queue.take())
        if self._expiry_timer is None:
            self._arm_expiry_timer()

    def _next_connection(self) -> Connection | None:
        """The next connection in turn that has room."""
        assert self._pool is not None
        connections = self._pool.connections
        for _ in connections:
            self._turn = (self._turn + 1) % len(connections)
            if connections[self._turn].has_room:
                return connections[self._turn]
        return None

    def _arm_expiry_timer(self) -> None:
        """Arm the timer for the oldest batch. There is only one timer."""
        deadline = self._queue.next_deadline
        self._expiry_timer = (
            None if deadline is None else self._loop.call_at(deadline, self._expire)
        )

    def _expire(self) -> None:
        for batch in self._queue.take_expired():
            self._queue.fail(batch, self._not_confirmed())
        self._arm_expiry_timer()

    def _not_confirmed(self) -> NotConfirmedError:
        assert self._pool is not None
        busy = ", ".join(connection.address for connection in self._pool.connections)
        why = self._last_failure or self._pool.maybe_failure() or f"still waiting for {busy}"
        return NotConfirmedError(f"not confirmed within {self._config.publish_timeout:g} s: {why}")

    # ConnectionOwner.

    def confirmed(self, connection: Connection, batches: list[AwaitedBatch]) -> None:
        self._last_failure = None
        for batch in batches:
            self._queue.confirm(batch)
        if self._queue:
            self._pump()

    def refused(self, connection: Connection, error: ProtocolError, batch: AwaitedBatch) -> None:
        refusal = RefusedError(connection.address, error.code, error.detail)
        if error.code in RETRY_ELSEWHERE_CODES:
            self._last_failure = refusal
            if not is_temporary(refusal):
                batch.refused_by |= {connection.address}
            assert self._pool is not None
            if batch.refused_by >= self._pool.addresses:
                self._queue.fail(batch, refusal)
            else:
                self._retry([batch])
        elif error.code not in _SPLIT_CODES or not self._queue.split(batch):
            self._queue.fail(batch, refusal)

    def writable(self, connection: Connection) -> None:
        self._pump()

    def lost(self, connection: Connection, unconfirmed: list[AwaitedBatch]) -> None:
        if unconfirmed:
            self._last_failure = connection.ended.result()
            self._retry(unconfirmed)

    def delivered(self, connection: Connection, messages: list[Message]) -> None:
        raise ProtocolError("E_INVALID", "nsqd delivered a message to a producer")

    def _retry(self, batches: list[AwaitedBatch]) -> None:
        # Later, because the failed connection is still in the pool.
        self._queue.requeue(batches)
        self._schedule_pump()


def is_temporary(refusal: RefusedError) -> bool:
    """Whether nsqd refused because it is stopping or draining, or because too few members of the
    replicated node are in sync. Otherwise its disk failed."""
    detail = refusal.detail
    return detail.endswith((" exiting", " draining")) or " failed not in sync: " in detail


async def _wait_for_all(waiters: list[asyncio.Future[None]]) -> None:
    """Wait for all futures, then raise the first error."""
    if len(waiters) > 1:
        await asyncio.wait(waiters)
    failures = [failure for each in waiters if each.done() and (failure := each.exception())]
    if failures:
        raise failures[0]
    for waiter in waiters:
        await waiter
