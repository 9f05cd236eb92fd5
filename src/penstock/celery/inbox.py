"""Where deliveries wait for the thread that kombu works in, and how that one is told.

A socket is readable exactly as long as there is something in the inbox, so that an event loop can
watch it, and a thread can wait for it.
"""

import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

__all__ = ["Delivery", "Inbox"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as kombu wants it; `tag` is what it is acknowledged by."""

    queue: str
    tag: int
    payload: dict[str, Any]


class Inbox:
    """Filled by one thread and emptied by others."""

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
        """The oldest delivery, if there is one."""
        with self._lock:
            if not self._deliveries:
                return None
            delivery = self._deliveries.popleft()
            self._keep_readable_only_if_filled()
            return delivery

    def take_back(self, queue: str) -> list[Delivery]:
        """Those of a queue that nobody wants any more."""
        with self._lock:
            taken = [each for each in self._deliveries if each.queue == queue]
            if taken:
                self._deliveries = deque(each for each in self._deliveries if each.queue != queue)
                self._keep_readable_only_if_filled()
            return taken

    def wait(self, seconds: float | None) -> None:
        """Returns when there is something, or after so many seconds; None for ever."""
        self._readable.settimeout(seconds)
        try:
            self._readable.recv(1, socket.MSG_PEEK)
        except (TimeoutError, BlockingIOError):
            return

    def close(self) -> None:
        self._readable.close()
        self._writable.close()

    def _keep_readable_only_if_filled(self) -> None:
        if not self._deliveries:
            self._readable.recv(1)
