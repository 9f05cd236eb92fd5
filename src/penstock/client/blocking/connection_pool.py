"""Connections of a blocking consumer. `receive` does all the work: it connects and reconnects,
polls nsqlookupds, allocates RDY, and drops silent connections."""

import logging
import selectors
import time
from collections.abc import Sequence
from typing import cast

from penstock.client.blocking.connection import Connection
from penstock.client.blocking.lookup import look_up
from penstock.client.config import ClientConfig
from penstock.client.discovery import PollPauses
from penstock.client.flow_control import RdyAllocation, allocate_rdy
from penstock.client.handshake import HandshakeFor
from penstock.client.message import Message
from penstock.client.publish_batch import PublishBatch
from penstock.common.errors import ClientError, NotConnectedError, RefusedError
from penstock.protocol import client as wire
from penstock.protocol import commands

__all__ = ["ConnectionPool"]

log = logging.getLogger("penstock.client")

# Delay between two attempts to connect to an nsqd; each may take `dial_timeout`.
RECONNECT_SECONDS = 1.0


class ConnectionPool:
    """Subscribed connections to `nsqds`, and to the nsqds that `lookupds` return for `path`."""

    def __init__(
        self,
        config: ClientConfig,
        handshake_for: HandshakeFor,
        nsqds: Sequence[str],
        lookupds: Sequence[str],
        path: str,
    ) -> None:
        self._config = config
        self._handshake_for = handshake_for
        self._nsqds = nsqds
        self._lookupds = lookupds
        self._path = path
        self._found: set[str] = set()
        self._allocations: dict[Connection, RdyAllocation] = {}
        self._heard_at: dict[Connection, float] = {}
        self._retry_at: dict[str, float] = {}
        self._failures: dict[str, ClientError] = {}
        self._look_up_at = 0.0
        self._pauses = PollPauses(config.lookupd_poll_interval)
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Connect. Raises NotConnectedError or RefusedError if no nsqd, or no nsqlookupd, can be
        used."""
        if self._lookupds:
            self._look_up()
        self._connect_to_missing()
        if not self._allocations:
            if self._nsqds:
                raise self._failure()
            self._look_up_soon()

    def receive(self, seconds: float) -> list[Message]:
        """The next messages; empty if none arrived within `seconds`."""
        began = now = time.monotonic()
        while True:
            self._connect_to_missing()
            left = began + seconds - now
            ready = self._selector.select(min(max(left, 0.0), RECONNECT_SECONDS))
            messages: list[Message] = []
            for key, _ in ready:
                messages += self._read(cast("Connection", key.fileobj))
            now = time.monotonic()
            if messages or left <= 0:
                return messages
            self._drop_silent(began, now)
            self._allocate_rdy(now)

    def flush(self) -> None:
        """Send the answers given so far."""
        for connection in list(self._allocations):
            try:
                connection.flush()
            except ClientError as failure:
                self._drop(connection, failure)

    def close(self) -> None:
        for connection in self._allocations:
            connection.close()
        self._allocations.clear()
        self._selector.close()

    # Connections.

    def _connect_to_missing(self) -> None:
        now = time.monotonic()
        if self._lookupds and now >= self._look_up_at:
            try:
                self._look_up()
            except NotConnectedError as failure:
                log.warning("%s", failure)
        connected = {connection.address for connection in self._allocations}
        for address in dict.fromkeys([*self._nsqds, *sorted(self._found)]):
            if address not in connected and now >= self._retry_at.get(address, 0.0):
                self._connect(address)

    def _connect(self, address: str) -> None:
        try:
            connection = Connection(address, self._handshake_for(address), self._config)
        except ClientError as failure:
            self._record_failure(address, failure)
            return
        self._failures.pop(address, None)
        now = time.monotonic()
        self._allocations[connection] = RdyAllocation(now, connection.agreed.max_rdy_count)
        self._heard_at[connection] = now
        self._selector.register(connection, selectors.EVENT_READ)
        self._allocate_rdy(now)

    def _drop(self, connection: Connection, failure: ClientError) -> None:
        # A closed socket has no file descriptor, so it is found by its connection.
        key = next(key for key in self._selector.get_map().values() if key.fileobj is connection)
        self._selector.unregister(key.fd)
        connection.close()
        del self._allocations[connection], self._heard_at[connection]
        self._record_failure(connection.address, failure)
        self._look_up_soon()
        self._allocate_rdy(time.monotonic())

    def _record_failure(self, address: str, failure: ClientError) -> None:
        if str(failure) != str(self._failures.get(address)):
            log.warning("%s", failure)
        self._failures[address] = failure
        self._retry_at[address] = time.monotonic() + RECONNECT_SECONDS

    def _failure(self) -> ClientError:
        if len(self._failures) == 1:
            return next(iter(self._failures.values()))
        return NotConnectedError(
            "no nsqd can be used: " + "; ".join(map(str, self._failures.values()))
        )

    def _look_up(self) -> None:
        self._look_up_at = time.monotonic() + self._pauses.next_seconds()
        self._found = look_up(self._lookupds, self._path, self._config)

    def _look_up_soon(self) -> None:
        """Look up now, and more often for a while."""
        self._pauses.shorten()
        self._look_up_at = 0.0

    def _drop_silent(self, began: float, now: float) -> None:
        """Drop connections that were silent for `read_timeout` within this `receive`."""
        for connection, heard_at in list(self._heard_at.items()):
            if now - max(heard_at, began) >= self._config.read_timeout:
                reason = f"nothing received for {self._config.read_timeout:g} s"
                self._drop(connection, NotConnectedError(f"{connection.address}: {reason}"))

    # Messages.

    def _read(self, connection: Connection) -> list[Message]:
        messages: list[Message] = []
        try:
            for event in connection.receive(0.0):
                if isinstance(event, wire.Delivered):
                    messages += event.messages
                elif isinstance(event, wire.Rejected):
                    self._on_refused(connection, event)
        except ClientError as failure:
            self._drop(connection, failure)
            return []  # nsqd will deliver them again
        now = time.monotonic()
        self._heard_at[connection] = now
        if messages:
            self._allocations[connection].delivered_at = now
        return messages

    def _on_refused(self, connection: Connection, event: wire.Rejected[PublishBatch[None]]) -> None:
        if event.error.fatal:
            raise RefusedError(connection.address, event.error.code, event.error.detail)
        log.info("%s: %s", connection.address, event.error)

    def _allocate_rdy(self, now: float) -> None:
        connections, allocations = list(self._allocations), list(self._allocations.values())
        counts = allocate_rdy(allocations, self._config, self._config.max_in_flight, now)
        for connection, allocation, rdy in zip(connections, allocations, counts, strict=True):
            if rdy != allocation.rdy:
                allocation.rdy, allocation.changed_at = rdy, now
                try:
                    connection.send(commands.rdy(rdy))
                except ClientError as failure:
                    self._drop(connection, failure)
                    return
