"""One asyncio connection to an nsqd. Passes protocol events to its owner.

FIN, REQ and TOUCH are collected and sent in one write per turn of the loop. One timer checks three
deadlines: silence of nsqd, a missing response, and data that nsqd does not read. Each closes the
connection. `ConnectionOwner.lost` is always the last call to the owner.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from penstock.client.addresses import host_and_port
from penstock.client.config import ClientConfig
from penstock.client.message import Message
from penstock.client.publish_batch import PublishBatch
from penstock.common.errors import (
    ClientError,
    CorruptStreamError,
    NotConnectedError,
    ProtocolError,
    RefusedError,
)
from penstock.net.connect_errors import describe_error
from penstock.protocol import client as wire
from penstock.protocol import commands

__all__ = ["AwaitedBatch", "Connection", "ConnectionOwner", "connect"]

log = logging.getLogger("penstock.client")

AwaitedBatch = PublishBatch[asyncio.Future[None]]

# Deadlines are checked this many times per shortest timeout.
CHECKS_PER_TIMEOUT = 4

# Above this size of the write buffer, nsqd is too slow: publishing pauses.
WRITE_BUFFER_BYTES = 1024 * 1024


class ConnectionOwner(Protocol):
    """Callbacks of a connection; producers and consumers implement them."""

    def delivered(self, connection: "Connection", messages: list[Message]) -> None:
        """nsqd has delivered messages."""

    def confirmed(self, connection: "Connection", batches: list[AwaitedBatch]) -> None:
        """nsqd has stored these batches."""

    def refused(self, connection: "Connection", error: ProtocolError, batch: AwaitedBatch) -> None:
        """nsqd has refused a batch. The connection will be lost."""

    def writable(self, connection: "Connection") -> None:
        """`is_blocked` has become False: the connection accepts data again."""

    def lost(self, connection: "Connection", unconfirmed: list[AwaitedBatch]) -> None:
        """The connection is closed; nsqd may or may not have stored these batches."""


async def connect(
    address: str, opening: wire.Opening, config: ClientConfig, owner: ConnectionOwner
) -> "Connection":
    """Connect and negotiate. Raises NotConnectedError, or RefusedError if nsqd refuses the
    handshake."""
    connection = Connection(address, opening, config, owner)
    try:
        async with asyncio.timeout(config.dial_timeout):
            await _create_connection(address, config, lambda: connection)
    except TimeoutError:
        raise _not_connected(address, f"no connection within {config.dial_timeout:g} s") from None
    except (OSError, UnicodeError) as failure:
        raise _not_connected(address, describe_error(failure)) from None
    try:
        async with asyncio.timeout(config.response_timeout):
            await connection.opened
    except TimeoutError:
        connection.abort()
        reason = f"no response to IDENTIFY within {config.response_timeout:g} s"
        raise _not_connected(address, reason) from None
    except asyncio.CancelledError:
        connection.abort()
        raise
    return connection


async def _create_connection(
    address: str, config: ClientConfig, factory: Callable[[], "Connection"]
) -> None:
    loop = asyncio.get_running_loop()
    target = host_and_port(address)
    if target is None:
        await loop.create_unix_connection(factory, address)
        return
    local = (config.local_addr, 0) if config.local_addr else None
    await loop.create_connection(factory, *target, local_addr=local)


class Connection(asyncio.Protocol):
    """A connection to one nsqd, and the `AckChannel` of its messages. Create it with `connect`."""

    def __init__(
        self, address: str, opening: wire.Opening, config: ClientConfig, owner: ConnectionOwner
    ) -> None:
        self.address = address
        self.in_flight = 0
        """Number of delivered messages that are not answered."""
        self.is_blocked = False
        """Whether the write buffer is full because nsqd reads too slowly."""
        self._config = config
        self._owner = owner
        self._loop = loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[wire.Agreed] = loop.create_future()
        self.ended: asyncio.Future[ClientError] = loop.create_future()
        """Set when the connection is closed, to the reason."""
        self._wire: wire.ClientConnection[Message, AwaitedBatch] = wire.ClientConnection(
            opening, partial(Message, self)
        )
        self._finished: list[bytes] = []
        self._acks: list[bytes] = []
        self._flush_is_due = False
        self._is_ending = False
        self._failure: ClientError | None = None
        self._received_at = self._blocked_at = loop.time()
        self._oldest_sent_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handlers: dict[type, Callable[..., None]] = {
            wire.Opened: self._on_opened,
            wire.Delivered: self._on_delivered,
            wire.Confirmed: self._on_confirmed,
            wire.Rejected: self._on_refused,
            wire.CloseWait: self._on_close_wait,
        }

    @property
    def agreed(self) -> wire.Agreed:
        """Result of the negotiation."""
        return self._wire.agreed

    @property
    def has_room(self) -> bool:
        """Whether the connection accepts another batch now."""
        return (
            self._wire.unconfirmed < self._config.max_batches_in_flight
            and not self.is_blocked
            and not self._is_ending
        )

    def fileno(self) -> int:
        """File descriptor of the socket."""
        return cast("int", self._transport.get_extra_info("socket").fileno())

    # Sending.

    def send(self, rendered: bytes) -> None:
        """Send encoded commands that have no response."""
        self._wire.send(rendered)
        self._write()

    def publish(self, batch: AwaitedBatch) -> None:
        """Send a batch. The owner's `confirmed`, `refused` or `lost` reports the result."""
        assert not self._is_ending, "publish on a closing connection"
        batch.sent_at = self._loop.time()
        if self._oldest_sent_at is None:
            self._oldest_sent_at = batch.sent_at
        self._wire.publish(batch.render(), batch)
        self._write()

    def finish(self, message_id: bytes) -> None:
        self.in_flight -= 1
        self._finished.append(message_id)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        self.in_flight -= 1
        self._queue_ack(commands.req(message_id, delay_ms))

    def touch(self, message_id: bytes) -> None:
        self._queue_ack(commands.touch(message_id))

    def flush(self) -> None:
        """Send the collected FIN, REQ and TOUCH commands."""
        self._flush_is_due = False
        self._collect_finished()
        if self._acks:
            rendered = b"".join(self._acks)
            self._acks.clear()
            self.send(rendered)

    def close(self) -> None:
        """Close the connection after sending all queued data."""
        if not self.ended.done():
            self.flush()
            self._is_ending = True
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_ending = True
        self._transport.abort()

    def _queue_ack(self, rendered: bytes) -> None:
        self._collect_finished()  # keeps the order of the answers
        self._acks.append(rendered)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def _collect_finished(self) -> None:
        if self._finished:
            self._acks.append(commands.fins(self._finished))
            self._finished.clear()

    def _write(self) -> None:
        data = self._wire.data_to_send()
        if data and not self.ended.done():
            self._transport.write(data)

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._check_deadlines()
        self._write()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        wire_connection, handlers = self._wire, self._handlers
        try:
            wire_connection.receive_data(data)
            while (event := wire_connection.next_event()) is not None:
                handlers[type(event)](event)
        except (ProtocolError, CorruptStreamError) as failure:
            self._write()  # the TLS alert for the peer
            self._fail(self._not_understood(failure))
        else:
            self._write()

    def pause_writing(self) -> None:
        self.is_blocked = True
        self._blocked_at = self._loop.time()

    def resume_writing(self) -> None:
        self.is_blocked = False
        self._owner.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        reason = describe_error(exc) if exc is not None else "the connection was closed"
        failure = self._failure or _not_connected(self.address, reason)
        self.ended.set_result(failure)
        if not self.opened.done():
            self.opened.set_exception(failure)
        self._owner.lost(self, self._wire.take_unconfirmed())

    # Events.

    def _on_opened(self, event: wire.Opened) -> None:
        if not self.opened.done():
            self.opened.set_result(event.agreed)

    def _on_delivered(self, event: wire.Delivered[Message]) -> None:
        self.in_flight += len(event.messages)
        self._owner.delivered(self, event.messages)

    def _on_confirmed(self, event: wire.Confirmed[AwaitedBatch]) -> None:
        self._update_oldest()
        self._owner.confirmed(self, event.receipts)

    def _on_refused(self, event: wire.Rejected[AwaitedBatch]) -> None:
        if not event.error.fatal:
            # A FIN, REQ or TOUCH after the timeout: nsqd has requeued the message.
            log.info("%s: %s", self.address, event.error)
            return
        self._failure = RefusedError(self.address, event.error.code, event.error.detail)
        if event.receipt is not None:
            self._owner.refused(self, event.error, event.receipt)
        self.close()

    def _on_close_wait(self, event: wire.CloseWait) -> None:
        """nsqd has confirmed CLS; nothing to do."""

    # Deadlines and failures.

    def _update_oldest(self) -> None:
        oldest = self._wire.oldest_unconfirmed
        self._oldest_sent_at = None if oldest is None else oldest.sent_at

    def _check_deadlines(self) -> None:
        now, config = self._loop.time(), self._config
        oldest = self._oldest_sent_at
        if now - self._received_at >= config.read_timeout:
            self._fail(self._lost(f"nothing received for {config.read_timeout:g} s"))
        elif oldest is not None and now - oldest >= config.response_timeout:
            self._fail(self._lost(f"no response within {config.response_timeout:g} s"))
        elif self.is_blocked and now - self._blocked_at >= config.write_timeout:
            self._fail(self._lost(f"nsqd has not read for {config.write_timeout:g} s"))
        else:
            shortest = min(config.read_timeout, config.response_timeout, config.write_timeout)
            self._timer = self._loop.call_later(
                shortest / CHECKS_PER_TIMEOUT, self._check_deadlines
            )

    def _fail(self, failure: ClientError) -> None:
        self._failure = failure
        self.abort()

    def _lost(self, reason: str) -> ClientError:
        return _not_connected(self.address, reason)

    def _not_understood(self, failure: ProtocolError | CorruptStreamError) -> ClientError:
        detail = failure.detail if isinstance(failure, ProtocolError) else str(failure)
        return _not_connected(self.address, detail)


def _not_connected(address: str, reason: str) -> NotConnectedError:
    return NotConnectedError(f"{address}: {reason}")
