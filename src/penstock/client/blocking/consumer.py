"""Consuming, without an event loop.

    with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        for message in consumer:
            message.finish()

Answers leave when the next message is asked for, and at the end. Nothing happens in between, so who
takes longer with a message than nsqd's timeout has to `touch` it.
"""

from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import Self

from penstock.client.addresses import Addresses, parse_addresses, parse_lookupds
from penstock.client.blocking.connection_pool import ConnectionPool
from penstock.client.config import ClientConfig
from penstock.client.discovery import producers_of
from penstock.client.handshake import check_subscription, consumer_handshake
from penstock.client.message import Message
from penstock.common.errors import ClientClosedError, ConfigError

__all__ = ["Consumer"]

# How long iterating waits at a time; it goes on for ever.
WAIT_SECONDS = 3600.0


class Consumer:
    """Consumes a channel of one nsqd, of several, or of all that lookupds know to have the topic.

    It belongs to one thread at a time.
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
        config = config or ClientConfig()
        if max_in_flight is not None:
            config = replace(config, max_in_flight=max_in_flight)
        nsqds, lookupds = parse_addresses(nsqd), parse_lookupds(lookupd)
        if not nsqds and not lookupds:
            raise ConfigError("a consumer needs the address of an nsqd or of a lookupd")
        self.topic = topic
        self.channel = channel
        self._pool = ConnectionPool(
            config,
            consumer_handshake(config, topic, channel),
            nsqds,
            lookupds,
            producers_of(topic),
        )
        self._inbox: deque[Message] = deque()
        self._started = False
        self._closed = False

    # Its life.

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Subscribe. Raises NotConnectedError or RefusedError if no nsqd, or no lookupd, can be
        used. If no lookupd knows the topic yet, the consumer waits for it."""
        self._started = True
        try:
            self._pool.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Sends the last answers, gives back what nobody has asked for, and disconnects."""
        if self._closed:
            return
        self._closed = True
        while self._inbox:
            self._inbox.popleft().requeue()
        self._pool.flush()
        self._pool.close()

    # Messages.

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while (message := self.receive(WAIT_SECONDS)) is None:
            pass
        return message

    def receive(self, timeout: float) -> Message | None:
        """The next message, or None if none has come within so many seconds."""
        self._prepare(timeout)
        return self._inbox.popleft() if self._inbox else None

    def batch(self, count_max: int = 1000, *, timeout: float) -> list[Message]:
        """The messages that are here, so many at most; waits `timeout` seconds for the first."""
        self._prepare(timeout)
        inbox = self._inbox
        return [inbox.popleft() for _ in range(min(count_max, len(inbox)))]

    def flush(self) -> None:
        """Sends the answers given so far."""
        self._pool.flush()

    def _prepare(self, timeout: float) -> None:
        """Waits for messages if there are none here."""
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if not self._started:
            self.start()
        self._pool.flush()
        if not self._inbox:
            self._inbox.extend(self._pool.receive(timeout))
