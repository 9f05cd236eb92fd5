"""What a kombu channel has handed out and not heard of yet: acknowledging it is answering nsqd.

Prefetching is RDY's business, so there is always room here. It stays usable when its channel is
closed, since tasks may end after that: their answers are then nobody's.
"""

from typing import Any

from penstock.celery.receiver import Receiver

__all__ = ["QoS"]


class QoS:
    """Has the methods of kombu's `virtual.QoS` that are in use."""

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
        """FIN."""
        if self._unacked.pop(delivery_tag, None) is not None:
            self._receiver.finish(delivery_tag)

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """REQ without a delay, or FIN."""
        if not requeue:
            self.ack(delivery_tag)
        elif self._unacked.pop(delivery_tag, None) is not None:
            self._receiver.requeue(delivery_tag)

    def restore_unacked(self) -> None:
        """Gives everything back."""
        for delivery_tag in list(self._unacked):
            self.reject(delivery_tag, requeue=True)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """The same: there is nothing left for a second time."""
        self.restore_unacked()
