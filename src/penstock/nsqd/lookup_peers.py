"""nsqd's side of discovery: all the nsqlookupds that it has been told of."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlencode

import msgspec

from penstock import names
from penstock.broker.topic import Topic
from penstock.errors import HttpRequestError
from penstock.logs import Logger
from penstock.nsqd.lookup_peer import LookupPeer, PeerInfo, Registrations
from penstock.webapi.client import HttpClient

__all__ = ["LookupPeers", "registrations_of"]


class _Channels(msgspec.Struct):
    channels: list[str]


class LookupPeers:
    """See the module's docstring."""

    def __init__(
        self,
        identity: Callable[[], Mapping[str, object]],
        registrations: Callable[[], Registrations],
        client: HttpClient,
        log: Logger,
    ) -> None:
        self._identity = identity
        self._registrations = registrations
        self._client = client
        self._log = log
        self._peers: dict[str, LookupPeer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._draining = False

    @property
    def are_connected(self) -> bool:
        """Whether there is any to ask."""
        return any(peer.info is not None for peer in self._peers.values())

    def connect(self, addresses: Iterable[str]) -> None:
        """Registers with these, and no longer with any other."""
        wanted = dict.fromkeys(addresses)
        for address in self._peers.keys() - wanted.keys():
            self._log.info("LOOKUP: removing peer %s", address)
            task = asyncio.get_running_loop().create_task(self._peers.pop(address).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for address in wanted.keys() - self._peers.keys():
            self._log.info("LOOKUP: adding peer %s", address)
            peer = LookupPeer(address, self._identity, self._registrations, self._log)
            self._peers[address] = peer
            if self._draining:
                peer.drain()

    def changed(self) -> None:
        """There are other topics or channels than there were."""
        for peer in self._peers.values():
            peer.changed()

    def drain(self) -> None:
        """nsqd takes no more messages."""
        self._draining = True
        for peer in self._peers.values():
            peer.drain()

    async def channels_of(self, topic: str) -> set[str]:
        """The lasting channels that the topic has on other nodes, as far as any nsqlookupd says so
        in time. What could not be asked is logged."""
        infos = [peer.info for peer in self._peers.values() if peer.info is not None]
        found = await asyncio.gather(*(self._ask(info, topic) for info in infos))
        valid = {name for channels in found for name in channels if names.is_valid(name)}
        return {name for name in valid if not names.is_ephemeral(name)}

    async def close(self) -> None:
        """Ends all connections."""
        await asyncio.gather(*self._closing, *(peer.close() for peer in self._peers.values()))
        self._peers.clear()

    async def _ask(self, info: PeerInfo, topic: str) -> list[str]:
        host = info.broadcast_address
        host = f"[{host}]" if ":" in host else host
        url = f"http://{host}:{info.http_port}/channels?{urlencode({'topic': topic})}"
        try:
            return (await self._client.get_json(url, _Channels)).channels
        except HttpRequestError as failure:
            self._log.warning("failed to query nsqlookupd for channels of %s - %s", topic, failure)
            return []


def registrations_of(topics: Iterable[Topic]) -> Registrations:
    """All topics and channels there are."""
    registrations: dict[tuple[str, str], object] = {}
    for topic in topics:
        registrations[topic.name, ""] = topic
        for channel in topic.channels.values():
            registrations[topic.name, channel.name] = channel
    return registrations
