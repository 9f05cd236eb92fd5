"""TCP connections of nsqds: reads commands, updates the registry, and responds.

The responses to all commands of one read leave in one write. As in NSQ, a client that has
identified itself may be silent for any time. The greeting, the IDENTIFY, the rest of a command and
the reading of our responses have timeouts. TCP keep-alive detects clients that have vanished.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from penstock.common.addresses import host_of
from penstock.common.durations import format_duration
from penstock.common.errors import LimitReachedError, ProtocolError
from penstock.common.logs import Logger
from penstock.net.connection_limits import ConnectionLimits
from penstock.net.listener import enable_keepalive, peer_address
from penstock.nsqlookupd.registry import RegisteredProducer, Registration, Registry
from penstock.protocol import lookup_v1
from penstock.protocol.lookup_v1 import (
    Event,
    IdentifyPeer,
    LookupServerConnection,
    NsqdInfo,
    Ping,
    Register,
    Unregister,
)

__all__ = ["LookupdTcpServices", "NsqdConnection", "NsqdConnections"]

# After an error response, the connection is read for this long. If it were closed while the client
# is still sending, the client's kernel would discard the error.
LINGER_SECONDS = 1.0


class NsqdConnections:
    """All open connections."""

    def __init__(self) -> None:
        self._connections: set[NsqdConnection] = set()

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator["NsqdConnection"]:
        return iter(tuple(self._connections))

    def add(self, connection: "NsqdConnection") -> None:
        """Adds an open connection."""
        self._connections.add(connection)

    def discard(self, connection: "NsqdConnection") -> None:
        """Removes a closed connection."""
        self._connections.discard(connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdTcpServices:
    """Dependencies of the connections."""

    registry: Registry
    log: Logger
    connection_limits: ConnectionLimits
    greeting_seconds: float
    command_seconds: float
    connections: NsqdConnections = field(default_factory=NsqdConnections)
    refusals: Counter[str] = field(default_factory=Counter)  # by reason


class NsqdConnection(asyncio.Protocol):
    """One connection. `identify_response` returns the data of the response to IDENTIFY, with
    additional fields."""

    def __init__(
        self,
        services: LookupdTcpServices,
        identify_response: Callable[[Mapping[str, object]], bytes],
    ) -> None:
        self._services = services
        self._registry = services.registry
        self._log = services.log
        self._identify_response = identify_response
        self._wire = LookupServerConnection()
        self._producer: RegisteredProducer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_blocked = False  # the client does not read our responses
        self._has_ended = False  # nothing more is sent
        self._is_admitted = False
        self._address = ""

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._address = peer_address(transport)
        services, host = self._services, host_of(self._address)
        services.connections.add(self)
        refusal = services.connection_limits.rejection(host)
        if refusal is not None:
            self._refuse(ProtocolError("E_TOO_MANY_CONNECTIONS", refusal), [], "connections")
            return
        services.connection_limits.add(host)
        self._is_admitted = True
        self._log.info("TCP: new client(%s)", self._address)
        enable_keepalive(transport)
        self._update_timeout(has_progressed=True)

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        was_greeted = self._wire.has_magic
        self._wire.receive_data(data)
        responses: list[bytes] = []
        try:
            while (event := self._wire.next_event()) is not None:
                responses.append(self._handle(event))
        except ProtocolError as error:
            self._refuse(error, responses)
            return
        if responses:
            self._transport.write(b"".join(responses))
        self._update_timeout(has_progressed=bool(responses) or self._wire.has_magic != was_greeted)

    def eof_received(self) -> None:
        if not self._has_ended:
            try:
                self._wire.receive_eof()
            except ProtocolError as error:
                self._services.refusals["protocol"] += 1
                self._log.error("[%s] - %s", self._address, error)
                self._transport.write(lookup_v1.error(error))
        self._transport.close()

    def pause_writing(self) -> None:
        self._is_blocked = True
        self._transport.pause_reading()
        self._update_timeout(has_progressed=False)

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._transport.resume_reading()
        self._update_timeout(has_progressed=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        if self._is_admitted:
            self._services.connection_limits.remove(host_of(self._address))
        self._services.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._log.info("PROTOCOL(V1): [%s] exiting ioloop", self._address)
        self._remove_producer()

    def close(self) -> None:
        """Closes the connection, because nsqlookupd stops."""
        self._has_ended = True
        self._transport.close()

    def end_if_replaced(self, leader: NsqdInfo) -> None:
        """If this is an earlier leader of the replicated node that `leader` leads now, removes its
        registrations and closes the connection: its machine may be cut off."""
        if (
            self._producer is not None
            and leader.is_same_replicated_node(self._producer.info)
            and self._producer.info.epoch < leader.epoch
        ):
            self._log.info("CLIENT(%s): replaced as leader of %s", self._address, leader.node)
            self._has_ended = True
            self._remove_producer()
            self._transport.abort()

    # Commands.

    def _handle(self, event: Event) -> bytes:
        match event:
            case Ping():
                return self._on_ping(event)
            case Register():
                return self._on_register(event)
            case Unregister():
                return self._on_unregister(event)
            case IdentifyPeer():
                return self._on_identify(event)

    def _on_ping(self, event: Ping) -> bytes:
        if self._producer is not None:
            silence_ns = self._registry.ping(self._producer, is_draining=event.draining)
            self._log.info(
                "CLIENT(%s): pinged (last ping %s)", self._address, format_duration(silence_ns)
            )
        return lookup_v1.OK

    def _on_register(self, event: Register) -> bytes:
        try:
            added = self._registry.register(self._identified_producer(), event.topic, event.channel)
        except LimitReachedError as failure:
            error = lookup_v1.register_failed(failure)
            self._services.refusals["limits"] += 1
            self._log.error("[%s] - %s", self._address, error)
            return lookup_v1.error(error)
        self._log_registrations("REGISTER", added)
        return lookup_v1.OK

    def _on_unregister(self, event: Unregister) -> bytes:
        removed = self._registry.unregister(self._identified_producer(), event.topic, event.channel)
        for registration in removed:
            if registration.channel and not event.channel:
                # An nsqd unregisters its channels one by one before their topic.
                self._log.warning(
                    "client(%s) unexpected UNREGISTER %s", self._address, registration
                )
            else:
                self._log_registrations("UNREGISTER", [registration])
        return lookup_v1.OK

    def _on_identify(self, event: IdentifyPeer) -> bytes:
        info = event.peer
        self._log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self._address,
            info.broadcast_address,
            info.tcp_port,
            info.http_port,
            info.version,
        )
        for other in self._services.connections:
            other.end_if_replaced(info)
        self._producer, registration = self._registry.add_producer(self._address, info)
        self._log_registrations("REGISTER", [registration])
        return lookup_v1.response(self._identify_response(self._node_id_fields(self._producer)))

    def _node_id_fields(self, producer: RegisteredProducer) -> dict[str, object]:
        """Fields of the response to IDENTIFY with the node ids of the other nsqds; empty if this
        nsqd has sent no node id, as NSQ's nsqd."""
        if producer.info.node_id is None:
            return {}
        used = self._registry.used_node_ids(producer)
        fields: dict[str, object] = {"used_node_ids": sorted(used)}
        if (other := used.get(producer.info.node_id)) is not None:
            fields["node_id_used_by"] = other.node
        return fields

    def _identified_producer(self) -> RegisteredProducer:
        """The producer of this connection. Exists, because the parser refuses these commands before
        IDENTIFY."""
        assert self._producer is not None
        return self._producer

    def _remove_producer(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            self._log_registrations("UNREGISTER", self._registry.remove_producer(producer))

    def _log_registrations(self, verb: str, registrations: list[Registration]) -> None:
        for registration in registrations:
            self._log.info("DB: client(%s) %s %s", self._address, verb, registration)

    # The end.

    def _refuse(
        self, error: ProtocolError, responses: list[bytes], reason: str = "protocol"
    ) -> None:
        """Sends the responses so far and the error, and ends the connection."""
        self._services.refusals[reason] += 1
        self._log.error("[%s] - %s", self._address, error)
        self._has_ended = True
        self._remove_producer()
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write(b"".join((*responses, lookup_v1.error(error))))
        if not self._transport.can_write_eof():  # TLS has its own close message
            self._transport.close()
            return
        self._transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def _update_timeout(self, *, has_progressed: bool) -> None:
        """Starts the timeout, if the client has something to do, and restarts it after progress.
        Bytes of an incomplete command are no progress."""
        if has_progressed and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_waiting = self._is_blocked or self._producer is None or self._wire.is_inside_command
        if is_waiting and self._timer is None:
            services = self._services
            seconds = (
                services.command_seconds if self._wire.has_magic else services.greeting_seconds
            )
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._services.refusals["timeout"] += 1
        self._log.error("[%s] - i/o timeout", self._address)
        self._transport.abort()
