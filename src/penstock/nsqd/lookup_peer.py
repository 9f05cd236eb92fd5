"""Registration of this nsqd with one nsqlookupd.

After connecting, nsqd identifies itself and registers all topics and channels; later it registers
and unregisters what has changed, and sends a PING every 15 s. After any error it reconnects, with
exponential backoff, and registers everything again. It also reconnects after its identity has
changed, because IDENTIFY is allowed once per connection.

The cost of a change depends on the changed topic, not on the number of topics.
"""

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias, cast

import msgspec

from penstock.broker.topic import Topic
from penstock.common.addresses import has_port, host_of
from penstock.common.errors import ProtocolError
from penstock.common.go_json import decode_json
from penstock.common.logs import Logger
from penstock.net.connect_errors import describe_error
from penstock.protocol import lookup_v1

__all__ = ["CheckNodeId", "LookupdInfo", "LookupdPeer"]

# As in NSQ: timeout of connecting and of a response, and interval of PINGs.
TIMEOUT_SECONDS = 1.0
PING_SECONDS = 15.0

# Initial and maximum backoff after a connection has failed; it doubles each time. A connection that
# has lasted longer than the maximum resets it.
BACKOFF_SECONDS = (0.25, 10.0)

# Commands that are sent before their responses are awaited.
PIPELINED_MAX = 500

# Concurrent HTTP requests to one nsqlookupd: a client may create ten thousand topics at once.
REQUESTS_MAX = 32

# SO_LINGER on, with 0 seconds: closing sends a reset.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_Registered: TypeAlias = dict[str, dict[str, object]]
"""By topic name: the registered channels by name, and the topic itself under "". The objects'
identity shows whether one was deleted and created again."""


class LookupdInfo(msgspec.Struct):
    """Response of an nsqlookupd to IDENTIFY: the address of its HTTP API, and the node ids of the
    other nsqds. NSQ's nsqlookupd does not send the latter."""

    broadcast_address: str = ""
    http_port: int = 0
    used_node_ids: list[int] = []
    node_id_used_by: str = ""
    """Address of another nsqd that has our node id; empty if there is none."""


class CheckNodeId(Protocol):
    """Called after IDENTIFY, with the address of the nsqlookupd and its response. `is_first`: this
    nsqd has not registered with that nsqlookupd before. Calls `LookupdPeer.register_again` if it
    changes the node id."""

    def __call__(self, address: str, info: LookupdInfo, /, *, is_first: bool) -> None: ...


class LookupdPeer:
    """One nsqlookupd; connects in the background until it is closed."""

    def __init__(
        self,
        address: str,
        identity: Callable[[], Mapping[str, object]],
        topics: Callable[[], Mapping[str, Topic]],
        log: Logger,
        *,
        check_node_id: CheckNodeId,
        tls: ssl.SSLContext | None = None,
        draining: bool = False,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.address = address
        self.info: LookupdInfo | None = None
        """None while disconnected."""
        self.http_slots = asyncio.Semaphore(REQUESTS_MAX)
        """Limits the concurrent requests to its HTTP API."""
        self._host = host_of(address).strip("[]") or "localhost"  # nsq compat: as Go dials :4160
        self._identity = identity
        self._topics = topics
        self._log = log
        self._check_node_id = check_node_id
        self._tls = tls
        self._is_draining = draining
        self._has_registered = False
        self._has_new_identity = False
        self._ping_seconds = ping_seconds
        self._changed: dict[str, None] = {}  # names of topics to compare
        self._has_news = asyncio.Event()
        self._first_attempt_done = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def may_respond(self) -> bool:
        """Whether it is connected, or the first attempt to connect is under way."""
        return self.info is not None or not self._first_attempt_done.is_set()

    async def wait_for_first_attempt(self) -> None:
        """Waits until the first attempt to connect has succeeded or failed."""
        await self._first_attempt_done.wait()

    def topic_changed(self, topic: str) -> None:
        """Call after a topic, or a channel of it, was created or deleted. No effect while
        disconnected, because a new connection registers everything."""
        if self.info is not None:
            self._changed[topic] = None
            self._has_news.set()

    def register_again(self) -> None:
        """Call after the identity has changed: reconnects at once."""
        self._has_new_identity = True
        self._has_news.set()

    def drain(self) -> None:
        """Tells nsqlookupd that this nsqd is draining."""
        self._is_draining = True
        self._has_news.set()

    async def close(self) -> None:
        """Closes the connection at once."""
        self._first_attempt_done.set()
        self._task.cancel()
        await asyncio.wait([self._task])

    # The connection.

    async def _run(self) -> None:
        shortest, longest = BACKOFF_SECONDS
        backoff_seconds = shortest
        while True:
            started_at = self._loop.time()
            try:
                await self._serve_connections()
            except (OSError, ProtocolError) as failure:
                reason = describe_error(failure)
                self._log.error("LOOKUPD(%s): %s", self.address, reason)
            finally:
                self.info = None
                self._changed.clear()
                self._first_attempt_done.set()
            if self._loop.time() - started_at > longest:
                backoff_seconds = shortest
            await asyncio.sleep(backoff_seconds * random.uniform(0.5, 1))  # noqa: S311 (a jitter)
            backoff_seconds = min(2 * backoff_seconds, longest)

    async def _serve_connections(self) -> None:
        """Serves one connection per identity. Returns only by OSError or ProtocolError."""
        while True:
            await self._serve_connection()

    async def _serve_connection(self) -> None:
        """Registers everything, then all changes. Returns after the identity has changed; otherwise
        only by OSError or ProtocolError."""
        connection = await self._connect()
        try:
            await self._identify(connection)
            registered: _Registered = {}
            sent_draining = False
            self._changed = dict.fromkeys(self._topics())
            next_ping_at = self._loop.time() + self._ping_seconds
            while not self._has_new_identity:
                self._has_news.clear()
                if self._loop.time() >= next_ping_at or sent_draining != self._is_draining:
                    sent_draining = self._is_draining
                    await connection.call(lookup_v1.ping(draining=sent_draining))
                    next_ping_at = self._loop.time() + self._ping_seconds
                await self._register_changes(connection, registered)
                await self._wait_for_news(connection, next_ping_at)
        finally:
            connection.close()

    async def _connect(self) -> "LookupConnection":
        if not has_port(self.address):
            # nsq compat: nsqd starts even if --lookupd-tcp-address is invalid.
            raise OSError("not an address (host:port)")
        port = int(self.address.rpartition(":")[2])
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                _, connection = await self._loop.create_connection(
                    LookupConnection, self._host, port, ssl=self._tls
                )
        except UnicodeError as error:
            raise OSError(f"no such host: {error}") from error
        return connection

    async def _identify(self, connection: "LookupConnection") -> None:
        self._has_new_identity = False
        (response,) = await connection.call(lookup_v1.identify(self._identity()))
        self.info = _decode_info(response)
        if not self.info.broadcast_address:
            self.info.broadcast_address = self._host
        self._first_attempt_done.set()
        self._log.info("LOOKUPD(%s): connected", self.address)
        if not self._has_new_identity:
            self._check_node_id(self.address, self.info, is_first=not self._has_registered)
        self._has_registered |= not self._has_new_identity

    async def _register_changes(
        self, connection: "LookupConnection", registered: _Registered
    ) -> None:
        changed, self._changed = self._changed, {}
        topics = self._topics()
        commands: list[bytes] = []
        for name in changed:
            commands += _commands_for(name, topics.get(name), registered)
            if len(commands) >= PIPELINED_MAX:
                await self._send(connection, commands)
                commands.clear()
        if commands:
            await self._send(connection, commands)

    async def _send(self, connection: "LookupConnection", commands: Iterable[bytes]) -> None:
        for response in await connection.call(*commands):
            if isinstance(response, ProtocolError):
                self._log.error("LOOKUPD(%s): %s", self.address, response)

    async def _wait_for_news(self, connection: "LookupConnection", next_ping_at: float) -> None:
        """Waits for a change, for the next PING, or for the end of the connection."""
        news = self._loop.create_task(self._has_news.wait())
        try:
            await asyncio.wait(
                (news, connection.ended),
                timeout=max(next_ping_at - self._loop.time(), 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            news.cancel()
        if connection.ended.done():
            raise connection.ended.result()


class LookupConnection(asyncio.Protocol):
    """Sends commands and receives their responses. The result of `ended` is the error that ended
    the connection."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._reader = lookup_v1.ResponseReader()
        self._pending_count = 0
        self._responses: list[bytes | ProtocolError] = []
        self._received = asyncio.Event()

    async def call(self, *commands: bytes) -> list[bytes | ProtocolError]:
        """Sends commands and returns their responses, including non-fatal errors.

        Each complete response must arrive within TIMEOUT_SECONDS of the previous one; partial ones
        do not extend that. Raises TimeoutError, ProtocolError for fatal errors, and OSError if the
        connection ends.
        """
        responses = self._responses = []
        self._pending_count = len(commands)
        self._transport.write(b"".join(commands))
        while self._pending_count:
            if self.ended.done():
                raise self.ended.result()
            self._received.clear()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._received.wait()
        return responses

    def close(self) -> None:
        """Closes with a reset. An nsqlookupd that is unreachable now gets the reset when it next
        sends something, and so learns early that the connection is gone."""
        if (connection := self._transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(lookup_v1.MAGIC)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._reader.receive_data(data)
        try:
            while (response := self._next_response()) is not None:
                self._add_response(response)
        except ProtocolError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("closed by nsqlookupd"))

    def _next_response(self) -> bytes | ProtocolError | None:
        try:
            return self._reader.next_response()
        except ProtocolError as error:
            if error.fatal:
                raise
            return error

    def _add_response(self, response: bytes | ProtocolError) -> None:
        if not self._pending_count:
            raise ProtocolError("E_INVALID", "unexpected response")
        self._pending_count -= 1
        self._responses.append(response)
        self._received.set()

    def _end(self, reason: Exception) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        self._received.set()


def _decode_info(response: bytes | ProtocolError) -> LookupdInfo:
    if isinstance(response, ProtocolError):
        raise response
    try:
        return decode_json(response, LookupdInfo)
    except ValueError as error:
        raise ProtocolError("E_INVALID", f"invalid response to IDENTIFY: {error}") from error


def _commands_for(name: str, topic: Topic | None, registered: _Registered) -> list[bytes]:
    """Commands that register the current state of a topic, or its deletion if it is None. Updates
    `registered`."""
    old = registered.pop(name, {})
    new: dict[str, object] = {} if topic is None else {"": topic, **topic.channels}
    if new:
        registered[name] = new
    removed = [key for key, item in old.items() if new.get(key) is not item]
    added = [key for key, item in new.items() if old.get(key) is not item]
    return [
        # Channels before their topic: otherwise nsqlookupd would keep ephemeral channels.
        *(lookup_v1.unregister(name, key) for key in reversed(removed)),
        *(lookup_v1.register(name, key) for key in added),
    ]
