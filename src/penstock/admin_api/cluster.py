"""A cluster: its nsqds, found directly or through nsqlookupd, and their stats.

    cluster = Cluster(http, nsqds=("127.0.0.1:4151",))
    snapshot = await cluster.snapshot()

    query = cluster.new_query()
    nodes = await query.nodes()
    stats = await query.stats(nodes)
    ... query.warning

All daemons are asked at the same time. A daemon that fails is a failure beside the responses of the
others; if all daemons fail, an error is raised.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from penstock.admin_api.lookupd_api import registered_nodes
from penstock.admin_api.models import (
    ChannelsResponse,
    InfoResponse,
    LookupResponse,
    NodesResponse,
    RegisteredNode,
    StatsResponse,
    TopicLogResponse,
    TopicsResponse,
    TopicSummary,
)
from penstock.admin_api.nsqd_api import NsqdApi, api_url, non_empty
from penstock.common.addresses import join_address
from penstock.common.errors import Error, HttpRequestError
from penstock.net.http_client.client import HttpClient
from penstock.replication.status import ReplicationStatus

__all__ = [
    "Cluster",
    "ClusterQuery",
    "ClusterStats",
    "Node",
    "NodeStats",
    "UpstreamError",
    "parse_version",
    "warning_text",
]

T = TypeVar("T")

# A node may be replaced by one of another version, so the probe is repeated after this time.
PENSTOCK_CACHE_SECONDS = 60.0

_WITHOUT_CLIENTS = {"format": "json", "include_clients": "false", "include_mem": "false"}
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


class UpstreamError(Error):
    """Every daemon that was asked failed. `what` is nsqd or nsqlookupd."""

    def __init__(self, what: str, failures: Sequence[HttpRequestError]) -> None:
        super().__init__(what, failures)
        self.what = what
        self.failures = failures

    def __str__(self) -> str:
        return f"failed to query any {self.what}: " + "\n".join(map(str, self.failures))


class Node(msgspec.Struct, kw_only=True):
    """An nsqd, with the information of all nsqlookupds that know it."""

    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    remote_address: str = ""
    remote_addresses: list[str] = []
    topics: list[tuple[str, bool]] = []  # with whether the node is tombstoned for the topic
    is_draining: bool = False
    is_out_of_date: bool = False
    configured_address: str = ""  # HTTP address in the configuration; empty if nsqlookupd gave it

    @property
    def address(self) -> str:
        """The HTTP address, which identifies the node. A configured address comes first: the
        broadcast address may not be reachable from here."""
        return self.configured_address or join_address(self.broadcast_address, self.http_port)

    def has_address(self, address: str) -> bool:
        return address in (self.address, join_address(self.broadcast_address, self.http_port))

    @property
    def tcp_address(self) -> str:
        return join_address(self.broadcast_address, self.tcp_port)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The stats of one nsqd."""

    node: Node
    stats: StatsResponse

    @property
    def address(self) -> str:
        return self.node.address

    @property
    def topics(self) -> Sequence[TopicSummary]:
        return self.stats.topics or ()

    @property
    def is_draining(self) -> bool:
        return self.stats.draining

    @property
    def started_at(self) -> int:
        """Start time of the process: changes when nsqd restarts."""
        return self.stats.start_time

    @property
    def pending_count(self) -> int:
        """Unfinished messages, including those that no channel has yet."""
        return sum(
            topic.depth + sum(channel.pending_count for channel in topic.channels)
            for topic in self.topics
        )


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """The stats of all nsqds at one moment; `taken_at` is in seconds of the monotonic clock."""

    taken_at: float
    nodes: list[NodeStats]
    failures: list[HttpRequestError]


@dataclass(slots=True)
class Cluster:
    """The HTTP addresses of nsqds and nsqlookupds, as `host:port` or URLs, and how to ask them.
    `headers` go with every request to an nsqd."""

    http: HttpClient
    lookupds: Sequence[str] = ()
    nsqds: Sequence[str] = ()
    headers: Sequence[tuple[str, str]] = ()
    _penstock_cache: dict[str, tuple[bool, float]] = field(
        init=False, repr=False, default_factory=dict
    )

    def nsqd(self, address: str) -> NsqdApi:
        """Client of one nsqd."""
        return NsqdApi(self.http, address, self.headers)

    def only(self, nsqds: Sequence[str]) -> "Cluster":
        """A cluster of these nsqds, without nsqlookupds."""
        return replace(self, nsqds=nsqds, lookupds=())

    def new_query(self) -> "ClusterQuery":
        """A query that has sent no requests yet."""
        return ClusterQuery(self)

    async def snapshot(self, topic: str = "", channel: str = "") -> ClusterStats:
        """Stats of the configured nsqds and of those that nsqlookupds know. Raises
        HttpRequestError if all nsqds fail.

        With a topic, only nsqds that may have it are asked, and only for its stats.
        """
        addresses, failures = await self.addresses(topic)
        args = _WITHOUT_CLIENTS | non_empty(topic=topic, channel=channel)
        taken_at = time.monotonic()
        answers, failed = await _ask_all(
            addresses, lambda each: self.get_nsqd(each, "/stats", args, StatsResponse)
        )
        if failed and not answers:
            raise _with_token_hint(failed[0])
        nodes = [NodeStats(Node(configured_address=at), stats) for at, stats in answers]
        return ClusterStats(taken_at, nodes, [*failures, *map(_with_token_hint, failed)])

    async def addresses(self, topic: str = "") -> tuple[list[str], list[HttpRequestError]]:
        """HTTP addresses of the nsqds, and the failures of nsqlookupds. With a topic, nsqlookupds
        are asked only for the nsqds that have it. Raises HttpRequestError if there is no configured
        nsqd and all nsqlookupds fail.
        """

        async def ask(lookupd: str) -> list[RegisteredNode]:
            path, args = ("/lookup", {"topic": topic}) if topic else ("/nodes", {})
            url = api_url(lookupd, path, args)
            return registered_nodes(url, await self.http.ask("GET", url))

        answers, failures = await _ask_all(dict.fromkeys(self.lookupds), ask)
        if failures and not answers and not self.nsqds:
            raise failures[0]
        addresses = sorted({node.http_address for _, nodes in answers for node in nodes})
        return list(dict.fromkeys([*self.nsqds, *addresses])), failures

    async def penstock_nsqds(self, addresses: Iterable[str]) -> list[str]:
        """The nsqds among these that run Penstock. An nsqd that fails is left out."""
        addresses = list(addresses)
        answers = await asyncio.gather(*map(self._is_penstock, addresses))
        return [each for each, is_penstock in zip(addresses, answers, strict=True) if is_penstock]

    async def topic_logs(self, addresses: Iterable[str], topic: str) -> dict[str, TopicLogResponse]:
        """The topic's log on each nsqd. An nsqd that fails is left out."""
        answers, _ = await _ask_all(addresses, lambda each: self.nsqd(each).topic_log(topic))
        return dict(answers)

    async def replication(self, addresses: Iterable[str]) -> dict[str, ReplicationStatus]:
        """Replication status by address, of those nsqds that are members of a replicated node. An
        nsqd that fails is left out."""
        answers, _ = await _ask_all(
            await self.penstock_nsqds(addresses),
            lambda each: self.get_nsqd(each, "/replication", {}, ReplicationStatus),
        )
        return dict(answers)

    def get_nsqd(
        self, address: str, path: str, args: Mapping[str, str], type: type[T]
    ) -> Awaitable[T]:
        """The decoded response of an nsqd. Raises HttpRequestError when awaited."""
        return self.http.get_json(api_url(address, path, args), type, headers=self.headers)

    def get_lookupd(
        self, address: str, path: str, args: Mapping[str, str], type: type[T]
    ) -> Awaitable[T]:
        """The decoded response of an nsqlookupd. Raises HttpRequestError when awaited."""
        return self.http.get_json(api_url(address, path, args), type)

    async def _is_penstock(self, address: str) -> bool:
        is_penstock, expires_at = self._penstock_cache.get(address, (False, 0.0))
        if time.monotonic() < expires_at:
            return is_penstock
        try:
            is_penstock = await self.nsqd(address).is_penstock()
        except HttpRequestError:
            return False  # Not cached: the node may be back soon.
        self._penstock_cache[address] = is_penstock, time.monotonic() + PENSTOCK_CACHE_SECONDS
        return is_penstock


class ClusterQuery:
    """The requests to a cluster that serve one purpose, such as one page, and their failures.

    If nsqlookupds are configured, they name the nsqds; otherwise the configured nsqds are used. A
    daemon that timed out is not asked again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.failures: list[HttpRequestError] = []
        self._timeouts: dict[str, HttpRequestError] = {}
        self.was_not_found = False
        """Whether a daemon replied 404 to the last request, and none replied with success."""

    @property
    def warning(self) -> str:
        """The failures in nsqadmin's wording; empty if there are none."""
        return warning_text(self.failures)

    # Names.

    async def topics(self) -> list[str]:
        """Names of all topics, sorted. Raises UpstreamError."""
        if self._cluster.lookupds:
            answers = await self._get_lookupds("/topics", {}, TopicsResponse)
            return sorted({name for _, answer in answers for name in answer.topics or ()})
        stats = await self._get_nsqds(
            self._cluster.nsqds, "/stats", _WITHOUT_CLIENTS, StatsResponse
        )
        return sorted({topic.topic_name for _, each in stats for topic in each.topics or ()})

    async def channels(self, topic: str) -> list[str]:
        """Names of the channels that nsqlookupds know of a topic, sorted. Raises UpstreamError."""
        answers = await self._get_lookupds("/channels", {"topic": topic}, ChannelsResponse)
        return sorted({name for _, answer in answers for name in answer.channels or ()})

    # Nodes.

    async def nodes(self) -> list[Node]:
        """All nsqds, sorted by host name. Raises UpstreamError."""
        if self._cluster.lookupds:
            return _merge_registrations(await self._get_lookupds("/nodes", {}, NodesResponse))
        return _by_host(await self._nodes_at(self._cluster.nsqds))

    async def nodes_with_topic(self, topic: str) -> list[Node] | None:
        """The nsqds that have a topic; None if no daemon knows it. Raises UpstreamError."""
        if self._cluster.lookupds:
            answers = await self._get_lookupds(
                "/lookup", {"topic": topic}, LookupResponse, allow_not_found=True
            )
            return None if self.was_not_found else _distinct_nodes(answers)
        args = _WITHOUT_CLIENTS | {"topic": topic}
        stats = await self._get_nsqds(self._cluster.nsqds, "/stats", args, StatsResponse)
        having = [address for address, each in stats if each.has_topic(topic)]
        return _by_host(await self._nodes_at(having)) if having else None

    async def node(self, address: str) -> Node | None:
        """The nsqd with this HTTP address, or None. Raises UpstreamError."""
        return next((node for node in await self.nodes() if node.has_address(address)), None)

    async def stats(
        self, nodes: Sequence[Node], topic: str = "", channel: str = "", *, clients: bool = False
    ) -> list[NodeStats]:
        """Stats of these nodes, or of one topic or channel on them, sorted by host name. Raises
        UpstreamError."""
        args = {"format": "json", "include_mem": "false"}
        if not clients:
            args["include_clients"] = "false"
        args |= non_empty(topic=topic, channel=channel)
        by_address = {node.address: node for node in nodes}
        answers = await self._get_nsqds(list(by_address), "/stats", args, StatsResponse)
        found = [NodeStats(by_address[address], stats) for address, stats in answers]
        return sorted(found, key=lambda each: each.node.hostname)

    async def available_stats(self, nodes: Sequence[Node]) -> list[NodeStats]:
        """Stats of these nodes. If all of them fail, the list is empty and `failures` has the
        reasons."""
        try:
            return await self.stats(nodes)
        except UpstreamError as error:
            self.failures += error.failures
            return []

    # Changes.

    async def post(
        self, addresses: Iterable[str], path: str, args: Mapping[str, str], *, what: str = "nsqd"
    ) -> int:
        """Sends the same POST to all addresses and returns the number of successes. Raises
        UpstreamError if all fail for a reason other than 404. See `was_not_found`."""
        headers = self._cluster.headers if what == "nsqd" else ()

        def ask(address: str) -> Awaitable[bytes]:
            return self._cluster.http.call("POST", api_url(address, path, args), headers=headers)

        return len(await self._collect(list(addresses), ask, what, allow_not_found=True))

    # Internals.

    async def _get_lookupds(
        self, path: str, args: Mapping[str, str], type: type[T], *, allow_not_found: bool = False
    ) -> list[tuple[str, T]]:
        def ask(address: str) -> Awaitable[T]:
            return self._unless_timed_out(
                address, lambda: self._cluster.get_lookupd(address, path, args, type)
            )

        lookupds = self._cluster.lookupds
        return await self._collect(lookupds, ask, "nsqlookupd", allow_not_found=allow_not_found)

    async def _get_nsqds(
        self, addresses: Sequence[str], path: str, args: Mapping[str, str], type: type[T]
    ) -> list[tuple[str, T]]:
        def ask(address: str) -> Awaitable[T]:
            return self._unless_timed_out(
                address, lambda: self._cluster.get_nsqd(address, path, args, type)
            )

        return await self._collect(addresses, ask, "nsqd")

    async def _unless_timed_out(self, address: str, ask: Callable[[], Awaitable[T]]) -> T:
        if address in self._timeouts:
            raise self._timeouts[address]
        try:
            return await ask()
        except HttpRequestError as failure:
            if failure.timed_out:
                self._timeouts[address] = failure
            raise

    async def _collect(
        self,
        addresses: Sequence[str],
        ask: Callable[[str], Awaitable[T]],
        what: str,
        *,
        allow_not_found: bool = False,
    ) -> list[tuple[str, T]]:
        """Returns the responses with their addresses. Raises UpstreamError.

        With `allow_not_found`, a 404 is no failure: nsqds have different topics, and an nsqlookupd
        that has just started knows few.
        """
        answers, failures = await _ask_all(addresses, ask)
        not_found = [each for each in failures if allow_not_found and each.status == 404]
        failed = [each for each in failures if each not in not_found]
        self.was_not_found = bool(not_found) and not answers
        if failed and not answers and not not_found:
            raise UpstreamError(what, failed)
        self.failures += [each for each in failed if each not in self.failures]
        return answers

    async def _nodes_at(self, addresses: Sequence[str]) -> list[Node]:
        infos = await self._get_nsqds(addresses, "/info", {}, InfoResponse)
        stats = dict(await self._get_nsqds(addresses, "/stats", _WITHOUT_CLIENTS, StatsResponse))
        nodes = [
            _configured_node(info, address, stats[address])
            for address, info in infos
            if address in stats
        ]
        return _mark_out_of_date(nodes)


def warning_text(failures: Sequence[HttpRequestError]) -> str:
    """The failures in nsqadmin's wording; empty if there are none."""
    return "WARNING: " + "; ".join(map(str, failures)) if failures else ""


def parse_version(text: str) -> tuple[int, int, int, bool, str]:
    """A value that orders versions; text that is no version comes first. A version with a suffix,
    such as 1.3.0-alpha, comes before the one without."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return 0, 0, 0, True, ""
    major, minor, patch, suffix = match[1], match[2], match[3], match[4] or ""
    return int(major), int(minor), int(patch), not suffix, suffix


async def _ask_all(
    addresses: Iterable[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[list[tuple[str, T]], list[HttpRequestError]]:
    """Asks all addresses at the same time; returns responses with their addresses, and failures."""

    async def outcome(address: str) -> tuple[str, T] | HttpRequestError:
        try:
            return address, await ask(address)
        except HttpRequestError as failure:
            return failure

    outcomes = await asyncio.gather(*map(outcome, addresses))
    answers = [each for each in outcomes if not isinstance(each, HttpRequestError)]
    return answers, [each for each in outcomes if isinstance(each, HttpRequestError)]


def _with_token_hint(failure: HttpRequestError) -> HttpRequestError:
    """Names the token as the reason if nsqd refuses the request without one."""
    if failure.status == 401:
        return HttpRequestError(failure.url, "a token is needed", status=401)
    if failure.status == 403 and "FORBIDDEN" in failure.reason:
        return HttpRequestError(failure.url, "the token does not allow that", status=403)
    return failure


def _merge_registrations(answers: Iterable[tuple[str, NodesResponse]]) -> list[Node]:
    """Each nsqd once, with its remote address at every nsqlookupd."""
    nodes: dict[str, Node] = {}
    for lookupd, answer in answers:
        for registered in answer.producers or ():
            node = nodes.setdefault(registered.tcp_address, _registered_node(registered))
            node.remote_addresses.append(f"{lookupd}/{registered.remote_address or 'N/A'}")
            node.is_draining = node.is_draining or registered.draining
    return _by_host(_mark_out_of_date(list(nodes.values())))


def _distinct_nodes(answers: Iterable[tuple[str, LookupResponse]]) -> list[Node]:
    nodes: dict[str, Node] = {}
    for _, answer in answers:
        for registered in answer.producers or ():
            nodes.setdefault(registered.http_address, _registered_node(registered))
    return _by_host(nodes.values())


def _registered_node(registered: RegisteredNode) -> Node:
    topics = registered.topics or []
    tombstones = registered.tombstones or []
    padded = tombstones + [False] * (len(topics) - len(tombstones))
    return Node(
        hostname=registered.hostname,
        broadcast_address=registered.broadcast_address,
        tcp_port=registered.tcp_port,
        http_port=registered.http_port,
        version=registered.version,
        topology_zone=registered.topology_zone,
        topology_region=registered.topology_region,
        remote_address=registered.remote_address,
        remote_addresses=[],
        topics=sorted(zip(topics, padded, strict=False)),
        is_draining=registered.draining,
    )


def _configured_node(info: InfoResponse, address: str, stats: StatsResponse) -> Node:
    host, _, port = address.removeprefix("https://").rpartition(":")
    return Node(
        hostname=info.hostname or host.strip("[]"),
        broadcast_address=info.broadcast_address or host.strip("[]"),
        tcp_port=info.tcp_port,
        http_port=info.http_port or int(port),
        configured_address=address,
        version=info.version,
        topology_zone=info.topology_zone,
        topology_region=info.topology_region,
        topics=[(topic.topic_name, False) for topic in stats.topics or ()],
        is_draining=info.draining,
    )


def _mark_out_of_date(nodes: list[Node]) -> list[Node]:
    newest = max((parse_version(node.version) for node in nodes), default=None)
    for node in nodes:
        node.is_out_of_date = parse_version(node.version) != newest
    return nodes


def _by_host(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: (node.hostname, node.address))
