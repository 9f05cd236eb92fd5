"""A TCP connection: passes bytes to the protocol, its events to the session, and writes replies.

`ServerConnection` parses commands, and `Session` handles them; `Client` owns the transport: reading
and writing, flow control, TLS and compression, heartbeats, and the end of the connection.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, cast

from penstock.broker.publishing import Replies
from penstock.broker.subscriber import Subscriber
from penstock.common.addresses import host_of
from penstock.common.errors import (
    CorruptStreamError,
    LineTooLongError,
    ProtocolError,
    StorageError,
    TlsError,
)
from penstock.net.connection_limits import ConnectionLimits
from penstock.net.listener import enable_keepalive, peer_address
from penstock.net.tls import ReloadableContext, TlsInfo
from penstock.nsqd.auth import Authorizations
from penstock.nsqd.heartbeat import Heartbeat, Timeouts
from penstock.nsqd.process_metrics import ErrorCounters
from penstock.nsqd.session import Session, SessionServices, failed
from penstock.nsqd.upgraded_transport import UpgradedTransport
from penstock.protocol import frames
from penstock.protocol.command_cache import CommandCache
from penstock.protocol.compression import Deflate, Snappy
from penstock.protocol.events import Event, Limits, State
from penstock.protocol.identify import Negotiated
from penstock.protocol.server import ServerConnection

__all__ = ["Client", "ClientServices", "Clients"]

# After a fatal error nsqd reads on for this long. If it closed the connection while the client is
# sending, the kernel would reset it, and the client might never read the error.
LINGER_SECONDS = 1.0

# Some clients (for example asyncnsq) treat bytes that they read together with the response to
# IDENTIFY, or with the OK of TLS, as uncompressed. So compression starts after this delay.
BEFORE_COMPRESSION_SECONDS = 0.005

# Maximum bytes read from a producer while its publishes wait for an fsync. Beyond that nsqd stops
# reading from it until they are answered, so that memory stays bounded with a slow disk.
UNANSWERED_BYTES_MAX = 256 * 1024

# Maximum bytes in the write buffer of a slow consumer before delivery to it stops.
WRITE_BUFFER_BYTES = 256 * 1024

# Maximum time spent on the commands of one client before others have their turn. One read can
# contain tens of thousands of commands, and compressed data many more.
TURN_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class ClientServices:
    """Objects shared by all connections."""

    session: SessionServices
    limits: Limits
    timeouts: Timeouts
    clients: "Clients"
    tls: ReloadableContext | None
    tls_required: bool
    connection_limits: ConnectionLimits
    error_counters: ErrorCounters
    report_bug: Callable[[str, Exception], None]
    command_cache: CommandCache = field(default_factory=CommandCache)


class Clients:
    """All open connections."""

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __iter__(self) -> Iterator["Client"]:
        return iter(tuple(self._clients))

    def add(self, client: "Client") -> None:
        """Adds a new connection."""
        self._clients.add(client)
        self._none_left.clear()

    def discard(self, client: "Client") -> None:
        """Removes a closed connection."""
        self._clients.discard(client)
        if not self._clients:
            self._none_left.set()

    async def close(self, timeout_seconds: float) -> None:
        """Closes all connections; aborts those that have not read everything in time."""
        for client in self:
            client.close()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._none_left.wait()
        except TimeoutError:
            for client in self:
                client.abort()


class Client(asyncio.Protocol):
    """One connection. Implements `SessionConnection`, `SubscriberConnection` and
    `HeartbeatTarget`."""

    def __init__(self, services: ClientServices) -> None:
        self._services = services
        self._clients = services.clients
        self._log = services.session.log
        self._loop = asyncio.get_running_loop()
        self._wire = ServerConnection(
            services.limits, services.command_cache, tls_required=services.tls_required
        )
        self._upgraded: UpgradedTransport | None = None
        self._reading_paused_by: set[str] = set()
        self._turn_ends_at = 0.0
        self._unanswered_bytes = 0
        self._answer_task: asyncio.Task[None] | None = None
        self.replies = Replies(self._write, self._publish_failed)
        self._takes_commands = True  # False while a coroutine answers a command.
        self._dead = False  # No further command is handled.
        self._ended = False  # Nothing more is written.
        self._peer_ended = False
        self._identified = False
        self._admitted = False
        self.remote_address = ""
        self.connected_at_ns = services.session.clock.wall_ns()
        self.session = Session(services.session, self)
        self._handlers = self.session.handlers
        self._heartbeat = Heartbeat(self._loop, self, services.timeouts, self._heartbeat_seconds)

    # Shown by /stats.

    @property
    def state(self) -> State:
        """Protocol state of the connection."""
        return self._wire.state

    @property
    def negotiated(self) -> Negotiated:
        """Settings negotiated by IDENTIFY."""
        return self.session.negotiated

    @property
    def subscriber(self) -> Subscriber | None:
        """The subscriber, after SUB."""
        return self.session.subscriber

    @property
    def publish_counts(self) -> dict[str, int]:
        """Number of messages published, by topic."""
        return self.session.publish_counts

    @property
    def authorizations(self) -> Authorizations | None:
        """Authorisations after AUTH."""
        return self.session.authorizations

    @property
    def tls(self) -> TlsInfo | None:
        """TLS of the connection; None without TLS."""
        return None if self._upgraded is None else self._upgraded.tls

    @property
    def remote_ip(self) -> str:
        """IP address of the client; empty on a unix socket."""
        return host_of(self.remote_address)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._set_transport_write(self._transport.write)
        self.remote_address = peer_address(transport)
        self.session.set_default_name(self.remote_ip)
        self._clients.add(self)
        refusal = self._services.connection_limits.rejection(self.remote_ip)
        if refusal is not None:
            self._refuse(ProtocolError("E_TOO_MANY_CONNECTIONS", refusal))
            return
        self._services.connection_limits.add(self.remote_ip)
        self._admitted = True
        enable_keepalive(transport)
        self._log.info("TCP: new client(%s)", self.remote_address)
        self._heartbeat.start()

    def data_received(self, data: bytes) -> None:
        if self.replies.pending or self._unanswered_bytes:
            self._count_unanswered(len(data))
        wire = self._wire
        event = wire.fast_parser.parse_single(data) or wire.parse_single(data)
        if event is not None:
            self._handle(event)
        elif not self._dead:
            if self._upgraded is None:
                wire.receive_data(data)
            else:
                self._upgraded.receive(data)
            self._handle_received()

    def eof_received(self) -> bool:
        self._peer_ended = True
        if not self._dead:
            try:
                self._wire.receive_eof()
            except ProtocolError as error:
                self._refuse(error)
            else:
                self._close()
        return bool(self.replies.pending)  # Keep the transport open until they are sent.

    def pause_writing(self) -> None:
        self._heartbeat.blocked_since = self._loop.time()
        self._direct_replies()
        self.session.set_writable(False)
        self._heartbeat.schedule()

    def resume_writing(self) -> None:
        self._heartbeat.blocked_since = None
        self._direct_replies()
        self._resume_reading("answers to be read")
        self.session.set_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._dead = True
        self._stop_writing()
        if self._admitted:
            self._services.connection_limits.remove(self.remote_ip)
        self._clients.discard(self)
        self._heartbeat.stop()
        # Free the memory now: a partial message may be large, and garbage collections are rare.
        self._wire.forget_unread()
        self.session.leave_channel()
        if self._answer_task is not None:
            self._answer_task.cancel()
        self._log.info("PROTOCOL(V2): [%s] exiting ioloop", self.remote_address)

    # Called by the broker.

    def deliver(self, batch: list[bytes]) -> None:
        """Sends message frames, unless the client has left meanwhile."""
        if not self._dead:
            try:
                send_bytes = self._send_bytes  # Local alias: a faster call.
                send_bytes(b"".join(batch))
            except Exception as bug:  # noqa: BLE001 (reported; closes only this connection)
                self._fail("sending messages", bug)

    def channel_gone(self) -> None:
        """Closes without an error, as NSQ does when a channel is deleted."""
        self._close()

    # Called by the daemon.

    def close(self) -> None:
        """Sends pending replies, and closes."""
        self._close()

    def abort(self) -> None:
        """Closes at once."""
        self._stop_writing()
        self._transport.abort()

    def kick(self) -> None:
        """Closes at once, and requeues the messages in flight."""
        self._abort_with("sent away by an operator")

    # Called by the session.

    def identified(self, negotiated: Negotiated) -> None:
        self._wire.heartbeats_enabled = negotiated.heartbeat_interval_ms is not None
        if not self._identified:  # nsq compat: only the first IDENTIFY sets the heartbeat interval.
            self._identified = True
            self._heartbeat.start()

    async def upgrade(self, negotiated: Negotiated, response: bytes) -> bytes:
        if self._upgraded is not None:
            raise ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed already upgraded")
        await self._wait_for_replies()
        self._write(response)
        upgraded = UpgradedTransport(self._transport)
        if negotiated.tls:
            await self._start_tls(upgraded)
        if negotiated.snappy or negotiated.deflate:
            if negotiated.tls:
                self._write(frames.OK)
            await asyncio.sleep(BEFORE_COMPRESSION_SECONDS)
            codec = Snappy() if negotiated.snappy else Deflate(negotiated.deflate_level)
            upgraded.compress(codec, self._wire.take_unread())
        self._upgraded = upgraded
        self._set_transport_write(upgraded.write)
        return frames.OK

    # Called by the heartbeat.

    @property
    def is_greeted(self) -> bool:
        return self._wire.has_magic

    @property
    def is_inside_command(self) -> bool:
        return self._takes_commands and self._wire.is_inside_command

    def send_heartbeat(self) -> None:
        if self._upgraded is None or not self._upgraded.is_handshaking:
            self._write(frames.HEARTBEAT)

    def time_out(self, reason: str) -> None:
        self._services.error_counters.count("timeout")
        try:
            if self._heartbeat.blocked_since is None:
                self._wire.receive_eof()
        except ProtocolError as error:
            # nsq compat: a client that has stopped inside a body gets an error; others are closed.
            self._refuse(error)
        else:
            self._abort_with(reason)

    def _fail(self, doing: str, bug: Exception) -> None:
        """Reports an unexpected exception and closes the connection at once."""
        self._services.report_bug(f"{doing} for {self.remote_address}", bug)
        self._abort_with("internal error")

    def _abort_with(self, reason: str) -> None:
        """Closes at once."""
        self._log.error("[%s] - %s", self.remote_address, reason)
        self._dead = True
        self._stop_writing()
        self._stop_commands()
        self.session.leave_channel()  # Now: the transport may have failed.
        self._transport.abort()

    def _heartbeat_seconds(self) -> float | None:
        interval_ms = self.session.negotiated.heartbeat_interval_ms
        return None if interval_ms is None else interval_ms / 1000

    # Commands.

    def _handle_received(self) -> None:
        """Handles all commands received, until one has to wait or the turn is over."""
        self._turn_ends_at = monotonic() + TURN_SECONDS
        self.replies.cork()
        try:
            self._handle_commands()
            if self._upgraded is not None:
                self._handle_decoded(self._upgraded)
        finally:
            self.replies.uncork()

    def _handle_commands(self) -> None:
        next_event = self._wire.next_event
        try:
            while self._takes_commands and (event := next_event()) is not None:
                self._handle(event)
                if monotonic() > self._turn_ends_at:
                    self._yield_turn()
                    break
        except ProtocolError as error:
            self._refuse(error)
        except LineTooLongError:
            self._services.error_counters.count("line_too_long")
            self._close()

    def _handle(self, event: Event) -> None:
        self._heartbeat.last_command_at = self._loop.time()
        try:
            reply = self._handlers[type(event)](event)
        except ProtocolError as error:
            self._refuse(error)
            return
        except Exception as bug:  # noqa: BLE001 (reported; closes only this connection)
            self._fail(f"handling {type(event).__name__}", bug)
            return
        if reply is None:
            return
        if isinstance(reply, bytes):
            send = self.replies.send  # Local alias: a faster call.
            send(reply)
        else:
            self._answer_later(reply)

    def _answer_later(self, answer: Coroutine[Any, Any, bytes]) -> None:
        """Handles no further command before this one is answered."""
        self._stop_commands()
        self._heartbeat.is_answering = True
        self._pause_reading("an answer")
        self._answer_task = self._loop.create_task(self._answer(answer))

    def _stop_commands(self) -> None:
        self._takes_commands = False
        self._wire.disable_fast_parser()

    async def _answer(self, answer: Coroutine[Any, Any, bytes]) -> None:
        try:
            reply = await answer
        except ProtocolError as error:
            self._refuse(error)
        except Exception as bug:  # noqa: BLE001 (reported; closes only this connection)
            self._fail("answering", bug)
        else:
            if reply:
                self.replies.send(reply)
            self._takes_commands = not self._dead
        self._heartbeat.last_command_at = self._loop.time()
        self._heartbeat.is_answering = False
        self._resume_reading("an answer")

    # TLS and compression.

    async def _wait_for_replies(self) -> None:
        """Waits until all pending replies are written."""
        written = asyncio.Event()
        self.replies.call_when_sent(written.set)
        await written.wait()

    async def _start_tls(self, upgraded: UpgradedTransport) -> None:
        context = self._services.tls
        assert context is not None, "TLS is offered only with a certificate"
        self._upgraded = upgraded
        self._resume_reading("an answer")  # The handshake needs data from the client.
        try:
            await upgraded.start_tls(context, self._wire.take_unread())
        except TlsError as failure:
            self._upgraded = None
            raise ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {failure}") from failure
        self._pause_reading("an answer")
        self._wire.tls_required = False
        self._set_transport_write(upgraded.write)

    def _handle_decoded(self, upgraded: UpgradedTransport) -> None:
        try:
            while self._takes_commands and not self._reading_paused_by:
                data = upgraded.read()
                if not data:
                    self._end_if_peer_ended(upgraded)
                    return
                self._count_unanswered(len(data))
                self._wire.receive_data(data)
                self._handle_commands()
                if monotonic() > self._turn_ends_at:
                    self._yield_turn()
        except CorruptStreamError as failure:
            self._services.error_counters.count("corrupt_stream")
            self._abort_with(str(failure))

    def _end_if_peer_ended(self, upgraded: UpgradedTransport) -> None:
        """Ends the connection if the client has closed TLS, but not the transport."""
        if upgraded.has_ended and not self._peer_ended and not self.eof_received():
            self._transport.close()

    # Reading.

    def _count_unanswered(self, byte_count: int) -> None:
        """Stops reading after UNANSWERED_BYTES_MAX while publishes wait for an fsync."""
        if not self.replies.pending:
            self._unanswered_bytes = 0
            return
        self._unanswered_bytes += byte_count
        if self._unanswered_bytes > UNANSWERED_BYTES_MAX:
            self._unanswered_bytes = 0
            reason = "publishes to be answered"
            self._pause_reading(reason)
            self.replies.call_when_sent(partial(self._loop.call_soon, self._resume_reading, reason))

    def _yield_turn(self) -> None:
        """Continues after other connections have had their turn."""
        if "others' turn" not in self._reading_paused_by:
            self._pause_reading("others' turn")
            self._loop.call_soon(self._resume_reading, "others' turn")

    def _pause_reading(self, reason: str) -> None:
        if not self._reading_paused_by and not self._transport.is_closing():
            self._transport.pause_reading()
        self._reading_paused_by.add(reason)

    def _resume_reading(self, reason: str) -> None:
        if reason not in self._reading_paused_by:
            return
        self._reading_paused_by.remove(reason)
        if not self._reading_paused_by and not self._transport.is_closing():
            self._transport.resume_reading()
            self._handle_received()

    # Writing.

    def _set_transport_write(self, send_bytes: Callable[[bytes], None]) -> None:
        self._send_bytes = send_bytes
        self._direct_replies()

    def _direct_replies(self) -> None:
        """Makes replies call the transport directly, which saves a call per reply. `_write` is
        needed only while the client does not read, and after the end."""
        straight = not self._ended and self._heartbeat.blocked_since is None
        self.replies.set_writer(self._send_bytes if straight else self._write)

    def _stop_writing(self) -> None:
        self._ended = True
        self._direct_replies()

    def _write(self, data: bytes) -> None:
        if self._ended:
            return
        self._send_bytes(data)
        if self._heartbeat.blocked_since is not None:
            # The client sends commands, but does not read the replies.
            self._pause_reading("answers to be read")

    def _publish_failed(self, word: str, failure: StorageError) -> None:
        self._refuse(failed(word, failure))

    def _refuse(self, error: ProtocolError) -> None:
        """Sends pending replies and then the error, and closes the connection."""
        self._services.error_counters.count(error.code.lower())
        if isinstance(error.__cause__, StorageError):
            # Without the client: all clients may retry at the same time.
            cause = error.__cause__.reason
            self._log.repeating_error(cause, "[%s] - %s", self.remote_address, error)
        else:
            self._log.error("[%s] - %s", self.remote_address, error)
        self.replies.send(frames.error(error))
        self._close()

    def _close(self) -> None:
        """Handles no further command, and closes after all pending replies are sent."""
        self._dead = True
        self._stop_commands()
        self.session.leave_channel()
        self.replies.call_when_sent(self._end)

    def _end(self) -> None:
        if self._ended or self._transport.is_closing():
            return
        self._stop_writing()
        self._heartbeat.stop()
        if self._upgraded is not None:
            self._upgraded.close_tls()
        if self._peer_ended or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.write_eof()
            self._loop.call_later(LINGER_SECONDS, self._transport.abort)
