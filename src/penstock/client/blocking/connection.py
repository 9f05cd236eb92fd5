"""One blocking connection to an nsqd. Every wait has a timeout."""

import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

from penstock.client.addresses import host_and_port
from penstock.client.config import ClientConfig
from penstock.client.message import Message
from penstock.client.publish_batch import PublishBatch
from penstock.common.errors import (
    CorruptStreamError,
    NotConnectedError,
    ProtocolError,
    RefusedError,
)
from penstock.net.connect_errors import describe_error
from penstock.protocol import client as wire
from penstock.protocol import commands

__all__ = [
    "Connection",
]

_Event: TypeAlias = wire.Event[Message, PublishBatch[None]]

RECEIVE_BYTES = 256 * 1024


class Connection:
    """The constructor connects and negotiates. Implements `AckChannel` for its messages.

    The constructor and all methods that use the socket raise NotConnectedError or RefusedError;
    after that the connection is closed.
    """

    def __init__(self, address: str, opening: wire.Opening, config: ClientConfig) -> None:
        self.address = address
        self._config = config
        self._wire: wire.ClientConnection[Message, PublishBatch[None]] = wire.ClientConnection(
            opening, partial(Message, self)
        )
        self._finished: list[bytes] = []
        self._acks: list[bytes] = []
        self._socket = self._dial()
        self._negotiate()

    @property
    def agreed(self) -> wire.Agreed:
        """Result of the negotiation."""
        return self._wire.agreed

    @property
    def unconfirmed(self) -> int:
        """Number of unconfirmed batches."""
        return self._wire.unconfirmed

    def take_unconfirmed(self) -> list[PublishBatch[None]]:
        """Remove and return the unconfirmed batches of a lost connection."""
        return self._wire.take_unconfirmed()

    def fileno(self) -> int:
        """File descriptor of the socket, for a selector."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    # Sending.

    def send(self, rendered: bytes) -> None:
        """Send encoded commands that have no response."""
        self._wire.send(rendered)
        self._write()

    def publish(self, batch: PublishBatch[None]) -> None:
        """Send a batch. A `Confirmed` event will report it."""
        self._wire.publish(batch.render(), batch)
        self._write()

    def finish(self, message_id: bytes) -> None:
        self._finished.append(message_id)

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        self._collect_finished()
        self._acks.append(commands.req(message_id, delay_ms))

    def touch(self, message_id: bytes) -> None:
        """Sent at once, because the caller may not return to `receive` for long."""
        self._collect_finished()
        self._acks.append(commands.touch(message_id))
        self.flush()

    def flush(self) -> None:
        """Send the collected FIN, REQ and TOUCH commands."""
        self._collect_finished()
        if self._acks:
            rendered = b"".join(self._acks)
            self._acks.clear()
            self.send(rendered)

    def _collect_finished(self) -> None:
        if self._finished:
            self._acks.append(commands.fins(self._finished))
            self._finished.clear()

    def _write(self) -> None:
        data = self._wire.data_to_send()
        if not data:
            return
        try:
            self._socket.settimeout(self._config.write_timeout)
            self._socket.sendall(data)
        except OSError as failure:
            raise self._lost(failure) from None

    # Receiving.

    def receive(self, seconds: float) -> list[_Event]:
        """Wait up to `seconds` for data. Returns its events; empty after the timeout."""
        try:
            self._socket.settimeout(max(seconds, 0.0))
            data = self._socket.recv(RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError):
            return []
        except OSError as failure:
            raise self._lost(failure) from None
        if not data:
            raise self._lost("the connection was closed")
        try:
            events = list(self._parsed(data))
        except (ProtocolError, CorruptStreamError) as failure:
            detail = failure.detail if isinstance(failure, ProtocolError) else str(failure)
            raise self._lost(detail) from None
        self._write()  # answers to heartbeats
        return events

    def is_stale(self) -> bool:
        """Whether nsqd has closed the connection."""
        try:
            self._socket.settimeout(0.0)
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _parsed(self, data: bytes) -> Iterator[_Event]:
        self._wire.receive_data(data)
        while (event := self._wire.next_event()) is not None:
            yield event

    # Connecting.

    def _dial(self) -> socket.socket:
        target, config = host_and_port(self.address), self._config
        try:
            if target is None:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.settimeout(config.dial_timeout)
                sock.connect(self.address)
                return sock
            source = (config.local_addr, 0) if config.local_addr else None
            sock = socket.create_connection(target, config.dial_timeout, source)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as failure:
            raise NotConnectedError(f"{self.address}: {describe_error(failure)}") from None
        return sock

    def _negotiate(self) -> None:
        deadline = time.monotonic() + self._config.response_timeout
        self._write()
        while (left := deadline - time.monotonic()) > 0:
            for event in self.receive(left):
                if isinstance(event, wire.Opened):
                    return
                if isinstance(event, wire.Rejected):
                    self.close()
                    raise RefusedError(self.address, event.error.code, event.error.detail)
        raise self._lost(f"no response to IDENTIFY within {self._config.response_timeout:g} s")

    def _lost(self, why: str | Exception) -> NotConnectedError:
        self.close()
        return NotConnectedError(
            f"{self.address}: {why if isinstance(why, str) else describe_error(why)}"
        )
