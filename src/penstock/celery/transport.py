"""The kombu transport: a connection to NSQ.

One blocking producer publishes for all channels, one `Receiver` consumes for all. kombu takes the
received messages when its event loop calls `on_readable`, or by waiting in `drain_events`. The
client reconnects to a lost nsqd itself; kombu sees a connection error only if an operation fails.
"""

import logging
import os
import random
import time
from typing import Any

from kombu.transport import virtual
from kombu.utils.compat import detect_environment

import penstock
from penstock.celery.channel import NsqChannel
from penstock.celery.inbox import Delivery
from penstock.celery.receiver import Receiver
from penstock.celery.settings import Settings, masked, settings_of
from penstock.client.blocking import Producer
from penstock.common.errors import (
    ClientClosedError,
    ConfigError,
    NotConfirmedError,
    NotConnectedError,
    RefusedError,
)

__all__ = ["Transport"]

log = logging.getLogger("penstock.celery")


class Transport(virtual.Transport):
    """The transport of one `kombu.Connection`, its `client`."""

    Channel = NsqChannel

    can_parse_url = True
    default_port = 4150
    driver_type = "nsq"
    driver_name = "penstock"

    recoverable_connection_errors = (NotConnectedError, NotConfirmedError, ClientClosedError)
    connection_errors = (*virtual.Transport.connection_errors, *recoverable_connection_errors)
    recoverable_channel_errors = ()
    channel_errors = (*virtual.Transport.channel_errors, RefusedError)

    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    settings: Settings
    receiver: Receiver

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.transient_queues: set[str] = set()
        """Queues deleted together with their last consumer."""
        self.exclusive_queues: set[str] = set()
        """Queues that belong to this connection only."""
        self._consumers: dict[str, tuple[NsqChannel, bool]] = {}
        self._unconsumed: dict[str, list[Delivery]] = {}
        self._producer: Producer | None = None
        self._refused_defer_seconds = float("inf")
        self._pid = os.getpid()

    def driver_version(self) -> str:
        return penstock.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """All URLs of the broker, separated by semicolons."""
        return ";".join(url if include_password else masked(url, mask) for url in self._urls())

    # Connecting.

    def establish_connection(self) -> "Transport":
        """Raises NotConnectedError or RefusedError if no nsqd can be used, ConfigError if the
        configuration is invalid."""
        if detect_environment() != "default":
            raise ConfigError(
                "NSQ does not support eventlet and gevent: use a pool of processes or threads"
            )
        client = self.client
        self.settings = settings_of(
            self._urls(),
            use_ssl=client.ssl,
            connect_timeout=client.connect_timeout,
            options=client.transport_options,
        )
        # Shuffled; otherwise all processes would publish to the first nsqd.
        nsqds = random.sample(self.settings.nsqds, len(self.settings.nsqds))
        producer = Producer(nsqds, lookupd=self.settings.lookupds, config=self.settings.config)
        self._producer = producer.__enter__()
        self.receiver = Receiver(self.settings)
        super().establish_connection()
        return self

    def close_connection(self, connection: "Transport") -> None:
        if self._pid != os.getpid():
            return  # a forked child: the parent still uses the connection
        super().close_connection(connection)
        self.receiver.close()
        if self._producer is not None:
            self._producer.close()

    def _urls(self) -> list[str]:
        """All broker URLs: kombu would use one at a time, but each nsqd has messages."""
        client = self.client
        prefix = f"{client.uri_prefix}+" if client.uri_prefix else ""
        return list(client.alt) or [prefix + (client.hostname or "nsq://")]

    # Publishing.

    def publish(self, topic: str, body: bytes, *, defer_seconds: float = 0.0) -> None:
        """Publish; return when nsqd has stored the message. Raises NotConfirmedError or
        RefusedError.

        A message deferred for longer than nsqd allows is delivered early; the receiver then
        requeues it for the remaining time.
        """
        assert self._producer is not None, "not connected"
        defer_seconds = min(defer_seconds, self.settings.max_defer)
        if 0 < defer_seconds < self._refused_defer_seconds:
            try:
                self._producer.publish(topic, body, defer=defer_seconds)
                return
            except RefusedError as refusal:
                if refusal.code != "E_INVALID":
                    raise
                log.warning("%s: set max_defer in broker_transport_options", refusal)
                self._refused_defer_seconds = defer_seconds
        self._producer.publish(topic, body)

    # Consuming.

    def consume(self, queue: str, channel: NsqChannel, *, no_ack: bool) -> None:
        """Register the consumer of a queue, and deliver the messages received before."""
        self._consumers[queue] = channel, no_ack
        for delivery in self._unconsumed.pop(queue, []):
            self.receiver.inbox.put(delivery)

    def drain_events(self, connection: "Transport", timeout: float | None = None) -> None:
        """Deliver the next message. Raises TimeoutError if none arrives in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            while (delivery := self.receiver.inbox.maybe_next()) is not None:
                if self._deliver(delivery):
                    return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            self.receiver.inbox.wait(left)

    def register_with_event_loop(self, connection: "Transport", loop: Any) -> None:
        loop.add_reader(self.receiver.inbox.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: "Transport", loop: Any) -> None:
        loop.remove_reader(self.receiver.inbox.fileno())

    def on_readable(self, connection: "Transport", loop: Any) -> None:
        """Deliver all received messages."""
        while (delivery := self.receiver.inbox.maybe_next()) is not None:
            self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> bool:
        """Pass a message to its consumer. Returns whether it was delivered."""
        queue = delivery.queue
        callback = self._callbacks.get(queue)
        if callback is None:
            self._handle_unconsumed(delivery)
            return False
        channel, no_ack = self._consumers[queue]
        is_wanted = channel.wants(queue, delivery.payload["properties"]["delivery_info"])
        if no_ack or not is_wanted:
            self.receiver.finish(delivery.tag)
        if is_wanted:
            callback(delivery.payload)
        return is_wanted

    def _handle_unconsumed(self, delivery: Delivery) -> None:
        """Handle a message whose queue has no consumer: keep it if the queue is exclusive, else
        requeue it."""
        if delivery.queue in self.exclusive_queues:
            self._unconsumed.setdefault(delivery.queue, []).append(delivery)
        else:
            self.receiver.requeue(delivery.tag)
