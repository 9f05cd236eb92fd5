"""The asyncio consumer.

    async with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        async for message in consumer:
            message.finish()

nsqd delivers at most `max_in_flight` unanswered messages over all connections; the consumer queues
them until the caller takes them. `run` calls a handler for each message and answers it.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from penstock.client.addresses import Addresses, parse_servers
from penstock.client.config import ClientConfig
from penstock.client.connection import AwaitedBatch, Connection, connect
from penstock.client.connection_pool import ConnectionPool
from penstock.client.discovery import Discovery, lookup_path
from penstock.client.flow_control import Backoff, BackoffState, RdyAllocation, allocate_rdy
from penstock.client.handler_runner import DeadLetter, Handler, HandlerRunner, keep_touching
from penstock.client.handshake import check_subscription, consumer_handshake
from penstock.client.message import Message
from penstock.common.errors import ClientError, ProtocolError
from penstock.protocol import commands

__all__ = ["Consumer"]

log = logging.getLogger("penstock.client")

# From the Go client. At 1.0, nsqd would have to wait for each answer before it delivers more.
STARVED_RATIO = 0.85


class Consumer:
    """Consumes a channel of one nsqd, of several, or of all nsqds that have the topic according to
    nsqlookupds.

    `nsqd` is `host:port`, the path of a unix socket, or several of these; `lookupd` accepts URLs,
    too. `max_in_flight` overrides that of `config`. Use it as a context manager, or call `start`
    and `close`; iterating starts it, too.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: Addresses = (),
        lookupd: Addresses = (),
        max_in_flight: int | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        check_subscription(topic, channel)
        self.topic = topic
        self.channel = channel
        self._config = config or ClientConfig()
        if max_in_flight is not None:
            self._config = replace(self._config, max_in_flight=max_in_flight)
        self._nsqds, self._lookupds = parse_servers(nsqd, lookupd, "consumer")
        self._pool: ConnectionPool | None = None
        self._allocations: dict[Connection, RdyAllocation] = {}
        self._backoff = Backoff(self._config)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._inbox: deque[Message] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()  # callers that wait for a message
        self._runs: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._stopped = asyncio.Event()
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

    async def start(self, *, wait_for_lookupd: bool = False) -> None:
        """Subscribe. Raises NotConnectedError or RefusedError if no nsqd, or no lookupd, can be
        used. If no lookupd knows the topic yet, the consumer waits for it. With `wait_for_lookupd`,
        it also waits for a lookupd: if none answers, it logs a warning and retries."""
        if self._pool is not None:
            raise ClientError("the consumer is already started")
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        config = self._config
        handshake_for = consumer_handshake(config, self.topic, self.channel)
        path = lookup_path(self.topic)
        self._pool = ConnectionPool(
            config,
            self._nsqds,
            Discovery(self._lookupds, path, config) if self._lookupds else None,
            lambda address: connect(address, handshake_for(address), config, self),
            self._on_connected,
        )
        try:
            await self._pool.start(needs_one=False, needs_lookupd=not wait_for_lookupd)
        except BaseException:
            await self.close()
            raise

    def stop(self) -> None:
        """Receive no more messages. After the queued messages, iteration ends and `run` returns.
        May be called from any thread and from signal handlers of the loop."""
        if self._stopping or self._pool is None:
            return
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.stop)
            return
        self._stopping = True
        self._stopped.set()
        for timer in self._timers.values():
            timer.cancel()
        for connection in self._allocations:
            connection.send(commands.cls())
        self._wake(len(self._waiters))

    async def close(self) -> None:
        """Stop, wait for `run` to end, send all FINs and REQs, and disconnect.

        The consumer requeues messages that the caller has not taken. nsqd requeues messages that
        the caller has taken but not answered when the connection ends.
        """
        if self._closed or self._pool is None:
            return
        self.stop()
        self._closed = True
        if self._runs:
            await asyncio.wait(self._runs)
        while self._inbox:
            self._inbox.popleft().requeue()
        await self._pool.close()

    # Messages.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._inbox:
            await self._wait_for_message()
            if not self._inbox:
                raise StopAsyncIteration
        return self._inbox.popleft()

    async def batch(self, count_max: int = 1000) -> list[Message]:
        """Take up to `count_max` queued messages; wait until there is one. Empty after `stop`."""
        if not self._inbox:
            await self._wait_for_message()
        inbox = self._inbox
        return [inbox.popleft() for _ in range(min(count_max, len(inbox)))]

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        dead_letter: DeadLetter | None = None,
    ) -> None:
        """Call `handler` for every message, until `stop`; `concurrency` handlers run at a time.

        A coroutine function runs in the loop and must not block. A plain function runs in one of
        `concurrency` threads: it may block, and may answer its message from there. If the handler
        returns without answering, the message is finished. If it raises, the message is requeued
        and the consumer backs off. While the handler runs, the message is touched. A message that
        failed `max_attempts` times is passed to `dead_letter`, with the last error, and finished.

        After `stop`, the handlers have `close_timeout` to process the messages received so far. If
        `run` is cancelled, the handlers are cancelled too, and their messages are requeued. A
        function in a thread cannot be cancelled: it continues, and its answer is refused.
        """
        if self._pool is None:
            await self.start()
        runner = HandlerRunner(self, self._config, handler, dead_letter, self._on_handled)
        run = asyncio.create_task(runner.run(concurrency))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        await run

    async def keep_touching(self, in_hand: Callable[[], Iterable[Message]]) -> None:
        """Touch the queued messages and those that `in_hand` returns, until cancelled. For callers
        of `batch` that hold messages for long; `run` does this itself."""
        await keep_touching(self, in_hand)

    async def wait_until_stopped(self) -> None:
        """Wait until `stop` or `close` is called."""
        await self._stopped.wait()

    def set_max_in_flight(self, count: int) -> None:
        """Change the maximum of unanswered messages. Raises ConfigError if it is below 1."""
        self._config = replace(self._config, max_in_flight=count)
        if self._pool is not None:
            self._allocate_rdy()

    @property
    def filenos(self) -> list[int]:
        """File descriptors of the sockets. A forked child should close them; otherwise they stay
        open after this process has exited."""
        return [connection.fileno() for connection in self._allocations]

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The queued messages."""
        return tuple(self._inbox)

    @property
    def waiting_count(self) -> int:
        """Number of queued messages."""
        return len(self._inbox)

    @property
    def is_starved(self) -> bool:
        """Whether the unanswered messages of an nsqd have nearly reached its RDY count. At the RDY
        count, nsqd sends no more until some are answered."""
        return any(
            connection.in_flight >= max(1, STARVED_RATIO * allocation.rdy)
            for connection, allocation in self._allocations.items()
        )

    @property
    def msg_timeout(self) -> float:
        """Seconds after which nsqd requeues an unanswered message."""
        timeouts = [connection.agreed.msg_timeout_ms for connection in self._allocations]
        return min(timeouts, default=60_000) / 1000

    async def _wait_for_message(self) -> None:
        """Wait until a message is queued or the consumer is stopped."""
        if self._pool is None:
            await self.start()
        while not self._inbox and not self._stopping:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # pass the wake-up on to another waiter
                raise

    def _wake(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    # ConnectionOwner.

    def _on_connected(self, connection: Connection) -> None:
        if self._stopping:
            connection.send(commands.cls())
        self._allocations[connection] = RdyAllocation(
            self._loop.time(), connection.agreed.max_rdy_count
        )
        self._allocate_rdy()

    def delivered(self, connection: Connection, messages: list[Message]) -> None:
        self._allocations[connection].delivered_at = self._loop.time()
        self._inbox.extend(messages)
        if self._waiters:
            self._wake(len(messages))

    def lost(self, connection: Connection, unconfirmed: list[AwaitedBatch]) -> None:
        """Drop its queued messages; nsqd will deliver them again."""
        self._allocations.pop(connection, None)
        self._inbox = deque(each for each in self._inbox if not each.is_from(connection))
        self._allocate_rdy()

    def writable(self, connection: Connection) -> None:
        """Nothing to do: answers are small and never held back."""

    def confirmed(self, connection: Connection, batches: list[AwaitedBatch]) -> None:
        """Never called: a consumer does not publish."""

    def refused(self, connection: Connection, error: ProtocolError, batch: AwaitedBatch) -> None:
        """Never called: a consumer does not publish."""

    # RDY and backoff.

    def _allocate_rdy(self) -> None:
        if self._stopping:
            return
        connections, allocations = list(self._allocations), list(self._allocations.values())
        now = self._loop.time()
        total = {
            BackoffState.RUNNING: self._config.max_in_flight,
            BackoffState.PROBING: 1,
            BackoffState.PAUSED: 0,
        }[self._backoff.state]
        for connection, allocation, rdy in zip(
            connections,
            allocations,
            allocate_rdy(allocations, self._config, total, now),
            strict=True,
        ):
            if rdy != allocation.rdy:
                allocation.rdy, allocation.changed_at = rdy, now
                connection.send(commands.rdy(rdy))
        if 0 < total < len(allocations):
            self._set_timer("turns", self._config.rdy_redistribute_interval, self._allocate_rdy)

    def _on_handled(self, succeeded: bool) -> None:
        """Update the backoff after a handler returned or raised."""
        backoff = self._backoff
        if (
            not (backoff.record_success() if succeeded else backoff.record_failure())
            or self._stopping
        ):
            return
        self._allocate_rdy()
        if backoff.state is BackoffState.PAUSED:
            log.warning("%s/%s: backing off for %.3g s", *self._name, backoff.pause_seconds)
            self._set_timer("backoff", backoff.pause_seconds, self._probe)

    def _set_timer(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_later(seconds, call)

    def _probe(self) -> None:
        self._backoff.start_probing()
        self._allocate_rdy()

    @property
    def _name(self) -> tuple[str, str]:
        return self.topic, self.channel
