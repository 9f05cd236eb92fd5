"""The blocking producer.

    with Producer(["10.0.0.1:4150", "10.0.0.2:4150"]) as producer:
        producer.publish_many("orders", [b"one", b"two"])

A publish returns when nsqd has confirmed it. If a connection is lost first, the producer tries the
next nsqd: no confirmed message is lost, and an unconfirmed one may be stored twice. Threads may
share a producer; they publish one at a time. Connections have no heartbeats, so a producer may stay
idle for any time.
"""

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Self

from penstock.client.addresses import Addresses, parse_servers
from penstock.client.blocking.connection import Connection
from penstock.client.blocking.lookup import look_up
from penstock.client.config import ClientConfig
from penstock.client.discovery import ALL_NODES
from penstock.client.handshake import producer_handshake
from penstock.client.message import Delay, to_ms
from penstock.client.producer import RETRY_ELSEWHERE_CODES, is_temporary
from penstock.client.publish_batch import (
    PublishBatch,
    checked_bodies,
    checked_topic,
    split_into_batches,
)
from penstock.common.errors import (
    ClientClosedError,
    ClientError,
    NotConfirmedError,
    NotConnectedError,
    RefusedError,
)
from penstock.protocol import client as wire

__all__ = ["Producer"]

# First and longest pause after all nsqds have failed. Each is twice as long as the one before.
RETRY_SECONDS = (0.1, 1.0)


class Producer:
    """Publishes to one nsqd, or to the first of several that works. Connects when needed."""

    def __init__(
        self,
        nsqd: Addresses = (),
        *,
        lookupd: Addresses = (),
        config: ClientConfig | None = None,
    ) -> None:
        self._config = config or ClientConfig()
        self._nsqds, self._lookupds = parse_servers(nsqd, lookupd, "producer")
        self._handshake_for = producer_handshake(self._config, heartbeats=False)
        self._lock = threading.Lock()
        self._candidates: deque[str] = deque()
        self._connection: Connection | None = None
        self._closed = False

    def __enter__(self) -> Self:
        """Connect. Raises NotConnectedError or RefusedError if no nsqd can be used."""
        with self._lock:
            self._connect_to_any()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._closed = True
            self._drop_connection()

    def publish(self, topic: str, body: bytes, *, defer: Delay = 0) -> None:
        """Publish a message; return when nsqd has stored it.

        `defer` delays the delivery (seconds or timedelta). Raises RefusedError if nsqd refuses the
        message, and NotConfirmedError if no nsqd confirms within `publish_timeout`.
        """
        self.publish_many(topic, [body], defer=defer)

    def publish_many(self, topic: str, bodies: Iterable[bytes], *, defer: Delay = 0) -> None:
        """Publish messages in as few MPUBs as `max_batch_size` allows, several of them in flight.

        Each MPUB is atomic. If this raises, some of the MPUBs may have been stored.
        """
        checked_topic(topic)
        defer_ms = to_ms(defer)
        size_max = 0 if defer_ms else self._config.max_batch_size
        batches: deque[PublishBatch[None]] = deque()
        for run in split_into_batches(checked_bodies(bodies), size_max):
            batch: PublishBatch[None] = PublishBatch(topic, defer_ms=defer_ms)
            batch.extend(run)
            batches.append(batch)
        with self._lock:
            if self._closed:
                raise ClientClosedError("the producer is closed")
            try:
                self._publish_all(batches)
            except BaseException:
                self._drop_connection()  # it may have outstanding responses
                raise

    # Sending and retrying.

    def _publish_all(self, batches: deque[PublishBatch[None]]) -> None:
        """Every confirmation restarts `publish_timeout`."""
        deadline = time.monotonic() + self._config.publish_timeout
        failure: ClientError | str = "nsqd is too slow"
        attempts = _Attempts()
        while batches or (self._connection is not None and self._connection.unconfirmed):
            left = deadline - time.monotonic()
            if left <= 0:
                within = f"{self._config.publish_timeout:g} s"
                raise NotConfirmedError(f"not confirmed within {within}: {failure}")
            try:
                if self._step(self._usable_connection(), batches, left):
                    deadline = time.monotonic() + self._config.publish_timeout
                    attempts = _Attempts()
            except (NotConnectedError, RefusedError) as error:
                failure = error
                address = "" if self._connection is None else self._connection.address
                self._requeue_unconfirmed(batches)
                if isinstance(error, RefusedError) and error.code not in RETRY_ELSEWHERE_CODES:
                    raise
                if attempts.cannot_store(error, self._candidates):
                    raise
                pause = attempts.next_pause(address, self._candidates)
                time.sleep(min(pause, max(deadline - time.monotonic(), 0)))

    def _step(
        self, connection: Connection, batches: deque[PublishBatch[None]], seconds: float
    ) -> bool:
        """Send up to `max_batches_in_flight` batches and wait for a response. Returns whether there
        was one."""
        while batches and connection.unconfirmed < self._config.max_batches_in_flight:
            connection.publish(batches.popleft())
        response_timeout = self._config.response_timeout
        events = connection.receive(min(seconds, response_timeout))
        for event in events:
            if isinstance(event, wire.Rejected):
                if event.receipt is not None:
                    batches.appendleft(event.receipt)
                raise RefusedError(connection.address, event.error.code, event.error.detail)
        if not events and seconds > response_timeout:
            raise NotConnectedError(
                f"{connection.address}: no response within {response_timeout:g} s"
            )
        return bool(events)

    def _requeue_unconfirmed(self, batches: deque[PublishBatch[None]]) -> None:
        """Requeue the unconfirmed batches of the lost connection at the front."""
        if self._connection is not None:
            batches.extendleft(reversed(self._connection.take_unconfirmed()))
        self._drop_connection()

    # Connections.

    def _usable_connection(self) -> Connection:
        connection = self._connection
        if connection is not None and not connection.unconfirmed and connection.is_stale():
            self._drop_connection()
        if self._connection is None:
            self._connect_to_any()
        assert self._connection is not None
        return self._connection

    def _connect_to_any(self) -> None:
        """Try each nsqd once, starting after the last one used."""
        if not self._candidates:
            self._find_candidates()
        failures: list[ClientError] = []
        for address in list(self._candidates):
            self._candidates.rotate(-1)
            try:
                self._connection = Connection(address, self._handshake_for(address), self._config)
                return
            except ClientError as failure:
                failures.append(failure)
        self._candidates.clear()
        if len(failures) == 1:
            raise failures[0]
        why = "; ".join(map(str, failures)) or "no nsqlookupd knows one"
        raise NotConnectedError(f"no nsqd can be used: {why}")

    def _find_candidates(self) -> None:
        found: set[str] = set()
        if self._lookupds:
            found = look_up(self._lookupds, ALL_NODES, self._config)
        self._candidates.extend(dict.fromkeys([*self._nsqds, *sorted(found)]))

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Attempts:
    """Failed attempts since the last confirmation."""

    def __init__(self) -> None:
        self._failed_at: set[str] = set()  # since the last pause
        self._refused_by: set[str] = set()
        self._pause, self._longest_pause = RETRY_SECONDS

    def cannot_store(self, error: ClientError, nsqds: Collection[str]) -> bool:
        """Whether all of these nsqds have failed to write to their disks."""
        if not isinstance(error, RefusedError) or is_temporary(error):
            return False
        self._refused_by.add(error.address)
        return self._refused_by.issuperset(nsqds)

    def next_pause(self, address: str, nsqds: Collection[str]) -> float:
        """Seconds to wait after a failure: 0 while there are nsqds that have not failed. `address`
        is the nsqd that failed; empty if no connection succeeded."""
        is_again = not address or address in self._failed_at
        self._failed_at.add(address)
        if not is_again and not self._failed_at.issuperset(nsqds):
            return 0.0
        self._failed_at.clear()
        pause = self._pause
        self._pause = min(2 * pause, self._longest_pause)
        return pause
