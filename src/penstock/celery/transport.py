"""The transport itself: what kombu knows of a connection to NSQ.

One blocking producer publishes, shared by all channels. One `Receiver` consumes for all of them;
kombu takes what it brings either when the event loop says so (`on_readable`) or by waiting for it
(`drain_events`). A lost nsqd is the client's business: it connects again by itself. kombu sees a
connection error only where something cannot be done at all.
"""

import logging
import os
import random
import time
from typing import Any

from kombu.transport import virtual
from kombu.utils.compat import detect_environment

import penstock
from penstock.celery.channel import Channel as NsqChannel
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
    """Of one `kombu.Connection`, which is its `client`."""

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
        """Those that go with their consumers."""
        self.exclusive_queues: set[str] = set()
        """Those that are for this connection alone."""
        self._consumers: dict[str, tuple[NsqChannel, bool]] = {}
        self._parked: dict[str, list[Delivery]] = {}
        self._producer: Producer | None = None
        self._refused_defer_seconds = float("inf")
        self._pid = os.getpid()

    def driver_version(self) -> str:
        return penstock.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """All URLs of the broker."""
        return ";".join(url if include_password else masked(url, mask) for url in self._urls())

    # Connecting.

    def establish_connection(self) -> "Transport":
        """Raises NotConnectedError or RefusedError if no nsqd can be used, ConfigError if the
        configuration is invalid."""
        if detect_environment() != "default":
            raise ConfigError("NSQ needs a pool of processes or threads: no eventlet, no gevent")
        client = self.client
        self.settings = settings_of(
            self._urls(),
            use_ssl=client.ssl,
            connect_timeout=client.connect_timeout,
            options=client.transport_options,
        )
        # In any order, or all processes would publish to the first.
        nsqds = random.sample(self.settings.nsqds, len(self.settings.nsqds))
        producer = Producer(nsqds, lookupd=self.settings.lookupds, config=self.settings.config)
        self._producer = producer.__enter__()
        self.receiver = Receiver(self.settings)
        super().establish_connection()
        return self

    def close_connection(self, connection: "Transport") -> None:
        if self._pid != os.getpid():
            return  # it is the parent's, who still uses it
        super().close_connection(connection)
        self.receiver.close()
        if self._producer is not None:
            self._producer.close()

    def _urls(self) -> list[str]:
        """All of them: kombu means to use one at a time, but messages are on each."""
        client = self.client
        prefix = f"{client.uri_prefix}+" if client.uri_prefix else ""
        return list(client.alt) or [prefix + (client.hostname or "nsq://")]

    # Publishing.

    def publish(self, topic: str, body: bytes, *, defer_seconds: float = 0.0) -> None:
        """Returns when nsqd has stored it. Raises NotConfirmedError or RefusedError.

        What is deferred for longer than nsqd allows comes early; the receiver then defers the rest.
        """
        assert self._producer is not None, "the connection has been established"
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
        """A queue has a consumer now: what came before it is delivered."""
        self._consumers[queue] = channel, no_ack
        for delivery in self._parked.pop(queue, []):
            self.receiver.inbox.put(delivery)

    def drain_events(self, connection: "Transport", timeout: float | None = None) -> None:
        """Delivers the next message. Raises TimeoutError if there is none in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            while (delivery := self.receiver.inbox.maybe_next()) is not None:
                if self._hand_over(delivery):
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
        """Delivers all that is here."""
        while (delivery := self.receiver.inbox.maybe_next()) is not None:
            self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> bool:
        """Whether somebody wanted it."""
        queue = delivery.queue
        callback = self._callbacks.get(queue)
        if callback is None:
            self._set_aside(delivery)
            return False
        channel, no_ack = self._consumers[queue]
        is_wanted = channel.wants(queue, delivery.payload["properties"]["delivery_info"])
        if no_ack or not is_wanted:
            self.receiver.finish(delivery.tag)
        if is_wanted:
            callback(delivery.payload)
        return is_wanted

    def _set_aside(self, delivery: Delivery) -> None:
        """Nobody consumes its queue: not yet, or no longer."""
        if delivery.queue in self.exclusive_queues:
            self._parked.setdefault(delivery.queue, []).append(delivery)
        else:
            self.receiver.requeue(delivery.tag)
