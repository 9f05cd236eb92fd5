"""Queue of deliveries from the receiver's thread to the thread of kombu.

A socket is readable exactly while the inbox is not empty, so that an event loop can watch it, and a
thread can wait for it.
"""

import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

__all__ = ["Delivery", "Inbox"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message in kombu's form; `tag` identifies it for the acknowledgement."""

    queue: str
    tag: int
    payload: dict[str, Any]


class Inbox:
    """Thread-safe queue with a file descriptor."""

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._lock = threading.Lock()
        self._readable, self._writable = socket.socketpair()

    def fileno(self) -> int:
        return self._readable.fileno()

    def put(self, delivery: Delivery) -> None:
        with self._lock:
            self._deliveries.append(delivery)
            if len(self._deliveries) == 1:
                self._writable.send(b"\0")

    def maybe_next(self) -> Delivery | None:
        """Remove and return the oldest delivery; None if there is none."""
        with self._lock:
            if not self._deliveries:
                return None
            delivery = self._deliveries.popleft()
            self._clear_readable_if_empty()
            return delivery

    def remove_queue(self, queue: str) -> list[Delivery]:
        """Remove and return all deliveries of a queue."""
        with self._lock:
            taken = [each for each in self._deliveries if each.queue == queue]
            if taken:
                self._deliveries = deque(each for each in self._deliveries if each.queue != queue)
                self._clear_readable_if_empty()
            return taken

    def wait(self, seconds: float | None) -> None:
        """Wait for a delivery, up to `seconds`; None for no limit."""
        self._readable.settimeout(seconds)
        try:
            self._readable.recv(1, socket.MSG_PEEK)
        except (TimeoutError, BlockingIOError):
            return

    def close(self) -> None:
        self._readable.close()
        self._writable.close()

    def _clear_readable_if_empty(self) -> None:
        if not self._deliveries:
            self._readable.recv(1)
