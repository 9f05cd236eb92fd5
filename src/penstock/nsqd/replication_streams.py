"""Sockets of replication: the leader's end and the follower's end of a stream.

The leader accepts followers on its TCP port. The first four bytes of a connection tell a follower
from an NSQ client. A follower that uses TLS begins with it; NSQ clients do so only after IDENTIFY.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from penstock.common.errors import CorruptStreamError, ReplicationError, StorageError
from penstock.common.logs import Logger
from penstock.net.listener import enable_keepalive, peer_address
from penstock.replication.follower import Follower
from penstock.replication.leader import FollowerLink, Leader
from penstock.replication.stream import (
    MAGIC,
    MESSAGE_BYTES_MAX,
    FollowerMessage,
    Hello,
    LeaderMessage,
    decode_follower,
    decode_leader,
    encode_message,
)

__all__ = ["FirstBytes", "FollowerStream", "LeaderStream"]

# A connection that has not sent four bytes by then is closed.
_FIRST_BYTES_SECONDS = 60.0

# A connection whose follower was not accepted by then is closed.
_HELLO_SECONDS = 60.0

# Maximum size of the message with which a follower introduces itself: until it was accepted, the
# sender may be anyone.
_HELLO_BYTES_MAX = 64 * 1024

# A connection that is being closed is aborted after this time, if the other end does not read.
_CLOSE_SECONDS = 5.0

# The first bytes of every TLS connection.
_TLS_HANDSHAKE = b"\x16\x03"

# Maximum unsent bytes to a follower; more is read from the files later.
_WRITE_BUFFER_BYTES = 1024 * 1024


class FirstBytes(asyncio.Protocol):
    """A new connection: passes it to an NSQ client's protocol, or to a follower's stream."""

    def __init__(
        self,
        new_client: Callable[[], asyncio.Protocol],
        new_stream: Callable[[], asyncio.Protocol],
        new_tls_stream: Callable[[], asyncio.BaseProtocol] | None = None,
        *,
        tls_required: bool = False,
    ) -> None:
        """`new_tls_stream` makes the protocol of a connection that begins with TLS; None without a
        certificate. With `tls_required`, followers without TLS are refused."""
        self._new_client = new_client
        self._new_stream = new_stream
        self._new_tls_stream = new_tls_stream
        self._tls_required = tls_required
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_FIRST_BYTES_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < len(MAGIC):
            return
        assert self._transport is not None
        self._stop_timer()
        rest = self._received
        if rest.startswith(MAGIC):
            if self._tls_required:
                self._transport.close()
                return
            protocol, rest = self._new_stream(), rest[len(MAGIC) :]
        elif rest.startswith(_TLS_HANDSHAKE) and self._new_tls_stream is not None:
            protocol = cast("asyncio.Protocol", self._new_tls_stream())
        else:
            protocol = self._new_client()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if rest:
            protocol.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class FollowerStream(asyncio.Protocol):
    """The leader's end of a stream, for one follower. Implements `FollowerConnection`."""

    def __init__(self, leader: Leader, log: Logger) -> None:
        self.can_send = True
        self._log = log
        self._link = FollowerLink(leader, self)
        self._decoder = decode_follower()
        self._decoder.message_bytes_max = _HELLO_BYTES_MAX
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._start_timer(_HELLO_SECONDS)
        self._address = peer_address(transport)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        enable_keepalive(transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._link.on_message(message)
                if isinstance(message, Hello):
                    self._decoder.message_bytes_max = MESSAGE_BYTES_MAX
                    self._stop_timer()
        except (CorruptStreamError, ReplicationError, StorageError) as error:
            self._fail(error)

    def pause_writing(self) -> None:
        self.can_send = False

    def resume_writing(self) -> None:
        self.can_send = True
        try:
            self._link.send_more()
        except StorageError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._link.on_closed()

    def send(self, message: LeaderMessage) -> None:
        assert self._transport is not None
        self._transport.write(encode_message(message))

    def close(self) -> None:
        """Close the connection after what was written has been sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._start_timer(_CLOSE_SECONDS)
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        self._log.warning("REPLICATION: [%s] %s", self._address, error)
        self._link.close()

    def _start_timer(self, seconds: float) -> None:
        """Abort the connection after this time."""
        assert self._transport is not None
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class LeaderStream(asyncio.Protocol):
    """The follower's end of a stream. Implements `LeaderConnection`. When the connection has ended,
    the result of the future `closed` is the reason."""

    def __init__(self, new_follower: Callable[["LeaderStream"], Follower]) -> None:
        self.closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.last_received_at = 0.0
        self._new_follower = new_follower
        self.follower: Follower | None = None
        self._decoder = decode_leader()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.last_received_at = self._loop.time()
        enable_keepalive(transport)
        self._transport.write(MAGIC)
        self.follower = self._new_follower(self)

    def data_received(self, data: bytes) -> None:
        self.last_received_at = self._loop.time()
        assert self.follower is not None
        try:
            for message in self._decoder.feed(data):
                self.follower.on_message(message)
            self.follower.on_read_end()
        except (CorruptStreamError, ReplicationError, StorageError) as error:
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.follower is not None:
            # An fsync may still be running: its end must not be acknowledged on this connection.
            self.follower.stop()
        self._end(exc)

    def send(self, message: FollowerMessage) -> None:
        assert self._transport is not None
        self._transport.write(encode_message(message))

    def fail(self, error: Exception | None) -> None:
        """End the connection because of an error, or because the follower stops."""
        if self.follower is not None:
            self.follower.stop()
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(error)
