"""Requests that only Penstock's nsqd answers: history, the contents of channels, seeking, single
messages and clients, retention, draining.

nsqadmin probes each node for them and hides the controls of nodes without them.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from penstock.admin_api.cluster import Cluster
from penstock.admin_api.models import StoredMessage, TopicLogResponse
from penstock.admin_api.nsqd_api import NsqdApi, api_url
from penstock.admin_api.seeking import Move, move, plan
from penstock.common.errors import HttpRequestError
from penstock.common.go_json import decode_json_with

__all__ = ["STATES", "PenstockApi", "SearchResult"]

STATES = ("queued", "inflight", "deferred")

# A node may be replaced by one of another version, so the probe is repeated after this time.
SUPPORT_CACHE_SECONDS = 60.0

# Response limits. A page of 50 messages fits unless they are large; then the page shows an error.
PAGE_BYTES_MAX = 16 << 20
SEARCH_BYTES_MAX = 32 << 20
SEARCH_MESSAGES_MAX = 20_000

_decode_lines = msgspec.json.Decoder(StoredMessage).decode_lines


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The matching messages, the number of messages searched, and where to continue."""

    found: list[StoredMessage]
    looked_at: int
    next_seq: int | None


class PenstockApi:
    """Penstock's additions to the HTTP API, on the nodes of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._support_cache: dict[str, tuple[bool, float]] = {}

    async def supporting(self, addresses: Iterable[str]) -> list[str]:
        """The nodes among these that are Penstock's."""
        addresses = list(addresses)
        answers = await asyncio.gather(*(self._is_supported(address) for address in addresses))
        return [each for each, supported in zip(addresses, answers, strict=True) if supported]

    async def logs_of(self, addresses: Iterable[str], topic: str) -> dict[str, TopicLogResponse]:
        """The topic's log on each node; nodes that fail are left out."""
        addresses = list(addresses)
        answers = await asyncio.gather(
            *(self._nsqd(address).topic_log(topic) for address in addresses),
            return_exceptions=True,
        )
        found = {}
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, TopicLogResponse):
                found[address] = answer
            elif not isinstance(answer, HttpRequestError):
                raise answer
        return found

    # Messages.

    async def history(
        self, address: str, topic: str, start: str, limit: int
    ) -> list[StoredMessage]:
        """Stored messages from a position on. Raises HttpRequestError."""
        args = {"topic": topic, "from": start, "limit": str(limit)}
        reply = await self._nsqd(address).send(
            "GET", "/topic/messages", args, body_bytes_max=PAGE_BYTES_MAX
        )
        return _decode_messages(address, reply.body)

    async def search(
        self, address: str, topic: str, start: str, text: str, limit: int
    ) -> SearchResult:
        """Stored messages from a position on whose body contains `text`, ignoring case. Raises
        HttpRequestError."""
        args = {"topic": topic, "from": start, "limit": str(SEARCH_MESSAGES_MAX)}
        reply = await self._nsqd(address).send(
            "GET", "/topic/messages", args, body_bytes_max=SEARCH_BYTES_MAX
        )
        # In a thread: tens of thousands of messages would block the event loop.
        return await asyncio.to_thread(_search, address, reply.body, text, limit)

    async def peek(
        self, address: str, topic: str, channel: str, state: str, limit: int
    ) -> list[StoredMessage]:
        """Messages of a channel that are in one of the `STATES`. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "state": state, "limit": str(limit)}
        reply = await self._nsqd(address).send(
            "GET", "/channel/messages", args, body_bytes_max=PAGE_BYTES_MAX
        )
        return _decode_messages(address, reply.body)

    async def cancel(self, address: str, topic: str, channel: str, id: str) -> None:
        """Removes a deferred message from a channel. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "id": id}
        await self._nsqd(address).send("POST", "/channel/cancel", args)

    async def requeue(self, address: str, topic: str, channel: str, id: str) -> None:
        """Requeues a message that is in flight or deferred. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "id": id}
        await self._nsqd(address).send("POST", "/channel/requeue", args)

    # Seeking.

    async def plan_seek(
        self, addresses: Sequence[str], topic: str, channel: str, position: str
    ) -> list[Move]:
        """Plans moving a channel on each node. Raises HttpRequestError."""
        nodes = replace(self._cluster, nsqds=addresses, lookupds=())
        stats = await nodes.snapshot(topic, channel)
        apis = [self._nsqd(address) for address in addresses]
        return await plan(apis, stats, topic, channel, position)

    async def seek(self, moves: Sequence[Move], topic: str, channel: str) -> None:
        """Performs planned moves. Raises HttpRequestError."""
        await move(moves, topic, channel)

    # Nodes.

    async def set_retention(self, address: str, topic: str, args: Mapping[str, str]) -> None:
        """Sets the retention of a topic. Raises HttpRequestError."""
        await self._nsqd(address).send("POST", "/topic/retention", {"topic": topic, **args})

    async def kick(self, address: str, client: str, connect_ts: str) -> None:
        """Closes a client's connection to a node; `connect_ts` may be empty. Raises
        HttpRequestError."""
        args = {"remote_address": client} | ({"connect_ts": connect_ts} if connect_ts else {})
        await self._nsqd(address).send("POST", "/client/close", args)

    async def drain(self, address: str) -> None:
        """Makes a node start to drain. Raises HttpRequestError."""
        await self._nsqd(address).drain()

    # Internals.

    async def _is_supported(self, address: str) -> bool:
        is_supported, expires_at = self._support_cache.get(address, (False, 0.0))
        if time.monotonic() < expires_at:
            return is_supported
        url = api_url(address, "/topic/log", {})
        try:
            reply = await self._cluster.http.ask("GET", url, headers=self._cluster.headers)
        except HttpRequestError:
            return False  # Not cached: the node may be back soon.
        # Penstock reports the missing argument; NSQ's nsqd does not know the path.
        is_supported = reply.status == 400
        self._support_cache[address] = is_supported, time.monotonic() + SUPPORT_CACHE_SECONDS
        return is_supported

    def _nsqd(self, address: str) -> NsqdApi:
        return NsqdApi(self._cluster.http, address, self._cluster.headers)


def _decode_messages(address: str, lines: bytes) -> list[StoredMessage]:
    try:
        return decode_json_with(_decode_lines, lines)
    except ValueError as error:
        raise HttpRequestError(address, f"unexpected response: {error}") from None


def _search(address: str, lines: bytes, text: str, limit: int) -> SearchResult:
    wanted = text.casefold()
    found: list[StoredMessage] = []
    looked_at, next_seq = 0, None
    messages = chain.from_iterable(_decode_messages(address, line) for line in lines.splitlines())
    for message in messages:
        looked_at, next_seq = looked_at + 1, message.seq + 1
        if wanted in (message.body or "").casefold() or wanted in message.id:
            found.append(message)
            if len(found) == limit:
                break
    return SearchResult(found, looked_at, next_seq)
