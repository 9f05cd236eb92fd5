"""The figures of a whole cluster: what every nsqd says in /stats, at one moment.

    cluster = Cluster(http, nsqds=["127.0.0.1:4151"])
    snapshot = await cluster.snapshot()

Which nsqds there are is asked anew each time, so nodes may come and go. One that does not answer is
a failure in the snapshot, beside the figures of the others; only when nobody answers at all is
there nothing to show.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import HttpClient

__all__ = ["ChannelFigures", "Cluster", "NodeStats", "Snapshot", "TopicFigures", "base_url"]

T = TypeVar("T")


class ChannelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one nsqd says of a channel."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int = 0
    paused: bool = False

    @property
    def pending_count(self) -> int:
        """Messages that somebody still has to finish."""
        return self.depth + self.in_flight_count + self.deferred_count


class TopicFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one nsqd says of a topic."""

    topic_name: str
    depth: int
    backend_depth: int
    message_count: int
    paused: bool = False
    channels: list[ChannelFigures] = []

    def maybe_channel(self, name: str) -> ChannelFigures | None:
        """The channel of this name."""
        return next((each for each in self.channels if each.channel_name == name), None)


class _Stats(msgspec.Struct):
    topics: list[TopicFigures] | None = None
    draining: bool = False
    start_time: int = 0


class _Producer(msgspec.Struct):
    broadcast_address: str
    http_port: int


class _Producers(msgspec.Struct):
    producers: list[_Producer] | None = None


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What one nsqd says of all its topics."""

    address: str
    topics: list[TopicFigures]
    is_draining: bool
    started_at: int
    """The same as long as it is the same process."""

    @property
    def pending_count(self) -> int:
        """Messages that somebody still has to finish, whether or not a channel has them yet."""
        return sum(
            topic.depth + sum(channel.pending_count for channel in topic.channels)
            for topic in self.topics
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment; `taken_at` is in seconds of the monotonic clock."""

    taken_at: float
    nodes: list[NodeStats]
    failures: list[HttpRequestError]


class Cluster:
    """The nsqds at these addresses, and those that the nsqlookupds know."""

    def __init__(
        self,
        http: HttpClient,
        *,
        nsqds: Sequence[str] = (),
        lookupds: Sequence[str] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Addresses are of HTTP: `host:port`, or URLs. `headers` go with every request."""
        self._http = http
        self._nsqds = list(dict.fromkeys(nsqds))
        self._lookupds = list(dict.fromkeys(lookupds))
        self._headers = headers

    async def snapshot(self, topic: str = "", channel: str = "") -> Snapshot:
        """Asks all at once. Raises HttpRequestError if nobody answers.

        With a topic, only nodes that may have it are asked, and only for its figures.
        """
        addresses, failures = await self.addresses(topic)
        args = {"format": "json", "include_clients": "false", "include_mem": "false"}
        query = urlencode(args | _named(topic=topic, channel=channel))
        taken_at = time.monotonic()
        answers = await asyncio.gather(*(self._node(address, query) for address in addresses))
        nodes, silent = _parted(answers)
        if silent and not nodes:
            raise silent[0]
        return Snapshot(taken_at, nodes, [*failures, *silent])

    async def addresses(self, topic: str = "") -> tuple[list[str], list[HttpRequestError]]:
        """The nsqds there are now, and which nsqlookupds could not tell. With a topic, of those
        that nsqlookupds know only those that have it. Raises HttpRequestError if none could tell.
        """
        path = f"/lookup?topic={quote(topic)}" if topic else "/nodes"
        answers = await asyncio.gather(*(self._found(each, path) for each in self._lookupds))
        found, failures = _parted(answers)
        if failures and not found and not self._nsqds:
            raise failures[0]
        listed = sorted({address for addresses in found for address in addresses})
        return list(dict.fromkeys([*self._nsqds, *listed])), failures

    async def _node(self, address: str, query: str) -> NodeStats | HttpRequestError:
        url = f"{base_url(address)}/stats?{query}"
        try:
            stats = await self._http.get_json(url, _Stats, headers=self._headers)
        except HttpRequestError as failure:
            return _about_tokens(failure)
        return NodeStats(address, stats.topics or [], stats.draining, stats.start_time)

    async def _found(self, lookupd: str, path: str) -> list[str] | HttpRequestError:
        try:
            answer = await self._http.get_json(base_url(lookupd) + path, _Producers)
        except HttpRequestError as failure:
            is_unknown_topic = failure.status == 404 and "TOPIC_NOT_FOUND" in failure.reason
            return [] if is_unknown_topic else failure
        return [_http_address(producer) for producer in answer.producers or []]


def base_url(address: str) -> str:
    """The URL that paths are added to, of `host:port` or of a URL."""
    return address.rstrip("/") if "://" in address else f"http://{address}"


def _named(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _http_address(producer: _Producer) -> str:
    host = producer.broadcast_address
    return f"[{host}]:{producer.http_port}" if ":" in host else f"{host}:{producer.http_port}"


def _about_tokens(failure: HttpRequestError) -> HttpRequestError:
    """The same, in words if it is a matter of tokens."""
    if failure.status == 401:
        return HttpRequestError(failure.url, "a token is needed", status=401)
    if failure.status == 403 and "FORBIDDEN" in failure.reason:
        return HttpRequestError(failure.url, "the token does not allow that", status=403)
    return failure


def _parted(answers: Sequence[T | HttpRequestError]) -> tuple[list[T], list[HttpRequestError]]:
    good = [each for each in answers if not isinstance(each, HttpRequestError)]
    return good, [each for each in answers if isinstance(each, HttpRequestError)]
