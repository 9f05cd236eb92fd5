"""nsqd's side of discovery: all the nsqlookupds that it has been told of.

They learn what we have, and are asked in turn: a topic that is new here may have channels on other
nodes, whose consumers will come. It gets them before its first message is given to any, as far as
an nsqlookupd names them in time. Publishing does not wait for that; the messages do.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.errors import HttpRequestError, StorageError
from penstock.common.logs import Logger
from penstock.net.http_client.client import HttpClient
from penstock.nsqd.lookup_peer import LookupPeer, PeerInfo

__all__ = ["LookupPeers"]


_REMEDY = "set -broadcast-http-port, or -http-address with -tls-required, to tell where HTTPS is"


class _Channels(msgspec.Struct):
    channels: list[str]


class LookupPeers:
    """See the module's docstring."""

    def __init__(
        self,
        identity: Callable[[], Mapping[str, object]],
        topics: Callable[[], Mapping[str, Topic]],
        client: HttpClient,
        log: Logger,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`identity` is what nsqlookupd is told of us, `client` what it is asked with; with `tls`
        both are encrypted."""
        self._identity = identity
        self._topics = topics
        self._client = client
        self._log = log
        self._tls = tls
        self._peers: dict[str, LookupPeer] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._draining = False

    def connect(self, addresses: Iterable[str]) -> None:
        """Registers with these, and no longer with any other."""
        wanted = dict.fromkeys(addresses)
        if wanted and not self._identity()["http_port"]:
            self._log.warning("LOOKUP: without an HTTP port nsqlookupd refuses us: %s", _REMEDY)
        for address in [known for known in self._peers if known not in wanted]:
            self._log.info("LOOKUP: removing peer %s", address)
            _start(self._peers.pop(address).close(), self._closing)
        for address in wanted:
            if address not in self._peers:
                self._log.info("LOOKUP: adding peer %s", address)
                self._peers[address] = self._new_peer(address)

    def connected(self) -> dict[str, bool]:
        """By address, whether we are registered there."""
        return {address: peer.info is not None for address, peer in self._peers.items()}

    def topology_changed(self, topic: Topic) -> None:
        """A topic, or a channel of it, was made or deleted."""
        for peer in self._peers.values():
            peer.changed(topic.name)

    def topic_created(self, topic: Topic) -> None:
        """A topic was made; it waits for the channels that others have of it."""
        if any(peer.may_answer for peer in self._peers.values()):
            topic.await_channels()
            _start(self._make_channels_of_others(topic), self._asking)

    def drain(self) -> None:
        """nsqd takes no more messages."""
        self._draining = True
        for peer in self._peers.values():
            peer.drain()

    async def close(self) -> None:
        """Ends all connections, and waits for no answer any longer."""
        for task in self._asking:
            task.cancel()
        self.connect([])
        await asyncio.gather(*self._asking, *self._closing, return_exceptions=True)

    # Within.

    def _new_peer(self, address: str) -> LookupPeer:
        return LookupPeer(
            address,
            self._identity,
            self._topics,
            self._log,
            tls=self._tls,
            draining=self._draining,
        )

    async def _make_channels_of_others(self, topic: Topic) -> None:
        for name in await self._channels_of(topic.name):
            if topic.closed:
                return
            try:
                topic.channel(name)
            except StorageError as failure:
                self._log.error("failed to make channel %s:%s - %s", topic.name, name, failure)
        try:
            topic.start()
        except StorageError as failure:
            self._log.error("failed to start topic %s - %s", topic.name, failure)

    async def _channels_of(self, topic: str) -> list[str]:
        """The lasting channels that a topic has, as far as any nsqlookupd says so in time."""
        answers = await asyncio.gather(*(self._ask(peer, topic) for peer in self._peers.values()))
        named = {name for channels in answers for name in channels}
        return sorted(
            name for name in named if names.is_valid(name) and not names.is_ephemeral(name)
        )

    async def _ask(self, peer: LookupPeer, topic: str) -> list[str]:
        """The channels that one nsqlookupd knows; empty, with a warning, if it does not answer.

        The request timeout covers everything: a first connection to nsqlookupd, the wait for other
        requests to it, and the request. The topic's messages wait no longer than that.
        """
        try:
            async with asyncio.timeout(self._client.request_timeout_seconds):
                await peer.first_try()
                if peer.info is None:
                    return []
                scheme = "http" if self._tls is None else "https"
                query = urlencode({"topic": topic})
                url = f"{scheme}://{_http_address(peer.info)}/channels?{query}"
                async with peer.http_turn:
                    return (await self._client.get_json(url, _Channels)).channels
        except (HttpRequestError, TimeoutError) as failure:
            reason = str(failure) or f"{peer.address}: timed out"
            self._log.warning("failed to query nsqlookupd for channels of %s - %s", topic, reason)
            return []


def _http_address(info: PeerInfo) -> str:
    host = info.broadcast_address
    return f"[{host}]:{info.http_port}" if ":" in host else f"{host}:{info.http_port}"


def _start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Has it done, and known of for as long as that takes."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
