"""A connection to one nsqlookupd, for as long as nsqd lives.

It is told who we are and what we have: all of it when the connection is made, the differences
whenever something changes, and that we are still there in between. Whatever goes wrong, the
connection is made anew after a while, a longer one each time, and everything is told again.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import msgspec

from penstock.errors import ProtocolError
from penstock.logs import Logger
from penstock.wire import lookup_v1

__all__ = ["LookupPeer", "PeerInfo", "Registrations"]

# NSQ's: how long nsqlookupd has for a connection and for an answer, and how often it hears of us.
TIMEOUT_SECONDS = 1.0
PING_SECONDS = 15.0

# How long a failed connection rests; doubled each time, and a random half of it added.
REST_SECONDS = (0.25, 10.0)

# Commands that are sent before their answers are waited for.
PIPELINED_MAX = 500

Registrations: TypeAlias = Mapping[tuple[str, str], object]
"""Topics, as (topic, ""), and channels, as (topic, channel), each with something that stands for
it: what was deleted and made again is not the same, and has to be told."""


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
        registrations: Callable[[], Registrations],
        log: Logger,
    ) -> None:
        self.address = address
        self.info: PeerInfo | None = None
        """None while it is not connected."""
        self._identity = identity
        self._registrations = registrations
        self._log = log
        self._something_to_tell = asyncio.Event()
        self._draining = False
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    def changed(self) -> None:
        """There are other topics or channels than there were."""
        self._something_to_tell.set()

    def drain(self) -> None:
        """nsqd takes no more messages."""
        self._draining = True
        self._something_to_tell.set()

    async def close(self) -> None:
        """Ends the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _stay_connected(self) -> None:
        shortest, longest = REST_SECONDS
        rest_seconds = shortest
        while True:
            try:
                await self._converse()
            except (OSError, TimeoutError, ProtocolError, msgspec.DecodeError) as failure:
                reason = str(failure) or "i/o timeout"
                self._log.error("LOOKUPD(%s): %s", self.address, reason)
            if self.info is not None:
                self.info = None
                rest_seconds = shortest
            await asyncio.sleep(rest_seconds * random.uniform(1, 1.5))  # noqa: S311 (a jitter)
            rest_seconds = min(2 * rest_seconds, longest)

    async def _converse(self) -> None:
        """Tells everything, then what changes; returns when the other side has closed."""
        conversation = await self._connect()
        try:
            (answer,) = await conversation.ask(lookup_v1.identify(self._identity()))
            info = msgspec.json.decode(answer, type=PeerInfo)
            info.broadcast_address = info.broadcast_address or self.address.rpartition(":")[0]
            told: Registrations = {}
            told_draining = False
            while True:
                self._something_to_tell.clear()
                wanted = self._registrations()
                commands = _differences(told, wanted)
                told = wanted
                if self._draining and not told_draining:
                    commands.append(lookup_v1.ping(draining=True))
                    told_draining = True
                for start in range(0, len(commands), PIPELINED_MAX):
                    await conversation.ask(*commands[start : start + PIPELINED_MAX])
                if self.info is None:
                    self.info = info
                    self._log.info("LOOKUPD(%s): registered", self.address)
                if not await self._something_comes_up(conversation):
                    await conversation.ask(lookup_v1.ping(draining=self._draining))
        finally:
            conversation.close()

    async def _connect(self) -> "_Conversation":
        host, _, port = self.address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            _, protocol = await loop.create_connection(_Conversation, host.strip("[]"), int(port))
        return protocol

    async def _something_comes_up(self, conversation: "_Conversation") -> bool:
        """Waits for something to tell, or for the time of the next ping. Raises OSError when the
        other side has closed."""
        told = asyncio.ensure_future(self._something_to_tell.wait())
        try:
            await asyncio.wait(
                (told, conversation.closed),
                timeout=PING_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            told.cancel()
        if conversation.closed.done():
            raise ConnectionResetError("closed by nsqlookupd")
        return self._something_to_tell.is_set()


class _Conversation(asyncio.Protocol):
    """Commands out, their answers in."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._reader = lookup_v1.ResponseReader()
        self._answers: asyncio.Queue[bytes | ProtocolError | None] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(lookup_v1.MAGIC)

    def data_received(self, data: bytes) -> None:
        self._reader.receive_data(data)
        try:
            while (answer := self._reader.next_response()) is not None:
                self._answers.put_nowait(answer)
        except ProtocolError as error:
            self._answers.put_nowait(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answers.put_nowait(None)
        if not self.closed.done():
            self.closed.set_result(None)

    async def ask(self, *commands: bytes) -> list[bytes]:
        """Sends commands and returns their answers. Raises ProtocolError if one is an error,
        TimeoutError, and OSError when the connection has ended."""
        self._transport.write(b"".join(commands))
        answers = []
        for _ in commands:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await self._answers.get()
            if answer is None:
                raise ConnectionResetError("closed by nsqlookupd")
            if isinstance(answer, ProtocolError):
                raise answer
            answers.append(answer)
        return answers

    def close(self) -> None:
        self._transport.abort()


def _differences(told: Registrations, wanted: Registrations) -> list[bytes]:
    """The commands that turn the one into the other."""
    gone = [key for key, what in told.items() if wanted.get(key) is not what]
    new = [key for key, what in wanted.items() if told.get(key) is not what]
    gone_topics = {topic for topic, channel in gone if not channel}
    # A topic takes its channels with it.
    return [
        *(lookup_v1.unregister(*key) for key in gone if not key[1] or key[0] not in gone_topics),
        *(lookup_v1.register(*key) for key in new),
    ]
