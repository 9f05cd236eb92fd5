"""What Penstock's nsqd can do and NSQ's cannot: history, looking into channels, moving them, seeing
to one message or one client, retention, draining.

A node is asked once in a while whether it can; where it cannot, the pages do not offer it.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from penstock.admin_api import stats as cluster_stats
from penstock.admin_api.nsqd_api import LogExtent, NsqdApi, refusal, url_of
from penstock.admin_api.seeking import Move, move, plan
from penstock.common.errors import HttpRequestError
from penstock.common.json_decode import decode_json_by
from penstock.net.http_client.client import HttpReply
from penstock.nsqadmin.cluster_client import Cluster

__all__ = ["STATES", "Extensions", "Message", "Search"]

STATES = ("queued", "inflight", "deferred")

# For how long it is believed what a node can do; it may be exchanged for another program.
BELIEF_SECONDS = 60.0

# What is read of a node for one page. Messages may be large: a page of 50 has room for all of most
# topics, and says so where it has not.
PAGE_BYTES_MAX = 16 << 20
SEARCH_BYTES_MAX = 32 << 20
SEARCH_MESSAGES_MAX = 20_000


class Message(msgspec.Struct, kw_only=True):
    """A message as nsqd shows it."""

    seq: int
    id: str
    timestamp_ns: int
    body: str | None = None
    body_base64: str | None = None
    due_ns: int = 0
    attempts: int = 0
    deadline_ns: int = 0
    client_id: str = ""
    client_address: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """What was found in a range of history, and how far it was looked."""

    found: list[Message]
    looked_at: int
    next_seq: int | None


_decoder = msgspec.json.Decoder(Message)


class Extensions:
    """The nodes of one cluster, as far as they are Penstock's."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._beliefs: dict[str, tuple[bool, float]] = {}

    async def having(self, addresses: Iterable[str]) -> list[str]:
        """Those of these nodes that have the extensions."""
        addresses = list(addresses)
        answers = await asyncio.gather(*(self._has(address) for address in addresses))
        return [address for address, has in zip(addresses, answers, strict=True) if has]

    async def logs_of(self, addresses: Iterable[str], topic: str) -> dict[str, LogExtent]:
        """How far a topic reaches on each node. A node that does not say is left out."""
        addresses = list(addresses)
        answers = await asyncio.gather(
            *(self._api(address).log_of(topic) for address in addresses), return_exceptions=True
        )
        found = {}
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, LogExtent):
                found[address] = answer
            elif not isinstance(answer, HttpRequestError):
                raise answer
        return found

    # Messages.

    async def history(self, address: str, topic: str, start: str, limit: int) -> list[Message]:
        """Messages from a place on. Raises HttpRequestError."""
        args = {"topic": topic, "from": start, "limit": str(limit)}
        reply = await self._ask("GET", address, "/topic/messages", args, PAGE_BYTES_MAX)
        return _messages(address, reply.body)

    async def search(self, address: str, topic: str, start: str, text: str, limit: int) -> Search:
        """Messages from a place on whose body has `text`, in any case of letters. Raises
        HttpRequestError."""
        args = {"topic": topic, "from": start, "limit": str(SEARCH_MESSAGES_MAX)}
        reply = await self._ask("GET", address, "/topic/messages", args, SEARCH_BYTES_MAX)
        # In a thread, because tens of thousands of messages take their time.
        return await asyncio.to_thread(_search, address, reply.body, text, limit)

    async def peek(
        self, address: str, topic: str, channel: str, state: str, limit: int
    ) -> list[Message]:
        """What is in a channel. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "state": state, "limit": str(limit)}
        reply = await self._ask("GET", address, "/channel/messages", args, PAGE_BYTES_MAX)
        return _messages(address, reply.body)

    async def cancel(self, address: str, topic: str, channel: str, id: str) -> None:
        """Takes back a deferred message. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "id": id}
        await self._ask("POST", address, "/channel/cancel", args)

    async def requeue(self, address: str, topic: str, channel: str, id: str) -> None:
        """Has a message delivered again that is in flight or deferred. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "id": id}
        await self._ask("POST", address, "/channel/requeue", args)

    # Places.

    async def plan_seek(
        self, addresses: Sequence[str], topic: str, channel: str, place: str
    ) -> list[Move]:
        """What moving a channel would do on each node. Raises HttpRequestError."""
        cluster = cluster_stats.Cluster(
            self._cluster.http, nsqds=addresses, headers=self._cluster.headers
        )
        snapshot = await cluster.snapshot(topic, channel)
        apis = [self._api(address) for address in addresses]
        return await plan(apis, snapshot, topic, channel, place)

    async def seek(self, moves: Sequence[Move], topic: str, channel: str) -> None:
        """Moves it. Raises HttpRequestError."""
        await move(moves, topic, channel)

    # Nodes.

    async def set_retention(self, address: str, topic: str, args: Mapping[str, str]) -> None:
        """How long what is finished stays. Raises HttpRequestError."""
        await self._ask("POST", address, "/topic/retention", {"topic": topic, **args})

    async def kick(self, address: str, client: str, connect_ts: str) -> None:
        """Ends a client's connection to a node; `connect_ts` may be empty. Raises
        HttpRequestError."""
        args = {"remote_address": client} | ({"connect_ts": connect_ts} if connect_ts else {})
        await self._ask("POST", address, "/client/close", args)

    async def drain(self, address: str) -> None:
        """Begins to drain a node. Raises HttpRequestError."""
        await self._api(address).drain()

    # Within.

    async def _has(self, address: str) -> bool:
        believed, until = self._beliefs.get(address, (False, 0.0))
        if time.monotonic() < until:
            return believed
        url = url_of(address, "/topic/log", {})
        try:
            reply = await self._cluster.http.ask("GET", url, headers=self._cluster.headers)
        except HttpRequestError:
            return False  # It may be back in a moment.
        has = reply.status == 400  # It misses an argument; NSQ's nsqd knows no such path.
        self._beliefs[address] = has, time.monotonic() + BELIEF_SECONDS
        return has

    def _api(self, address: str) -> NsqdApi:
        return NsqdApi(self._cluster.http, address, self._cluster.headers)

    async def _ask(
        self,
        method: str,
        address: str,
        path: str,
        args: Mapping[str, str],
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> HttpReply:
        http = replace(self._cluster.http, body_bytes_max=bytes_max)
        url = url_of(address, path, args)
        reply = await http.ask(method, url, headers=self._cluster.headers)
        if reply.status != 200:
            raise refusal(address, reply.status, reply.body, args)
        return reply


def _messages(address: str, lines: bytes) -> list[Message]:
    """What a node has sent. Raises HttpRequestError."""
    try:
        return decode_json_by(_decoder.decode_lines, lines)
    except ValueError as error:
        raise HttpRequestError(address, f"unexpected answer: {error}") from None


def _search(address: str, lines: bytes, text: str, limit: int) -> Search:
    wanted = text.casefold()
    found: list[Message] = []
    looked_at, next_seq = 0, None
    for message in chain.from_iterable(_messages(address, line) for line in lines.splitlines()):
        looked_at, next_seq = looked_at + 1, message.seq + 1
        if wanted in (message.body or "").casefold() or wanted in message.id:
            found.append(message)
            if len(found) == limit:
                break
    return Search(found, looked_at, next_seq)
