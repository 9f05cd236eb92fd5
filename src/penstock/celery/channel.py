"""Maps AMQP to NSQ: exchanges, queues and bindings become topics and channels.

A durable queue is a topic with one channel, shared by all its consumers. A transient queue (for
remote control, events and broadcasts: declared with `auto_delete`, `exclusive` or not `durable`, or
bound to a fanout exchange) is an ephemeral channel of its exchange's ephemeral topic; messages that
its bindings do not match are dropped here.

As in all virtual transports of kombu, a publisher knows only the bindings that it has declared. If
one of them leads to a durable queue, the message goes to that queue's topic, otherwise to the
exchange's topic.
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
from penstock.celery.receiver import Receiver, seconds_until_due
from penstock.celery.settings import Settings, ephemeral_name

__all__ = ["NsqChannel", "NsqQoS"]


class NsqQoS:
    """The unacknowledged messages of a kombu channel; acknowledging sends FIN or REQ.

    Replaces kombu's `virtual.QoS`. RDY limits the prefetch, so `can_consume` is always true. Usable
    after its channel is closed, because tasks may end later; such answers have no effect.
    """

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        self.prefetch_count = prefetch_count
        self._receiver: Receiver = channel.connection.receiver
        self._unacked: dict[int, Any] = {}

    def can_consume(self) -> bool:
        return True

    def append(self, message: Any, delivery_tag: int) -> None:
        self._unacked[delivery_tag] = message

    def get(self, delivery_tag: int) -> Any:
        return self._unacked[delivery_tag]

    def ack(self, delivery_tag: int) -> None:
        if self._unacked.pop(delivery_tag, None) is not None:
            self._receiver.finish(delivery_tag)

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Requeue without a delay, or finish."""
        if not requeue:
            self.ack(delivery_tag)
        elif self._unacked.pop(delivery_tag, None) is not None:
            self._receiver.requeue(delivery_tag)

    def restore_unacked(self) -> None:
        """Requeue all messages."""
        for delivery_tag in list(self._unacked):
            self.reject(delivery_tag, requeue=True)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Same as `restore_unacked`."""
        self.restore_unacked()


class NsqChannel(virtual.Channel):
    """A kombu channel; its `connection` is the transport."""

    QoS = NsqQoS
    supports_fanout = True
    do_restore = False  # nsqd requeues unfinished messages itself

    # Queues.

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **options: Any
    ) -> queue_declare_ok_t:
        """Counts the messages only if `passive`, because counting needs HTTP requests."""
        queue = queue or f"amq.gen-{uuid()}"
        is_exclusive = bool(options.get("exclusive"))
        if is_exclusive or options.get("auto_delete") or not options.get("durable", True):
            self.connection.transient_queues.add(queue)
        if is_exclusive:
            self.connection.exclusive_queues.add(queue)
        return queue_declare_ok_t(queue, self._size(queue) if passive else 0, 0)

    def after_reply_message_received(self, queue: str) -> None:
        """Keep the reply queue for the next call on this connection."""

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if self.typeof(exchange).type == "fanout":
            self.connection.transient_queues.add(queue)
        if queue in self.connection.exclusive_queues:
            self._subscribe(queue)  # a reply may arrive before basic_consume

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self.connection.receiver.unsubscribe(queue)
        if queue not in self.connection.transient_queues:
            self._purge(queue)

    def _size(self, queue: str) -> int:
        return self._call_queue_admin(queue_admin.count, queue)

    def _purge(self, queue: str) -> int:
        return self._call_queue_admin(queue_admin.purge, queue)

    def _call_queue_admin(
        self, of: Callable[[Settings, str], Coroutine[Any, Any, int]], queue: str
    ) -> int:
        """Call a function of `queue_admin`. Raises NotConnectedError."""
        receiver: Receiver = self.connection.receiver
        return receiver.run(of(self.connection.settings, queue))

    # Publishing.

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Publish; return when nsqd has stored the message."""
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        queues = self._bound_queues(exchange, routing_key) - self.connection.transient_queues
        for queue in queues:
            self._put(queue, message)
        if not queues:
            self._publish_to_subscribers(exchange, routing_key, message)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.connection.publish(
            self.connection.settings.topic_of_queue(queue),
            dumps(message).encode(),
            defer_seconds=seconds_until_due(message["headers"], datetime.now(UTC)),
        )

    def _publish_to_subscribers(
        self, exchange: str, routing_key: str, message: dict[str, Any]
    ) -> None:
        """Publish to the current subscribers of an exchange. Raises ChannelError if the exchange is
        durable and direct, or not declared here: its queue may be durable, and the message would
        be lost."""
        declared = self.state.exchanges.get(exchange, {"type": "direct", "durable": True})
        if declared["type"] == "direct" and declared["durable"]:
            raise ChannelError(
                f"NOT_FOUND - no known queue is bound to exchange {exchange!r} with"
                f" {routing_key!r}: declare the queue, or the exchange if it is a fanout"
                " (apply_async has declare=[...] for it)"
            )
        topic = self.connection.settings.topic_of_exchange(exchange)
        self.connection.publish(topic, dumps(message).encode())

    def _bound_queues(self, exchange: str, routing_key: str) -> set[str]:
        """The bound queues that are known in this process."""
        if exchange not in self.state.exchanges:
            return set()
        table = self.get_table(exchange)
        found: set[str] = self.typeof(exchange).lookup(table, exchange, routing_key, None)
        return found

    # Consuming.

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set the RDY count. It applies to each queue, as in AMQP without `apply_global`."""
        self.qos.prefetch_count = prefetch_count
        for queue in self._active_queues:
            self.connection.receiver.set_prefetch_count(queue, prefetch_count)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        self._subscribe(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.connection.consume(queue, self, no_ack=no_ack)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        # An exclusive queue is deleted with its connection.
        if queue is not None and queue not in self.connection.exclusive_queues:
            self.connection.receiver.unsubscribe(queue)

    def wants(self, queue: str, delivery_info: dict[str, Any]) -> bool:
        """Whether the bindings of the queue match the message."""
        exchange = delivery_info.get("exchange")
        if queue not in self.connection.transient_queues or not exchange:
            return True
        return queue in self._bound_queues(exchange, delivery_info.get("routing_key", ""))

    def _subscribe(self, queue: str) -> None:
        """Subscribe to the topics of a queue. Raises NotConnectedError or RefusedError."""
        settings, receiver = self.connection.settings, self.connection.receiver
        exchanges = {binding.exchange for binding in self.state.queue_bindings(queue)}
        prefetch_count = self.qos.prefetch_count
        if queue in self.connection.transient_queues and exchanges:
            for exchange in exchanges:
                receiver.subscribe(
                    queue,
                    settings.topic_of_exchange(exchange),
                    ephemeral_name(queue),
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
        # kombu's base class polls with it; Celery's workers do not. NSQ has no command that
        # fetches a single message, and subscribing for a moment would take more than one.
        raise NotImplementedError("NSQ cannot poll a queue: consume it")
