"""What one request of ours asks of the cluster, and what failed of it.

    inquiry = cluster.inquire()
    nodes = await inquiry.nodes()
    stats = await inquiry.stats(nodes)
    ... inquiry.warning

Every daemon is asked at once. Those that do not answer are remembered as failures, for the warning
that goes with what the others said; if none answers there is nothing to show, and `UpstreamFailed`
is raised. A name that nobody knows is an answer, and no failure. One that did not answer in time is
not asked the next question: whoever has many shall not wait for it with each.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.admin_api.nsqd_api import url_of
from penstock.common.errors import Error, HttpRequestError
from penstock.net.http_client.client import HttpClient
from penstock.nsqadmin.schemas import Node, NodeInfo, NodeStats, Producer
from penstock.nsqadmin.versions import parse_version

__all__ = ["Cluster", "Inquiry", "NodeAnswer", "UpstreamFailed", "warning_of"]

T = TypeVar("T")
A = TypeVar("A")


class UpstreamFailed(Error):
    """Nobody who could have answered did."""

    def __init__(self, what: str, failures: Sequence[HttpRequestError]) -> None:
        super().__init__(what, failures)
        self.what = what
        self.failures = failures

    def __str__(self) -> str:
        return f"failed to query any {self.what}: " + "\n".join(map(str, self.failures))


@dataclass(slots=True)
class Cluster:
    """Where the daemons are, and how they are asked."""

    http: HttpClient
    lookupds: tuple[str, ...] = ()
    nsqds: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()

    def inquire(self) -> "Inquiry":
        """A fresh one: nothing has been asked, nothing has failed."""
        return Inquiry(self)


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What one node says of what it has."""

    node: Node
    stats: NodeStats


class _Names(msgspec.Struct):
    topics: list[str] | None = None
    channels: list[str] | None = None


class _Producers(msgspec.Struct):
    producers: list[Producer] | None = None


class Inquiry:
    """See the module's docstring."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.failures: list[HttpRequestError] = []
        self._silent: dict[str, HttpRequestError] = {}
        self.was_unknown = False
        """Whether the last question was about something that nobody knows."""

    @property
    def warning(self) -> str:
        """What has failed, as the API words it; empty if nothing has."""
        return warning_of(self.failures)

    # Names.

    async def topics(self) -> list[str]:
        """All topics, by name. Raises UpstreamFailed."""
        if self._cluster.lookupds:
            answers = await self._of_lookupds("/topics", {}, _Names)
            return sorted({name for _, answer in answers for name in answer.topics or ()})
        stats = await self._of_nsqds(self._cluster.nsqds, "/stats", _BRIEF, NodeStats)
        return sorted({topic.topic_name for _, each in stats for topic in each.topics or ()})

    async def channels(self, topic: str) -> list[str]:
        """The channels that nsqlookupds know of a topic, by name. Raises UpstreamFailed."""
        answers = await self._of_lookupds("/channels", {"topic": topic}, _Names)
        return sorted({name for _, answer in answers for name in answer.channels or ()})

    # Nodes.

    async def nodes(self) -> list[Node]:
        """All nsqds, by host name. Raises UpstreamFailed."""
        if self._cluster.lookupds:
            answers = await self._of_lookupds("/nodes", {}, _Producers)
            return _merged(answers)
        return _by_host(await self._asked_directly(self._cluster.nsqds))

    async def nodes_of(self, topic: str) -> list[Node] | None:
        """The nsqds that have a topic; None if nobody knows it. Raises UpstreamFailed."""
        if self._cluster.lookupds:
            answers = await self._of_lookupds(
                "/lookup", {"topic": topic}, _Producers, may_be_unknown=True
            )
            return None if self.was_unknown else _distinct(answers)
        query = _BRIEF | {"topic": topic}
        stats = await self._of_nsqds(self._cluster.nsqds, "/stats", query, NodeStats)
        having = [address for address, each in stats if _has_topic(each, topic)]
        return _by_host(await self._asked_directly(having)) if having else None

    async def node(self, address: str) -> Node | None:
        """The nsqd of this HTTP address, or None. Raises UpstreamFailed."""
        return next((node for node in await self.nodes() if node.is_at(address)), None)

    async def stats(
        self, nodes: Sequence[Node], topic: str = "", channel: str = "", *, clients: bool = False
    ) -> list[NodeAnswer]:
        """What these nodes say of all they have, or of one topic or channel, by host name. Raises
        UpstreamFailed."""
        query = {"format": "json", "include_mem": "false"}
        if not clients:
            query["include_clients"] = "false"
        query |= {"topic": topic} if topic else {}
        query |= {"channel": channel} if channel else {}
        by_address = {node.address: node for node in nodes}
        answers = await self._of_nsqds(list(by_address), "/stats", query, NodeStats)
        found = [NodeAnswer(by_address[address], stats) for address, stats in answers]
        return sorted(found, key=lambda answer: answer.node.hostname)

    async def stats_if_any(self, nodes: Sequence[Node]) -> list[NodeAnswer]:
        """What these nodes say of all they have. That none answers is a failure like any other:
        who they are is known all the same."""
        try:
            return await self.stats(nodes)
        except UpstreamFailed as nobody:
            self.failures += nobody.failures
            return []

    # Changing things.

    async def post(
        self, addresses: Iterable[str], path: str, args: Mapping[str, str], *, what: str = "nsqd"
    ) -> int:
        """Asks for the same of all of these; how many did it. Raises UpstreamFailed if there are
        any and none did; `was_unknown` says whether none of them knows what is named."""
        headers = self._cluster.headers if what == "nsqd" else ()

        def ask(address: str) -> Awaitable[bytes]:
            return self._cluster.http.call("POST", url_of(address, path, args), headers=headers)

        return len(await self._ask_all(list(addresses), ask, what, may_be_unknown=True))

    # Within.

    async def _of_lookupds(
        self, path: str, args: Mapping[str, str], type: type[A], *, may_be_unknown: bool = False
    ) -> list[tuple[str, A]]:
        def ask(address: str) -> Awaitable[A]:
            return self._unless_silent(address, url_of(address, path, args), type)

        lookupds = self._cluster.lookupds
        return await self._ask_all(lookupds, ask, "nsqlookupd", may_be_unknown=may_be_unknown)

    async def _of_nsqds(
        self, addresses: Sequence[str], path: str, args: Mapping[str, str], type: type[A]
    ) -> list[tuple[str, A]]:
        def ask(address: str) -> Awaitable[A]:
            url = url_of(address, path, args)
            return self._unless_silent(address, url, type, self._cluster.headers)

        return await self._ask_all(addresses, ask, "nsqd")

    async def _unless_silent(
        self, address: str, url: str, type: type[A], headers: Sequence[tuple[str, str]] = ()
    ) -> A:
        if address in self._silent:
            raise self._silent[address]
        try:
            return await self._cluster.http.get_json(url, type, headers=headers)
        except HttpRequestError as failure:
            if failure.timed_out:
                self._silent[address] = failure
            raise

    async def _ask_all(
        self,
        addresses: Sequence[str],
        ask: Callable[[str], Awaitable[A]],
        what: str,
        *,
        may_be_unknown: bool = False,
    ) -> list[tuple[str, A]]:
        """The answers, each with whose it is. Raises UpstreamFailed.

        Where a name may be unknown, those that know it are right: nsqds have different topics, and
        an nsqlookupd that has just started knows little yet.
        """
        answers = await asyncio.gather(*(_outcome(ask, address) for address in addresses))
        paired = list(zip(addresses, answers, strict=True))
        good = [(at, each) for at, each in paired if not isinstance(each, HttpRequestError)]
        bad = [each for _, each in paired if isinstance(each, HttpRequestError)]
        unknown = [each for each in bad if may_be_unknown and each.status == 404]
        failed = [each for each in bad if each not in unknown]
        self.was_unknown = bool(unknown) and not good
        if failed and not good and not unknown:
            raise UpstreamFailed(what, failed)
        self.failures += [each for each in failed if each not in self.failures]
        return good

    async def _asked_directly(self, addresses: Sequence[str]) -> list[Node]:
        infos = await self._of_nsqds(addresses, "/info", {}, NodeInfo)
        stats = dict(await self._of_nsqds(addresses, "/stats", _BRIEF, NodeStats))
        nodes = [
            _node_of(info, address, stats[address]) for address, info in infos if address in stats
        ]
        return _marked_out_of_date(nodes)


def warning_of(failures: Sequence[HttpRequestError]) -> str:
    """As the API words it; empty if there is no failure."""
    return "WARNING: " + "; ".join(map(str, failures)) if failures else ""


_BRIEF = {"format": "json", "include_clients": "false", "include_mem": "false"}


async def _outcome(ask: Callable[[str], Awaitable[T]], address: str) -> T | HttpRequestError:
    try:
        return await ask(address)
    except HttpRequestError as failure:
        return failure


def _has_topic(stats: NodeStats, topic: str) -> bool:
    return any(each.topic_name == topic for each in stats.topics or ())


def _merged(answers: Iterable[tuple[str, _Producers]]) -> list[Node]:
    """Each nsqd once, with the names under which every nsqlookupd knows it."""
    nodes: dict[str, Node] = {}
    for lookupd, answer in answers:
        for producer in answer.producers or ():
            node = _node(producer)
            node = nodes.setdefault(node.tcp_address, node)
            node.remote_addresses.append(f"{lookupd}/{producer.remote_address or 'N/A'}")
            node.is_draining = node.is_draining or producer.draining
    return _by_host(_marked_out_of_date(list(nodes.values())))


def _distinct(answers: Iterable[tuple[str, _Producers]]) -> list[Node]:
    nodes: dict[str, Node] = {}
    for _, answer in answers:
        for producer in answer.producers or ():
            node = _node(producer)
            nodes.setdefault(node.address, node)
    return _by_host(nodes.values())


def _node(producer: Producer) -> Node:
    topics = producer.topics or []
    tombstones = producer.tombstones or []
    padded = tombstones + [False] * (len(topics) - len(tombstones))
    return Node(
        hostname=producer.hostname,
        broadcast_address=producer.broadcast_address,
        tcp_port=producer.tcp_port,
        http_port=producer.http_port,
        version=producer.version,
        topology_zone=producer.topology_zone,
        topology_region=producer.topology_region,
        remote_address=producer.remote_address,
        remote_addresses=[],
        topics=sorted(zip(topics, padded, strict=False)),
        is_draining=producer.draining,
    )


def _node_of(info: NodeInfo, address: str, stats: NodeStats) -> Node:
    """Of an nsqd that was asked directly."""
    host, _, port = address.removeprefix("https://").rpartition(":")
    return Node(
        hostname=info.hostname or host.strip("[]"),
        broadcast_address=info.broadcast_address or host.strip("[]"),
        tcp_port=info.tcp_port,
        http_port=info.http_port or int(port),
        reached_at=address,
        version=info.version,
        topology_zone=info.topology_zone,
        topology_region=info.topology_region,
        topics=[(topic.topic_name, False) for topic in stats.topics or ()],
        is_draining=info.draining,
    )


def _marked_out_of_date(nodes: list[Node]) -> list[Node]:
    newest = max((parse_version(node.version) for node in nodes), default=None)
    for node in nodes:
        node.is_out_of_date = parse_version(node.version) != newest
    return nodes


def _by_host(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: (node.hostname, node.address))
