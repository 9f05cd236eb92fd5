"""Idle connections of an HTTP client, kept for later requests to the same server."""

import os
import threading
import time
from collections import deque
from typing import Generic, Protocol, TypeVar

__all__ = ["IDLE_PER_SERVER_MAX", "IDLE_SECONDS", "IdleConnections", "ServerKey"]

# Spark's driver sends up to 16 requests to one nsqd at the same time; more are rare.
IDLE_PER_SERVER_MAX = 16

# Shorter than the idle timeout of nsqd (120 s), so that the client closes a connection before nsqd
# does.
IDLE_SECONDS = 30.0

ServerKey = tuple[str, int, bool]
"""Host, port, and whether the connection is encrypted."""


class ReusableConnection(Protocol):
    @property
    def is_reusable(self) -> bool:
        """Whether another request can be sent: the server has not closed the connection."""

    def close(self) -> None: ...


C = TypeVar("C", bound=ReusableConnection)


class IdleConnections(Generic[C]):
    """Keeps idle connections for reuse: at most `per_server_max` per server, each for at most
    IDLE_SECONDS. Threads may share the object. A forked process starts without connections."""

    def __init__(self, per_server_max: int = IDLE_PER_SERVER_MAX) -> None:
        self._per_server_max = per_server_max
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[ServerKey, deque[tuple[C, float]]] = {}

    def take(self, server: ServerKey) -> C | None:
        """Removes and returns the connection to this server that was used last; None if there is
        none that can be used."""
        self._reset_after_fork()
        while True:
            with self._lock:
                idle = self._idle.get(server)
                if not idle:
                    return None
                connection, idle_since = idle.pop()
            if time.monotonic() - idle_since < IDLE_SECONDS and connection.is_reusable:
                return connection
            connection.close()

    def put(self, server: ServerKey, connection: C) -> None:
        """Keeps a connection. Closes expired connections to any server and, if this server has too
        many, the one that has been idle longest."""
        self._reset_after_fork()
        now = time.monotonic()
        with self._lock:
            surplus = self._remove_expired(now)
            idle = self._idle.setdefault(server, deque())
            if len(idle) >= self._per_server_max:
                surplus.append(idle.popleft()[0])
            idle.append((connection, now))
        for each in surplus:
            each.close()

    def close(self) -> None:
        """Closes all idle connections."""
        self._reset_after_fork()
        with self._lock:
            surplus = [connection for idle in self._idle.values() for connection, _ in idle]
            self._idle.clear()
        for each in surplus:
            each.close()

    def _remove_expired(self, now: float) -> list[C]:
        expired = []
        for server, idle in list(self._idle.items()):
            while idle and now - idle[0][1] >= IDLE_SECONDS:
                expired.append(idle.popleft()[0])
            if not idle:
                del self._idle[server]
        return expired

    def _reset_after_fork(self) -> None:
        """In a forked process, drops the connections of the parent. The lock is replaced, too: if
        another thread of the parent held it during the fork, it stays locked."""
        if self._pid != os.getpid():
            self._pid, self._lock, self._idle = os.getpid(), threading.Lock(), {}
