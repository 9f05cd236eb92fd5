"""The blocking consumer.

    with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        for message in consumer:
            message.finish()

Answers are sent when the next message is requested, and by `close`. Nothing runs in between: call
`touch` if a message takes longer than nsqd's timeout.
"""

from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import Self

from penstock.client.addresses import Addresses, parse_servers
from penstock.client.blocking.connection_pool import ConnectionPool
from penstock.client.config import ClientConfig
from penstock.client.discovery import lookup_path
from penstock.client.handshake import check_subscription, consumer_handshake
from penstock.client.message import Message
from penstock.common.errors import ClientClosedError

__all__ = ["Consumer"]

# Iteration waits without limit, this long per `receive`.
WAIT_SECONDS = 3600.0


class Consumer:
    """Consumes a channel of one nsqd, of several, or of all nsqds that have the topic according to
    nsqlookupds. Not thread-safe.
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
        nsqds, lookupds = parse_servers(nsqd, lookupd, "consumer")
        self.topic = topic
        self.channel = channel
        self._pool = ConnectionPool(
            config,
            consumer_handshake(config, topic, channel),
            nsqds,
            lookupds,
            lookup_path(topic),
        )
        self._inbox: deque[Message] = deque()
        self._started = False
        self._closed = False

    # Start and stop.

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
        """Send the remaining answers, requeue the queued messages, and disconnect."""
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
        """The next message; None if none arrives within `timeout` seconds."""
        self._prepare(timeout)
        return self._inbox.popleft() if self._inbox else None

    def batch(self, count_max: int = 1000, *, timeout: float) -> list[Message]:
        """Take up to `count_max` queued messages; wait up to `timeout` seconds for the first."""
        self._prepare(timeout)
        inbox = self._inbox
        return [inbox.popleft() for _ in range(min(count_max, len(inbox)))]

    def flush(self) -> None:
        """Send the answers given so far."""
        self._pool.flush()

    def _prepare(self, timeout: float) -> None:
        """Wait for messages if none are queued."""
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if not self._started:
            self.start()
        self._pool.flush()
        if not self._inbox:
            self._inbox.extend(self._pool.receive(timeout))
