"""A TCP peer, which is an nsqd: its bytes to the wire, events from there to the registry, answers
back.

All that one read brings is answered with one write. A peer that has identified itself may be silent
for as long as it likes, as the reference lets it; whatever else it may keep us waiting for, it has
a limited time. Peers that vanished without a word are found out by TCP keep-alive.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from penstock.common.addresses import host_of
from penstock.common.durations import format_duration
from penstock.common.errors import LimitReachedError, ProtocolError
from penstock.common.logs import Logger
from penstock.net.connection_limits import ConnectionLimits
from penstock.net.listener import enable_keepalive, peer_address
from penstock.nsqlookupd.registration import Producer, Registration
from penstock.nsqlookupd.registry import Registry
from penstock.protocol import lookup_v1
from penstock.protocol.lookup_v1 import (
    Event,
    IdentifyPeer,
    LookupServerConnection,
    Ping,
    Register,
    Unregister,
)

__all__ = ["Peer", "Peers", "TcpServices"]

# A peer that has been told its error may still be sending: reading on for this long keeps the
# kernel from resetting the connection, and so from taking the error out of the peer's hands.
LINGER_SECONDS = 1.0


class Peers:
    """The connections there are."""

    def __init__(self) -> None:
        self._peers: set[Peer] = set()

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator["Peer"]:
        return iter(tuple(self._peers))

    def add(self, peer: "Peer") -> None:
        """A peer has connected."""
        self._peers.add(peer)

    def discard(self, peer: "Peer") -> None:
        """A peer has gone."""
        self._peers.discard(peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpServices:
    """What every connection works with."""

    registry: Registry
    log: Logger
    connection_limits: ConnectionLimits
    greeting_seconds: float
    command_seconds: float
    peers: Peers = field(default_factory=Peers)
    refusals: Counter[str] = field(default_factory=Counter)  # by reason


class Peer(asyncio.Protocol):
    """One connection. `about_us` makes the data of the answer to IDENTIFY."""

    def __init__(self, services: TcpServices, about_us: Callable[[], bytes]) -> None:
        self._services = services
        self._registry = services.registry
        self._log = services.log
        self._about_us = about_us
        self._wire = LookupServerConnection()
        self._producer: Producer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_blocked = False  # has not read our answers
        self._has_ended = False  # is told nothing more
        self._is_admitted = False
        self._address = ""

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._address = peer_address(transport)
        services, host = self._services, host_of(self._address)
        services.peers.add(self)
        refusal = services.connection_limits.rejection(host)
        if refusal is not None:
            self._refuse(ProtocolError("E_TOO_MANY_CONNECTIONS", refusal), [], "connections")
            return
        services.connection_limits.add(host)
        self._is_admitted = True
        self._log.info("TCP: new client(%s)", self._address)
        enable_keepalive(transport)
        self._watch(progressed=True)

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        was_greeted = self._wire.has_magic
        self._wire.receive_data(data)
        answers: list[bytes] = []
        try:
            while (event := self._wire.next_event()) is not None:
                answers.append(self._answer(event))
        except ProtocolError as error:
            self._refuse(error, answers)
            return
        if answers:
            self._transport.write(b"".join(answers))
        self._watch(progressed=bool(answers) or self._wire.has_magic != was_greeted)

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
        self._watch(progressed=False)

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._transport.resume_reading()
        self._watch(progressed=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        if self._is_admitted:
            self._services.connection_limits.remove(host_of(self._address))
        self._services.peers.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._log.info("PROTOCOL(V1): [%s] exiting ioloop", self._address)
        self._leave()

    def close(self) -> None:
        """Closes: nsqlookupd is stopping."""
        self._has_ended = True
        self._transport.close()

    # Commands.

    def _answer(self, event: Event) -> bytes:
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
            silence_ns = self._registry.ping(self._producer, draining=event.draining)
            self._log.info(
                "CLIENT(%s): pinged (last ping %s)", self._address, format_duration(silence_ns)
            )
        return lookup_v1.OK

    def _on_register(self, event: Register) -> bytes:
        try:
            made = self._registry.register(self._known(), event.topic, event.channel)
        except LimitReachedError as failure:
            error = lookup_v1.register_failed(failure)
            self._services.refusals["limits"] += 1
            self._log.error("[%s] - %s", self._address, error)
            return lookup_v1.error(error)
        self._log_registrations("REGISTER", made)
        return lookup_v1.OK

    def _on_unregister(self, event: Unregister) -> bytes:
        lost = self._registry.unregister(self._known(), event.topic, event.channel)
        for registration in lost:
            if registration.channel and not event.channel:
                # An nsqd takes its channels back one by one before it takes back their topic.
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
        self._producer, registration = self._registry.identify(self._address, info)
        self._log_registrations("REGISTER", [registration])
        return lookup_v1.response(self._about_us())

    def _known(self) -> Producer:
        """The wire lets only a peer that has identified itself come here."""
        assert self._producer is not None
        return self._producer

    def _leave(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            self._log_registrations("UNREGISTER", self._registry.leave(producer))

    def _log_registrations(self, verb: str, registrations: list[Registration]) -> None:
        for registration in registrations:
            self._log.info("DB: client(%s) %s %s", self._address, verb, registration)

    # The end.

    def _refuse(self, error: ProtocolError, answers: list[bytes], reason: str = "protocol") -> None:
        """Answers what came before, then the error, then ends the connection."""
        self._services.refusals[reason] += 1
        self._log.error("[%s] - %s", self._address, error)
        self._has_ended = True
        self._leave()
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write(b"".join((*answers, lookup_v1.error(error))))
        if not self._transport.can_write_eof():  # as with TLS, which says so in its own way
            self._transport.close()
            return
        self._transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def _watch(self, *, progressed: bool) -> None:
        """Gives the peer its time for what it owes us: from the last command it has ended, however
        many bytes of the next one it sends meanwhile."""
        if progressed and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        owes = self._is_blocked or self._producer is None or self._wire.is_inside_command
        if owes and self._timer is None:
            services = self._services
            seconds = (
                services.command_seconds if self._wire.has_magic else services.greeting_seconds
            )
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._services.refusals["timeout"] += 1
        self._log.error("[%s] - i/o timeout", self._address)
        self._transport.abort()
