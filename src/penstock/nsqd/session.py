"""A client's session: handles the commands of one connection.

A handler returns the reply, or None if there is none; publishes are answered when they are stored.
If a command needs an authorisation query or a new transport, the handler returns a coroutine, and
the connection handles no further command until it has ended.
"""

from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.publishing import Publisher, Replies
from penstock.broker.subscriber import Location, Subscriber, SubscriberConnection
from penstock.common.clock import MILLISECOND_NS, Clock
from penstock.common.errors import AuthError, ProtocolError, StorageError
from penstock.common.logs import Logger
from penstock.net.tls import TlsInfo
from penstock.nsqd import auth
from penstock.nsqd.auth import Authenticator, Authorizations
from penstock.protocol import events, frames
from penstock.protocol.frames import OK
from penstock.protocol.identify import Negotiated, ServerOffer, negotiate, parse_identify

__all__ = ["Reply", "Session", "SessionConnection", "SessionServices", "failed"]

Reply: TypeAlias = bytes | Coroutine[Any, Any, bytes] | None


@dataclass(frozen=True, slots=True)
class SessionServices:
    """Objects shared by all sessions."""

    broker: Broker
    publisher: Publisher
    clock: Clock
    log: Logger
    offer: ServerOffer
    authenticator: Authenticator


class SessionConnection(SubscriberConnection, Protocol):
    """Methods of the connection that the session calls."""

    remote_address: str
    replies: Replies

    @property
    def remote_ip(self) -> str:
        """IP address of the client; empty on a unix socket."""

    @property
    def tls(self) -> TlsInfo | None:
        """TLS of the connection; None without TLS."""

    def identified(self, negotiated: Negotiated) -> None:
        """Applies the settings of IDENTIFY."""

    async def upgrade(self, negotiated: Negotiated, response: bytes) -> bytes:
        """Sends the response unencrypted, then starts the negotiated TLS and compression. Returns
        the last reply. Raises ProtocolError."""


class Session:
    """State of one client: negotiated settings, authorisations and subscription."""

    def __init__(self, services: SessionServices, connection: SessionConnection) -> None:
        self._broker = services.broker
        self._topic_cache = services.broker.topic_cache
        self._publisher = services.publisher
        self._services = services
        self._connection = connection
        self._replies = connection.replies
        self._requires_auth = services.authenticator.is_enabled
        self._secret = b""
        self.authorizations: Authorizations | None = None
        self.negotiated = services.offer.defaults()
        self.topic_name = ""
        self.subscriber: Subscriber | None = None
        self.publish_counts: defaultdict[str, int] = defaultdict(int)
        self._channel: Channel | None = None
        self.handlers: dict[type, Callable[..., Reply]] = {
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

    def set_default_name(self, host: str) -> None:
        """Sets the client id and host name, until the client sends its own."""
        self.negotiated = replace(self.negotiated, client_id=host, hostname=host)

    def set_writable(self, allowed: bool) -> None:
        """Sets whether the transport accepts messages."""
        if self.subscriber is not None and self._channel is not None:
            self.subscriber.blocked = not allowed
            if allowed:
                self._channel.ready(self.subscriber)

    def leave_channel(self) -> None:
        """Unsubscribes, which requeues the client's messages in flight for other subscribers."""
        if self.subscriber is not None and self._channel is not None:
            channel, self._channel = self._channel, None
            self._broker.unsubscribe(self.topic_name, channel, self.subscriber)

    # Publishing.

    def _on_publish(self, event: events.Publish) -> Reply:
        if self._requires_auth and (query := self._authorize(event, event.command, event.topic)):
            return query
        name, bodies = event.topic, event.bodies
        count = len(bodies)
        try:
            topic = self._topic_cache[name]
            if event.defer_ms:
                defer_ns = event.defer_ms * MILLISECOND_NS
                batch = self._publisher.publish_deferred(topic, bodies, defer_ns)
            else:
                batch = self._publisher.publish(topic, bodies)
        except StorageError as failure:
            raise failed(event.command, failure) from failure
        self.publish_counts[name] += count
        if batch is None:
            return OK if event.oks == 1 else OK * event.oks
        self._replies.send_when_stored(batch, event.command, OK * event.oks)
        return None

    def _on_topic_named(self, event: events.TopicNamed) -> Reply:
        if self._requires_auth and (query := self._authorize(event, event.command, event.topic)):
            return query
        try:
            self._topic_cache[event.topic]
        except StorageError as failure:
            raise failed(event.command, failure) from failure
        return None

    # Consuming.

    def _on_sub(self, event: events.Sub) -> Reply:
        if self._requires_auth:
            query = self._authorize(event, "SUB", event.topic, event.channel)
            if query:
                return query
        self._publisher.store()  # Messages published before are older than the channel.
        negotiated = self.negotiated
        subscriber = Subscriber(
            self._connection,
            negotiated.msg_timeout_ms * MILLISECOND_NS,
            negotiated.sample_rate,
            Location(negotiated.topology_zone, negotiated.topology_region),
        )
        try:
            self._channel = self._broker.subscribe(event.topic, event.channel, subscriber)
        except StorageError as failure:
            raise failed("SUB", failure) from failure
        self.subscriber = subscriber
        self.topic_name = event.topic
        return OK

    def _on_fin(self, event: events.Fin) -> bytes | None:
        channel, subscriber = self._subscription()
        refusals = channel.finish(subscriber, event.ids)
        return b"".join(map(frames.error, refusals)) if refusals else None

    def _on_rdy(self, event: events.Rdy) -> None:
        channel, subscriber = self._subscription()
        subscriber.rdy = event.count
        channel.ready(subscriber)

    def _on_req(self, event: events.Req) -> bytes | None:
        channel, subscriber = self._subscription()
        services = self._services
        if event.clamped:
            services.log.info(
                "PROTOCOL(V2): [%s] REQ timeout out of range, clamped to %d ms",
                self._connection.remote_address,
                event.delay_ms,
            )
        delay_ns = event.delay_ms * MILLISECOND_NS
        due_ns = services.clock.wall_ns() + delay_ns if delay_ns else 0
        try:
            channel.requeue(subscriber, event.id, due_ns)
        except ProtocolError as refusal:
            return frames.error(refusal)
        return None

    def _on_touch(self, event: events.Touch) -> bytes | None:
        channel, subscriber = self._subscription()
        try:
            channel.touch(subscriber, event.id, self._services.clock.now_ns())
        except ProtocolError as refusal:
            return frames.error(refusal)
        return None

    def _on_cls(self, event: events.Cls) -> bytes:
        _, subscriber = self._subscription()
        subscriber.rdy = 0
        return frames.CLOSE_WAIT

    def _subscription(self) -> tuple[Channel, Subscriber]:
        """To be called only for commands that the protocol allows after SUB."""
        assert self._channel is not None
        assert self.subscriber is not None
        return self._channel, self.subscriber

    # The connection.

    def _on_nop(self, event: events.Nop) -> None:
        """The connection has noted the time of the command; nothing else to do."""

    def _on_identify(self, event: events.Identify) -> Reply:
        agreed, response = negotiate(
            parse_identify(event.body), self._services.offer, self.negotiated
        )
        self.negotiated = agreed
        self._connection.identified(agreed)
        reply = frames.response(response)
        if agreed.tls or agreed.snappy or agreed.deflate:
            return self._connection.upgrade(agreed, reply)
        return reply

    def _on_auth(self, event: events.Auth) -> Reply:
        if self.authorizations is not None:
            raise auth.auth_already_set()
        if not self._requires_auth:
            raise auth.auth_disabled()
        return self._authenticate(event.secret)

    # Authorisation.

    async def _authenticate(self, secret: bytes) -> bytes:
        self._secret = secret
        known = await self._query_authorizations()
        if not known.count:
            raise auth.no_authorizations()
        self.authorizations = known
        return frames.response(known.response())

    def _authorize(
        self, event: events.Event, word: str, topic: str, channel: str = ""
    ) -> Coroutine[Any, Any, bytes] | None:
        """Raises ProtocolError unless the client is authorised. If its authorisations have expired,
        returns a coroutine that renews them and then handles the event."""
        known = self.authorizations
        if known is None:
            raise auth.auth_first(word)
        if known.is_expired(self._services.clock.now_ns()):
            return self._renew_and_handle(event)
        if word == "SUB":
            allowed = known.allows_subscribe(topic, channel)
        else:
            allowed = known.allows_publish(topic)
        if not allowed:
            raise auth.unauthorized(word, topic, channel)
        return None

    async def _renew_and_handle(self, event: events.Event) -> bytes:
        self.authorizations = await self._query_authorizations()
        reply = self.handlers[type(event)](event)
        while isinstance(reply, Coroutine):
            reply = await reply
        return reply or b""

    async def _query_authorizations(self) -> Authorizations:
        tls = self._connection.tls
        try:
            return await self._services.authenticator.query(
                self._secret,
                remote_ip=self._connection.remote_ip,
                tls=tls is not None,
                common_name=tls.common_name if tls else "",
            )
        except AuthError as failure:
            raise auth.auth_failed() from failure


def failed(word: str, failure: StorageError) -> ProtocolError:
    """The wire error of a command that failed."""
    refusal = ProtocolError(f"E_{word}_FAILED", f"{word} failed {failure}")
    refusal.__cause__ = failure
    return refusal
