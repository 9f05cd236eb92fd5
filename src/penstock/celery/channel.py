"""AMQP's words in NSQ's: exchanges, queues and bindings become topics and channels.

A queue that lasts is a topic, with one channel that all its consumers share. A queue that goes with
its consumers (of remote control, events and broadcasts: declared with `auto_delete`, `exclusive` or
not `durable`, or bound to a fanout exchange) is an ephemeral channel of its exchange's ephemeral
topic; what its bindings do not ask for is dropped here.

Who publishes knows the bindings that it has declared itself, as with all of kombu's virtual
transports. If one of them leads to a queue that lasts, the message goes to that queue's topic,
otherwise to the exchange's.
"""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NoReturn

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from penstock.celery import queue_admin
from penstock.celery.deferral import seconds_until_due
from penstock.celery.naming import ephemeral
from penstock.celery.qos import QoS
from penstock.celery.receiver import Receiver
from penstock.celery.settings import Settings

__all__ = ["Channel"]


class Channel(virtual.Channel):
    """One of a transport's; its `connection` is the transport."""

    QoS = QoS
    supports_fanout = True
    do_restore = False  # nsqd delivers again what is not finished

    # Queues.

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **options: Any
    ) -> queue_declare_ok_t:
        """Only who asks for it passively is told how many messages there are."""
        queue = queue or f"amq.gen-{uuid()}"
        is_exclusive = bool(options.get("exclusive"))
        if is_exclusive or options.get("auto_delete") or not options.get("durable", True):
            self.connection.transient_queues.add(queue)
        if is_exclusive:
            self.connection.exclusive_queues.add(queue)
        return queue_declare_ok_t(queue, self._size(queue) if passive else 0, 0)

    def after_reply_message_received(self, queue: str) -> None:
        """A queue for replies is kept: it serves the next call on this connection too."""

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if self.typeof(exchange).type == "fanout":
            self.connection.transient_queues.add(queue)
        if queue in self.connection.exclusive_queues:
            self._listen(queue)  # an answer may come before it is consumed

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self.connection.receiver.unsubscribe(queue)
        if queue not in self.connection.transient_queues:
            self._purge(queue)

    def _size(self, queue: str) -> int:
        return self._ask(queue_admin.count, queue)

    def _purge(self, queue: str) -> int:
        return self._ask(queue_admin.purge, queue)

    def _ask(self, of: Callable[[Settings, str], Coroutine[Any, Any, int]], queue: str) -> int:
        """Raises NotConnectedError."""
        receiver: Receiver = self.connection.receiver
        return receiver.run(of(self.connection.settings, queue))

    # Publishing.

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Returns when nsqd has stored the message."""
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        queues = self._bound_queues(exchange, routing_key) - self.connection.transient_queues
        for queue in queues:
            self._put(queue, message)
        if not queues:
            self._put_live(exchange, routing_key, message)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.connection.publish(
            self.connection.settings.topic_of_queue(queue),
            dumps(message).encode(),
            defer_seconds=seconds_until_due(message["headers"], datetime.now(UTC)),
        )

    def _put_live(self, exchange: str, routing_key: str, message: dict[str, Any]) -> None:
        """For whoever listens now. A message to a queue that lasts must not get lost so, and an
        exchange that is not known here might lead to one."""
        declared = self.state.exchanges.get(exchange, {"type": "direct", "durable": True})
        if declared["type"] == "direct" and declared["durable"]:
            raise ChannelError(
                f"NOT_FOUND - no queue is bound to exchange {exchange!r} with {routing_key!r}"
                " as far as is known here: declare the queue, or the exchange if it is a fanout"
                " (apply_async has declare=[...] for it)"
            )
        topic = self.connection.settings.topic_of_exchange(exchange)
        self.connection.publish(topic, dumps(message).encode())

    def _bound_queues(self, exchange: str, routing_key: str) -> set[str]:
        """Those that are known here."""
        if exchange not in self.state.exchanges:
            return set()
        table = self.get_table(exchange)
        found: set[str] = self.typeof(exchange).lookup(table, exchange, routing_key, None)
        return found

    # Consuming.

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """It holds for each queue, as in AMQP without `apply_global`, and becomes RDY."""
        self.qos.prefetch_count = prefetch_count
        for queue in self._active_queues:
            self.connection.receiver.set_prefetch_count(queue, prefetch_count)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        self._listen(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.connection.consume(queue, self, no_ack=no_ack)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        # An exclusive queue goes with its connection.
        if queue is not None and queue not in self.connection.exclusive_queues:
            self.connection.receiver.unsubscribe(queue)

    def wants(self, queue: str, delivery_info: dict[str, Any]) -> bool:
        """Whether a message that came for a queue is what it is bound for."""
        exchange = delivery_info.get("exchange")
        if queue not in self.connection.transient_queues or not exchange:
            return True
        return queue in self._bound_queues(exchange, delivery_info.get("routing_key", ""))

    def _listen(self, queue: str) -> None:
        """Raises NotConnectedError or RefusedError."""
        settings, receiver = self.connection.settings, self.connection.receiver
        exchanges = {binding.exchange for binding in self.state.queue_bindings(queue)}
        prefetch_count = self.qos.prefetch_count
        if queue in self.connection.transient_queues and exchanges:
            for exchange in exchanges:
                receiver.subscribe(
                    queue,
                    settings.topic_of_exchange(exchange),
                    ephemeral(queue),
                    prefetch_count=prefetch_count,
                    is_live=True,
                )
        else:
            receiver.subscribe(
                queue,
                settings.topic_of_queue(queue),
                settings.channel,
                prefetch_count=prefetch_count,
            )

    def _get(self, queue: str, timeout: float | None = None) -> NoReturn:
        # kombu's base class has it for those who poll, which Celery's workers do not. NSQ has no
        # command that fetches one message: to subscribe for one, and leave, would take others too.
        raise NotImplementedError("NSQ pushes messages: consume the queue instead of polling it")
