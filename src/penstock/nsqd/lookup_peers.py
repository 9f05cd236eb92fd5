"""All nsqlookupds of this nsqd: registration, and the lookup of a new topic's channels.

A topic that is new here may have channels on other nodes. nsqd asks the nsqlookupds for them and
creates them before it delivers the topic's first message, so that their consumers miss none. Until
then, or until the request times out, publishes are accepted and the messages wait.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.addresses import join_address
from penstock.common.errors import HttpRequestError, StorageError
from penstock.common.logs import Logger
from penstock.net.http_client.client import HttpClient
from penstock.nsqd.lookup_peer import CheckNodeId, LookupdPeer

__all__ = ["LookupPeers"]


_REMEDY = "set -broadcast-http-port, or -http-address with -tls-required, to announce HTTPS"


class _Channels(msgspec.Struct):
    channels: list[str]


class LookupPeers:
    """Connections to the configured nsqlookupds."""

    def __init__(
        self,
        identity: Callable[[], Mapping[str, object]],
        topics: Callable[[], Mapping[str, Topic]],
        client: HttpClient,
        log: Logger,
        *,
        check_node_id: CheckNodeId,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`identity` returns the fields of IDENTIFY. `client` is for HTTP requests to nsqlookupd.
        With `tls`, both connections are encrypted."""
        self._identity = identity
        self._topics = topics
        self._client = client
        self._log = log
        self._check_node_id = check_node_id
        self._tls = tls
        self._peers: dict[str, LookupdPeer] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_draining = False

    def connect(self, addresses: Iterable[str]) -> None:
        """Registers with these nsqlookupds only; closes the connections to all others."""
        wanted = dict.fromkeys(addresses)
        if wanted and not self._identity()["http_port"]:
            self._log.warning("LOOKUP: without an HTTP port nsqlookupd refuses us: %s", _REMEDY)
        for address in [address for address in self._peers if address not in wanted]:
            self._log.info("LOOKUP: removing peer %s", address)
            _start(self._peers.pop(address).close(), self._closing)
        for address in wanted:
            if address not in self._peers:
                self._log.info("LOOKUP: adding peer %s", address)
                self._peers[address] = self._new_peer(address)

    def connected(self) -> dict[str, bool]:
        """Whether each nsqlookupd is connected, by address."""
        return {address: peer.info is not None for address, peer in self._peers.items()}

    def topology_changed(self, topic: Topic) -> None:
        """Call after a topic, or a channel of it, was created or deleted."""
        for peer in self._peers.values():
            peer.topic_changed(topic.name)

    def topic_created(self, topic: Topic) -> None:
        """Call after a topic was created: it waits for its channels on other nodes."""
        if any(peer.may_respond for peer in self._peers.values()):
            topic.await_channels()
            _start(self._create_known_channels(topic), self._requests)

    def register_again(self) -> None:
        """Call after the identity has changed: registers everything with all nsqlookupds again."""
        for peer in self._peers.values():
            peer.register_again()

    def drain(self) -> None:
        """Tells all nsqlookupds that this nsqd is draining."""
        self._is_draining = True
        for peer in self._peers.values():
            peer.drain()

    async def close(self) -> None:
        """Cancels all requests, and closes all connections."""
        for task in self._requests:
            task.cancel()
        self.connect([])
        await asyncio.gather(*self._requests, *self._closing, return_exceptions=True)

    def _new_peer(self, address: str) -> LookupdPeer:
        return LookupdPeer(
            address,
            self._identity,
            self._topics,
            self._log,
            check_node_id=self._check_node_id,
            tls=self._tls,
            draining=self._is_draining,
        )

    async def _create_known_channels(self, topic: Topic) -> None:
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
        """The non-ephemeral channels of a topic that any nsqlookupd returns in time."""
        results = await asyncio.gather(*(self._query(peer, topic) for peer in self._peers.values()))
        named = {name for channels in results for name in channels}
        return sorted(
            name for name in named if names.is_valid(name) and not names.is_ephemeral(name)
        )

    async def _query(self, peer: LookupdPeer, topic: str) -> list[str]:
        """The channels that one nsqlookupd knows; empty, with a warning, if the request fails.

        The request timeout covers everything: the first attempt to connect, the wait for other
        requests, and the request. The topic's messages wait no longer than that.
        """
        try:
            async with asyncio.timeout(self._client.request_timeout_seconds):
                await peer.wait_for_first_attempt()
                if peer.info is None:
                    return []
                scheme = "http" if self._tls is None else "https"
                address = join_address(peer.info.broadcast_address, peer.info.http_port)
                url = f"{scheme}://{address}/channels?{urlencode({'topic': topic})}"
                async with peer.http_slots:
                    return (await self._client.get_json(url, _Channels)).channels
        except (HttpRequestError, TimeoutError) as failure:
            reason = str(failure) or f"{peer.address}: timed out"
            self._log.warning("failed to query nsqlookupd for channels of %s - %s", topic, reason)
            return []


def _start(coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Starts a task, and keeps a reference to it in `tasks` until it is done."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
