"""A connection to one nsqlookupd, for as long as nsqd is to register with it.

It is told who we are and what we have: all of it when the connection is made, the differences
whenever something changes, and every 15 s that we are still there. Whatever goes wrong, the
connection is made anew after a rest, a longer one each time, and everything is told again.

What a change costs grows with the changed topic, not with all that there is.
"""

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

import msgspec

from penstock.broker.topic import Topic
from penstock.common.addresses import has_port, host_of
from penstock.common.errors import ProtocolError
from penstock.common.go_json import decode_json
from penstock.common.logs import Logger
from penstock.net.connect_errors import describe_error
from penstock.protocol import lookup_v1

__all__ = ["LookupPeer", "PeerInfo"]

# As in NSQ: timeout for a connection and for an answer of nsqlookupd, and interval of pings.
TIMEOUT_SECONDS = 1.0
PING_SECONDS = 15.0

# How long we rest after a connection has failed: at first, and doubled each time, at the most. One
# that had lasted for longer than the latter starts again with the former.
REST_SECONDS = (0.25, 10.0)

# Commands that are sent before their answers are waited for.
PIPELINED_MAX = 500

# Requests to one nsqlookupd at a time: a client may make ten thousand topics in a moment.
REQUESTS_MAX = 32

# Switched on, no time to linger: what `close` then sends is a reset.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_Told: TypeAlias = dict[str, dict[str, object]]
"""By the name of a topic: its channels by name, and under "" the topic itself. The objects tell
what was deleted and made again from what has stayed."""


class PeerInfo(msgspec.Struct):
    """What an nsqlookupd says of itself: where its HTTP API is."""

    broadcast_address: str = ""
    http_port: int = 0


class LookupPeer:
    """See the module's docstring."""

    def __init__(
        self,
        address: str,
        identity: Callable[[], Mapping[str, object]],
        topics: Callable[[], Mapping[str, Topic]],
        log: Logger,
        *,
        tls: ssl.SSLContext | None = None,
        draining: bool = False,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.address = address
        self.info: PeerInfo | None = None
        """None while it is not connected."""
        self.http_turn = asyncio.Semaphore(REQUESTS_MAX)
        """To be taken by whoever makes a request to its HTTP API."""
        self._host = host_of(address).strip("[]") or "localhost"  # nsq compat: as Go dials :4160
        self._identity = identity
        self._topics = topics
        self._log = log
        self._tls = tls
        self._draining = draining
        self._ping_seconds = ping_seconds
        self._changed: dict[str, None] = {}  # names of topics that may have to be told of
        self._something_to_tell = asyncio.Event()
        self._first_try_over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._stay_connected())

    @property
    def may_answer(self) -> bool:
        """Whether it is connected, or might be in a moment."""
        return self.info is not None or not self._first_try_over.is_set()

    async def first_try(self) -> None:
        """Waits until it is known whether a first connection could be made."""
        await self._first_try_over.wait()

    def changed(self, topic: str) -> None:
        """This topic or a channel of it was made or deleted. A new connection is told anyway."""
        if self.info is not None:
            self._changed[topic] = None
            self._something_to_tell.set()

    def drain(self) -> None:
        """nsqd takes no more messages."""
        self._draining = True
        self._something_to_tell.set()

    async def close(self) -> None:
        """Ends the connection, whatever it is doing."""
        self._first_try_over.set()
        self._task.cancel()
        await asyncio.wait([self._task])

    # The connection.

    async def _stay_connected(self) -> None:
        shortest, longest = REST_SECONDS
        rest_seconds = shortest
        while True:
            begun_at = self._loop.time()
            try:
                await self._converse()
            except (OSError, ProtocolError) as failure:
                reason = describe_error(failure)
                self._log.error("LOOKUPD(%s): %s", self.address, reason)
            finally:
                self.info = None
                self._changed.clear()
                self._first_try_over.set()
            if self._loop.time() - begun_at > longest:
                rest_seconds = shortest
            await asyncio.sleep(rest_seconds * random.uniform(0.5, 1))  # noqa: S311 (a jitter)
            rest_seconds = min(2 * rest_seconds, longest)

    async def _converse(self) -> None:
        """Tells everything, then what changes, until that fails: with OSError or ProtocolError."""
        conversation = await self._connect()
        try:
            await self._introduce_us(conversation)
            told: _Told = {}
            told_draining = False
            self._changed = dict.fromkeys(self._topics())
            next_ping_at = self._loop.time() + self._ping_seconds
            while True:
                self._something_to_tell.clear()
                if self._loop.time() >= next_ping_at or told_draining != self._draining:
                    told_draining = self._draining
                    await conversation.ask(lookup_v1.ping(draining=told_draining))
                    next_ping_at = self._loop.time() + self._ping_seconds
                await self._tell_changes(conversation, told)
                await self._something_comes_up(conversation, next_ping_at)
        finally:
            conversation.close()

    async def _connect(self) -> "_Conversation":
        if not has_port(self.address):
            # nsq compat: a wrong --lookupd-tcp-address does not keep nsqd from starting.
            raise OSError("not an address (host:port)")
        port = int(self.address.rpartition(":")[2])
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                _, conversation = await self._loop.create_connection(
                    _Conversation, self._host, port, ssl=self._tls
                )
        except UnicodeError as error:
            raise OSError(f"no such host: {error}") from error
        return conversation

    async def _introduce_us(self, conversation: "_Conversation") -> None:
        (answer,) = await conversation.ask(lookup_v1.identify(self._identity()))
        self.info = _peer_info(answer)
        if not self.info.broadcast_address:
            self.info.broadcast_address = self._host
        self._first_try_over.set()
        self._log.info("LOOKUPD(%s): connected", self.address)

    async def _tell_changes(self, conversation: "_Conversation", told: _Told) -> None:
        changed, self._changed = self._changed, {}
        topics = self._topics()
        commands: list[bytes] = []
        for name in changed:
            commands += _news_of(name, topics.get(name), told)
            if len(commands) >= PIPELINED_MAX:
                await self._tell(conversation, commands)
                commands.clear()
        if commands:
            await self._tell(conversation, commands)

    async def _tell(self, conversation: "_Conversation", commands: Iterable[bytes]) -> None:
        for answer in await conversation.ask(*commands):
            if isinstance(answer, ProtocolError):
                self._log.error("LOOKUPD(%s): %s", self.address, answer)

    async def _something_comes_up(self, conversation: "_Conversation", next_ping_at: float) -> None:
        """Waits for something to tell, for the time of the next ping, or for the end."""
        news = self._loop.create_task(self._something_to_tell.wait())
        try:
            await asyncio.wait(
                (news, conversation.ended),
                timeout=max(next_ping_at - self._loop.time(), 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            news.cancel()
        if conversation.ended.done():
            raise conversation.ended.result()


class _Conversation(asyncio.Protocol):
    """Commands out, their answers in. What ends it, be it the other side's doing or an answer that
    is none, is the result of `ended`."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._reader = lookup_v1.ResponseReader()
        self._unanswered = 0
        self._answers: list[bytes | ProtocolError] = []
        self._heard = asyncio.Event()

    async def ask(self, *commands: bytes) -> list[bytes | ProtocolError]:
        """Sends commands and returns their answers, including non-fatal errors.

        Each complete answer must arrive within TIMEOUT_SECONDS of the previous one; partial answers
        do not extend that. Raises TimeoutError, ProtocolError for fatal errors, and OSError if the
        connection ends.
        """
        answers = self._answers = []
        self._unanswered = len(commands)
        self._transport.write(b"".join(commands))
        while self._unanswered:
            if self.ended.done():
                raise self.ended.result()
            self._heard.clear()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._heard.wait()
        return answers

    def close(self) -> None:
        """Ends it at once. A host that cannot be reached just now finds out by the reset that it
        gets later, when it sends something: it need not believe for long that we are there."""
        if (connection := self._transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(lookup_v1.MAGIC)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._reader.receive_data(data)
        try:
            while (answer := self._next_answer()) is not None:
                self._take(answer)
        except ProtocolError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("closed by nsqlookupd"))

    # Within.

    def _next_answer(self) -> bytes | ProtocolError | None:
        try:
            return self._reader.next_response()
        except ProtocolError as error:
            if error.fatal:
                raise
            return error

    def _take(self, answer: bytes | ProtocolError) -> None:
        if not self._unanswered:
            raise ProtocolError("E_INVALID", "an answer that nobody has asked for")
        self._unanswered -= 1
        self._answers.append(answer)
        self._heard.set()

    def _end(self, reason: Exception) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        self._heard.set()


def _peer_info(answer: bytes | ProtocolError) -> PeerInfo:
    if isinstance(answer, ProtocolError):
        raise answer
    try:
        return decode_json(answer, PeerInfo)
    except ValueError as error:
        raise ProtocolError("E_INVALID", f"no answer to IDENTIFY: {error}") from error


def _news_of(name: str, topic: Topic | None, told: _Told) -> list[bytes]:
    """The commands that tell how a topic is now; None if it is no more. Notes that as told."""
    old = told.pop(name, {})
    new: dict[str, object] = {} if topic is None else {"": topic, **topic.channels}
    if new:
        told[name] = new
    gone = [key for key, what in old.items() if new.get(key) is not what]
    made = [key for key, what in new.items() if old.get(key) is not what]
    return [
        # The topic, which was first, comes last: else ephemeral channels would stay known.
        *(lookup_v1.unregister(name, key) for key in reversed(gone)),
        *(lookup_v1.register(name, key) for key in made),
    ]
