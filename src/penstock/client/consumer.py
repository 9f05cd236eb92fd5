"""Consuming, on asyncio.

    async with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        async for message in consumer:
            message.finish()

Messages wait here only until they are asked for: nsqd sends no more than `max_in_flight`, over all
connections, before it is answered. `run` calls a handler instead, and answers for it.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from penstock.client.addresses import Addresses, parse_addresses, parse_lookupds
from penstock.client.config import ClientConfig
from penstock.client.connection import AwaitedBatch, Connection, connect
from penstock.client.connection_pool import ConnectionPool
from penstock.client.discovery import Discovery, producers_of
from penstock.client.flow_control import Backoff, BackoffState, RdyAllocation, allocate_rdy
from penstock.client.handler_runner import DeadLetter, Handler, HandlerRunner, keep_touching
from penstock.client.handshake import check_subscription, consumer_handshake
from penstock.client.message import Message
from penstock.common.errors import ClientError, ConfigError, ProtocolError
from penstock.protocol import commands

__all__ = ["Consumer"]

log = logging.getLogger("penstock.client")

# The Go client's: answering only when nothing more can come would make nsqd wait for each answer.
STARVED_PART = 0.85


class Consumer:
    """Consumes a channel of one nsqd, of several, or of all that lookupds know to have the topic.

    `nsqd` is `host:port`, the path of a unix socket, or several of these; `lookupd` the same, or
    URLs. `max_in_flight` stands above that of `config`. Use it as a context manager, or call
    `start` and `close`; iterating starts it too.
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
        self._nsqds, self._lookupds = parse_addresses(nsqd), parse_lookupds(lookupd)
        if not self._nsqds and not self._lookupds:
            raise ConfigError("a consumer needs the address of an nsqd or of a lookupd")
        self._pool: ConnectionPool | None = None
        self._shares: dict[Connection, RdyAllocation] = {}
        self._backoff = Backoff(self._config)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._inbox: deque[Message] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()  # those who wait for a message
        self._runs: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._stopped = asyncio.Event()
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

    async def start(self, *, wait_for_lookupd: bool = False) -> None:
        """Subscribe. Raises NotConnectedError or RefusedError if no nsqd, or no lookupd, can be
        used. If no lookupd knows the topic yet, the consumer waits for it. With `wait_for_lookupd`,
        it also waits for a lookupd: if none answers, it logs a warning and retries."""
        if self._pool is not None:
            raise ClientError("a consumer can be started only once")
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        config = self._config
        opening_for = consumer_handshake(config, self.topic, self.channel)
        path = producers_of(self.topic)
        self._pool = ConnectionPool(
            config,
            self._nsqds,
            Discovery(self._lookupds, path, config) if self._lookupds else None,
            lambda address: connect(address, opening_for(address), config, self),
            self._joined,
        )
        try:
            await self._pool.start(needs_one=False, needs_lookupd=not wait_for_lookupd)
        except BaseException:
            await self.close()
            raise

    def stop(self) -> None:
        """Asks for no more messages. What is here is still handed out, then iteration ends and
        `run` returns. May be called from a signal handler of the loop, and from any thread."""
        if self._stopping or self._pool is None:
            return
        if threading.get_ident() != self._thread_id:
            self._loop.call_soon_threadsafe(self.stop)
            return
        self._stopping = True
        self._stopped.set()
        for timer in self._timers.values():
            timer.cancel()
        for connection in self._shares:
            connection.send(commands.cls())
        self._wake(len(self._idle))

    async def close(self) -> None:
        """Stops, waits for a `run` to end, and disconnects once all answers are on their way.

        Messages that nobody has asked for go back to nsqd at once; those that were not answered,
        when it sees the connection end or when their time is up.
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
        """The messages that are here, so many at most; waits until there is one.

        None at all mean that the consumer was stopped.
        """
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
        """Calls `handler` for every message, until `stop`.

        A coroutine function runs in the loop and must not block. A plain function runs in one of
        `concurrency` threads: it may block, and may answer its message from there. A message is
        finished when the handler returns, unless it has answered it itself, and
        requeued when it raises; then the consumer backs off. As long as the handler works on a
        message, it is touched. One that has failed `max_attempts` times goes to `dead_letter`,
        with the error of the last time, and is finished. `concurrency` handlers work at a time.

        After `stop`, the handlers have `close_timeout` to process the messages received so far. If
        `run` is cancelled, the handlers are cancelled too, and their messages are requeued. A
        function in a thread cannot be cancelled: it continues, and its answer is refused.
        """
        if self._pool is None:
            await self.start()
        handling = HandlerRunner(self, self._config, handler, dead_letter, self._handled)
        run = asyncio.create_task(handling.run(concurrency))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        await run

    async def keep_touching(self, in_hand: Callable[[], Iterable[Message]]) -> None:
        """For whoever takes batches and keeps them for long: touches what `in_hand` returns, and
        what waits here, until this is cancelled. `run` does so by itself."""
        await keep_touching(self, in_hand)

    async def wait_until_stopped(self) -> None:
        """Returns once `stop` or `close` has been called."""
        await self._stopped.wait()

    def set_max_in_flight(self, count: int) -> None:
        """How many messages may be here unanswered from now on. Raises ConfigError if none may."""
        self._config = replace(self._config, max_in_flight=count)
        if self._pool is not None:
            self._share_out()

    @property
    def filenos(self) -> list[int]:
        """Of the sockets. A process that is forked off has them too, and unless it closes them the
        connections stay open when this process is gone."""
        return [connection.fileno() for connection in self._shares]

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that are here and have not been handed out."""
        return tuple(self._inbox)

    @property
    def waiting_count(self) -> int:
        """How many they are."""
        return len(self._inbox)

    @property
    def is_starved(self) -> bool:
        """Whether some nsqd has sent nearly all that it may before it is answered."""
        return any(
            connection.in_flight >= max(1, STARVED_PART * share.rdy)
            for connection, share in self._shares.items()
        )

    @property
    def msg_timeout(self) -> float:
        """After how many seconds without an answer or a touch nsqd delivers a message again."""
        timeouts = [connection.agreed.msg_timeout_ms for connection in self._shares]
        return min(timeouts, default=60_000) / 1000

    async def _wait_for_message(self) -> None:
        """Returns when there is one, or when there will be none."""
        if self._pool is None:
            await self.start()
        while not self._inbox and not self._stopping:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # the message that it was woken for is for somebody else
                raise

    def _wake(self, count: int) -> None:
        while count and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    # What connections tell.

    def _joined(self, connection: Connection) -> None:
        if self._stopping:
            connection.send(commands.cls())
        self._shares[connection] = RdyAllocation(self._loop.time(), connection.agreed.max_rdy_count)
        self._share_out()

    def delivered(self, connection: Connection, messages: list[Message]) -> None:
        """See Owner."""
        self._shares[connection].delivered_at = self._loop.time()
        self._inbox.extend(messages)
        if self._idle:
            self._wake(len(messages))

    def lost(self, connection: Connection, unconfirmed: list[AwaitedBatch]) -> None:
        """See Owner. What it brought and nobody has asked for will come again, from elsewhere."""
        self._shares.pop(connection, None)
        self._inbox = deque(each for each in self._inbox if not each.is_from(connection))
        self._share_out()

    def writable(self, connection: Connection) -> None:
        """See Owner. Answers are small, and are never held back."""

    def confirmed(self, connection: Connection, batches: list[AwaitedBatch]) -> None:
        """See Owner. Nothing is published."""

    def refused(self, connection: Connection, error: ProtocolError, batch: AwaitedBatch) -> None:
        """See Owner. Nothing is published."""

    # How much is asked for.

    def _share_out(self) -> None:
        if self._stopping:
            return
        connections, shares = list(self._shares), list(self._shares.values())
        now = self._loop.time()
        total = {
            BackoffState.ALL: self._config.max_in_flight,
            BackoffState.ONE: 1,
            BackoffState.NONE: 0,
        }[self._backoff.flow]
        for connection, share, rdy in zip(
            connections, shares, allocate_rdy(shares, self._config, total, now), strict=True
        ):
            if rdy != share.rdy:
                share.rdy, share.changed_at = rdy, now
                connection.send(commands.rdy(rdy))
        if 0 < total < len(shares):
            self._set_timer("turns", self._config.rdy_redistribute_interval, self._share_out)

    def _handled(self, succeeded: bool) -> None:
        """A handler has returned or raised."""
        backoff = self._backoff
        if not (backoff.succeeded() if succeeded else backoff.failed()) or self._stopping:
            return
        self._share_out()
        if backoff.flow is BackoffState.NONE:
            log.warning("%s/%s: backing off for %.3g s", *self._name, backoff.hold_seconds)
            self._set_timer("backoff", backoff.hold_seconds, self._try_again)

    def _set_timer(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_later(seconds, call)

    def _try_again(self) -> None:
        self._backoff.held()
        self._share_out()

    @property
    def _name(self) -> tuple[str, str]:
        return self.topic, self.channel
