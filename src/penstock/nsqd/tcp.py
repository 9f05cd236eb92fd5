"""A TCP client: bytes from the socket to the wire, events from there to the broker, replies back.

Few decisions are made here. What a command means is the wire's to say, what becomes of it the
broker's; this is the part with a transport, a heartbeat and a deadline. All that one read brings is
handled before anything else happens, and its replies leave in one write.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.clock import MILLISECOND_NS, Clock
from penstock.errors import LineTooLong, ProtocolError, StorageError
from penstock.logs import Logger
from penstock.nsqd.durability import Durability
from penstock.nsqd.replies import Replies
from penstock.wire import events, frames
from penstock.wire.identify import Negotiated, ServerOffer, negotiate, parse_identify
from penstock.wire.limits import Limits
from penstock.wire.server import ServerConnection
from penstock.wire.state import State

__all__ = ["Client", "Clients", "TcpServices"]

# A client that has been told its fatal error may still be sending: reading on for this long keeps
# the kernel from resetting the connection, and so from taking the error out of the client's hands.
LINGER_SECONDS = 1.0

# What a consumer that reads slowly may have waiting in memory before delivery stops.
WRITE_BUFFER_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class TcpServices:
    """What every connection works with."""

    broker: Broker
    clock: Clock
    log: Logger
    limits: Limits
    offer: ServerOffer
    durability: Durability
    clients: "Clients"


class Clients:
    """The connections there are."""

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __iter__(self) -> Iterator["Client"]:
        return iter(tuple(self._clients))

    def add(self, client: "Client") -> None:
        """A client has connected."""
        self._clients.add(client)
        self._none_left.clear()

    def discard(self, client: "Client") -> None:
        """A client has gone."""
        self._clients.discard(client)
        if not self._clients:
            self._none_left.set()

    async def close(self, timeout_seconds: float) -> None:
        """Closes all; those that take too long to read what was sent to them, at once."""
        for client in self:
            client.close()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._none_left.wait()
        except TimeoutError:
            for client in self:
                client.abort()


class Client(asyncio.Protocol):
    """One connection. It is a subscriber's peer once it has sent SUB."""

    def __init__(self, services: TcpServices) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._wire = ServerConnection(services.limits)
        self._replies = Replies(self._write, self._publish_failed)
        self._unsafe: dict[Topic, None] = {}  # topics whose fsync the current replies wait for
        self._dead = False  # takes no more commands
        self._ended = False  # has nothing more to say
        self._peer_ended = False
        self._blocked_since: float | None = None
        # What /stats shows.
        self.remote_address = ""
        self.connected_at_ns = services.clock.wall_ns()
        self.negotiated: Negotiated = services.offer.unasked()
        self.subscriber: Subscriber | None = None
        self.channel: Channel | None = None
        self.topic_name = ""
        self.publish_counts: dict[str, int] = {}
        # Heartbeats and deadlines, on the loop's clock.
        self._timer: asyncio.TimerHandle | None = None
        self._identified = False
        self._last_command_at = self._loop.time()
        self._next_heartbeat_at = 0.0
        self._beat_seconds = 0.0  # nsq compat: as the first IDENTIFY says, though others follow
        self._handlers: dict[type, Callable[..., bytes | None]] = {
            events.Publish: self._on_publish,
            events.Fin: self._on_fin,
            events.Nop: self._on_nop,
            events.Rdy: self._on_rdy,
            events.Req: self._on_req,
            events.Touch: self._on_touch,
            events.Sub: self._on_sub,
            events.Cls: self._on_cls,
            events.Identify: self._on_identify,
            events.Auth: self._on_auth,
            events.TopicNamed: self._on_topic_named,
        }

    @property
    def state(self) -> State:
        """Where the connection stands in its life."""
        return self._wire.state

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.remote_address = _address(transport.get_extra_info("peername"))
        host = _host(self.remote_address)
        self.negotiated = replace(self.negotiated, client_id=host, hostname=host)
        self._services.clients.add(self)
        self._services.log.info("TCP: new client(%s)", self.remote_address)
        self._start_heartbeats()

    def data_received(self, data: bytes) -> None:
        if self._dead:
            return
        wire, handlers = self._wire, self._handlers
        wire.receive_data(data)
        replies: list[bytes] = []
        try:
            while (event := wire.next_event()) is not None:
                reply = handlers[type(event)](event)
                if reply:
                    replies.append(reply)
                self._last_command_at = self._loop.time()
        except ProtocolError as error:
            self._refuse(error, replies)
        except LineTooLong:
            self._send(replies)
            self._close()
        else:
            self._send(replies)

    def eof_received(self) -> bool:
        self._peer_ended = True
        if not self._dead:
            try:
                self._wire.receive_eof()
            except ProtocolError as error:
                self._refuse(error, [])
            else:
                self._close()
        return self._replies.are_waiting  # it may still be waiting for them

    def pause_writing(self) -> None:
        self._blocked_since = self._loop.time()
        if self.subscriber is not None:
            self.subscriber.blocked = True
        self._schedule()

    def resume_writing(self) -> None:
        self._blocked_since = None
        self._transport.resume_reading()
        if self.subscriber is not None and self.channel is not None:
            self.subscriber.blocked = False
            self.channel.ready(self.subscriber)

    def connection_lost(self, exc: Exception | None) -> None:
        self._dead = True
        self._services.clients.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._leave_channel()
        self._services.log.info("PROTOCOL(V2): [%s] exiting ioloop", self.remote_address)

    # What the broker calls.

    def deliver(self, batch: list[bytes]) -> None:
        """Sends message frames."""
        self._transport.write(b"".join(batch))

    def channel_gone(self) -> None:
        """Closes without a word, as the reference does when a channel is deleted."""
        self._close()

    def close(self) -> None:
        """Sends what is still to be sent, and closes: the daemon is stopping."""
        self._close()

    def abort(self) -> None:
        """Closes at once."""
        self._transport.abort()

    # Commands.

    def _on_publish(self, event: events.Publish) -> bytes:
        services = self._services
        wall_ns = services.clock.wall_ns()
        due_ns = wall_ns + event.defer_ms * MILLISECOND_NS if event.defer_ms else 0
        try:
            topic = services.broker.topic_for_publish(event.topic)
            topic.publish(event.bodies, wall_ns, due_ns)
        except StorageError as failure:
            raise _failed(event.word, failure) from failure
        counts = self.publish_counts
        counts[event.topic] = counts.get(event.topic, 0) + len(event.bodies)
        if services.durability.replies_wait:
            self._unsafe[topic] = None
        return frames.OK * event.oks

    def _on_topic_named(self, event: events.TopicNamed) -> None:
        try:
            self._services.broker.topic_for_publish(event.topic)
        except StorageError as failure:
            raise _failed(event.word, failure) from failure

    def _on_fin(self, event: events.Fin) -> bytes:
        channel, subscriber = self._subscription()
        refusals = channel.finish(subscriber, event.ids)
        return b"".join(map(frames.error, refusals)) if refusals else b""

    def _on_nop(self, event: events.Nop) -> None:
        """A sign of life is all it is."""

    def _on_rdy(self, event: events.Rdy) -> None:
        channel, subscriber = self._subscription()
        subscriber.rdy = event.count
        channel.ready(subscriber)

    def _on_req(self, event: events.Req) -> bytes:
        channel, subscriber = self._subscription()
        services = self._services
        if event.clamped:
            services.log.info(
                "PROTOCOL(V2): [%s] REQ timeout out of range, clamped to %d ms",
                self.remote_address,
                event.delay_ms,
            )
        delay_ns = event.delay_ms * MILLISECOND_NS
        due_ns = services.clock.wall_ns() + delay_ns if delay_ns else 0
        try:
            channel.requeue(subscriber, event.id, due_ns)
        except ProtocolError as refusal:
            return frames.error(refusal)
        return b""

    def _on_touch(self, event: events.Touch) -> bytes:
        channel, subscriber = self._subscription()
        try:
            channel.touch(subscriber, event.id, self._services.clock.now_ns())
        except ProtocolError as refusal:
            return frames.error(refusal)
        return b""

    def _on_sub(self, event: events.Sub) -> bytes:
        negotiated = self.negotiated
        subscriber = Subscriber(
            self, negotiated.msg_timeout_ms * MILLISECOND_NS, negotiated.sample_rate
        )
        try:
            self.channel = self._services.broker.subscribe(event.topic, event.channel, subscriber)
        except StorageError as failure:
            raise _failed("SUB", failure) from failure
        self.subscriber = subscriber
        self.topic_name = event.topic
        return frames.OK

    def _on_cls(self, event: events.Cls) -> bytes:
        _, subscriber = self._subscription()
        subscriber.rdy = 0
        return frames.CLOSE_WAIT

    def _on_identify(self, event: events.Identify) -> bytes:
        self.negotiated, response = negotiate(
            parse_identify(event.body), self._services.offer, self.negotiated
        )
        self._wire.heartbeats_enabled = self.negotiated.heartbeat_interval_ms is not None
        if not self._identified:
            self._identified = True
            self._start_heartbeats()
        return frames.response(response)

    def _on_auth(self, event: events.Auth) -> bytes:
        raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")

    def _subscription(self) -> tuple[Channel, Subscriber]:
        """The wire lets only a subscribed client come here."""
        assert self.channel is not None
        assert self.subscriber is not None
        return self.channel, self.subscriber

    # Writing.

    def _send(self, replies: list[bytes]) -> None:
        if self._unsafe:
            topics, self._unsafe = self._unsafe, {}
            done = self._replies.hold(b"".join(replies), waits=len(topics))
            for topic in topics:
                self._services.durability.when_safe(topic, done)
        elif replies:
            self._replies.send(b"".join(replies))

    def _write(self, data: bytes) -> None:
        if self._ended or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._blocked_since is not None:
            # It sends commands and does not read the answers.
            self._transport.pause_reading()

    def _publish_failed(self, failure: StorageError) -> None:
        self._refuse(_failed("PUB", failure), [])

    def _refuse(self, error: ProtocolError, replies: list[bytes]) -> None:
        """Answers what came before, then the error, then ends the connection."""
        self._services.log.error("[%s] - %s", self.remote_address, error)
        self._send([*replies, frames.error(error)])
        self._close()

    def _close(self) -> None:
        """Takes no more commands, and closes once everything has been answered."""
        self._dead = True
        self._leave_channel()
        self._replies.then(self._end)

    def _end(self) -> None:
        if self._ended or self._transport.is_closing():
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._peer_ended or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.write_eof()
            self._loop.call_later(LINGER_SECONDS, self._transport.abort)

    def _leave_channel(self) -> None:
        """At once, so that others need not wait for what was in flight here."""
        if self.subscriber is not None and self.channel is not None:
            channel, self.channel = self.channel, None
            self._services.broker.unsubscribe(self.topic_name, channel, self.subscriber)

    # Heartbeats and deadlines.

    def _start_heartbeats(self) -> None:
        self._beat_seconds = self._heartbeat_seconds()
        self._next_heartbeat_at = self._loop.time() + self._beat_seconds
        self._schedule()

    def _heartbeat_seconds(self) -> float:
        """The interval; endless when the client wants no heartbeats."""
        interval_ms = self.negotiated.heartbeat_interval_ms
        return float("inf") if interval_ms is None else interval_ms / 1000

    def _schedule(self) -> None:
        """Sets the one timer to whatever comes first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = min(self._next_heartbeat_at, self._deadline())
        if at != float("inf"):
            self._timer = self._loop.call_at(at, self._tick)

    def _deadline(self) -> float:
        """When the connection is given up: no command for two intervals, or one interval in which
        the client took nothing of what is waiting for it."""
        interval = self._heartbeat_seconds()
        deadline = self._last_command_at + 2 * interval
        if self._blocked_since is not None:
            deadline = min(deadline, self._blocked_since + interval)
        return deadline

    def _tick(self) -> None:
        now = self._loop.time()
        if now >= self._deadline():
            self._services.log.error("[%s] - i/o timeout", self.remote_address)
            self._transport.abort()
            return
        if now >= self._next_heartbeat_at:
            self._next_heartbeat_at = now + self._beat_seconds
            self._write(frames.HEARTBEAT)
        self._schedule()


def _failed(word: str, failure: StorageError) -> ProtocolError:
    return ProtocolError(f"E_{word}_FAILED", f"{word} failed {failure}")


def _address(peername: object) -> str:
    """host:port as Go prints it; a unix socket's peer has no name."""
    match peername:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "@"


def _host(address: str) -> str:
    return address.rpartition(":")[0]
