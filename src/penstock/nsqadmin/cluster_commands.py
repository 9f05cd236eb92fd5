"""What an operator orders, carried out on every daemon that it concerns.

Each returns the query that it was, whose `warning` says what failed of it. A name that nobody
knows raises HttpError 404, and `UpstreamError` is raised if nobody did as told.
"""

from collections.abc import Iterable

from penstock.admin_api.cluster import Cluster, ClusterQuery, Node
from penstock.net.http_server import HttpError

__all__ = ["Orders"]


class Orders:
    """The verbs of NSQ's nsqadmin."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, topic: str, channel: str = "") -> ClusterQuery:
        """A topic and, if named, a channel of it. Where there are nsqlookupds it is told to them,
        and the channel to the nsqds that have the topic; otherwise to all nsqds."""
        query = self._cluster.new_query()
        names = _names(topic, channel)
        await self._tell_lookupds(query, "/topic/create", {"topic": topic})
        if channel:
            await self._tell_lookupds(query, "/channel/create", names)
        if self._cluster.lookupds:
            nodes = await query.nodes_with_topic(topic) if channel else []
        else:
            nodes = await query.nodes()
            await query.post(_addresses(nodes), "/topic/create", {"topic": topic})
        if channel:
            await query.post(_addresses(nodes or ()), "/channel/create", names)
        return query

    async def delete(self, topic: str, channel: str = "") -> ClusterQuery:
        """A topic with all its channels, or one channel."""
        query = self._cluster.new_query()
        path, names = f"/{_kind(channel)}/delete", _names(topic, channel)
        nodes = await self._nodes_of(query, topic)  # before nsqlookupds forget who has it
        told = await self._tell_lookupds(query, path, names)
        done = await query.post(_addresses(nodes), path, names)
        if channel and not told and not done:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return query

    async def act(self, action: str, topic: str, channel: str = "") -> ClusterQuery:
        """Pauses, unpauses or empties."""
        query = self._cluster.new_query()
        nodes = await self._nodes_of(query, topic)
        path = f"/{_kind(channel)}/{action}"
        await query.post(_addresses(nodes), path, _names(topic, channel))
        if query.was_not_found or not nodes:
            raise HttpError(404, f"{_kind(channel).upper()}_NOT_FOUND")
        return query

    async def tombstone(self, topic: str, address: str) -> ClusterQuery:
        """Takes a node out of the lookups of a topic, and the topic from the node."""
        query = self._cluster.new_query()
        node = await query.node(address)
        if node is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        args = {"topic": topic, "node": address}
        await self._tell_lookupds(query, "/topic/tombstone", args)
        await query.post([node.address], "/topic/delete", {"topic": topic})
        return query

    async def _tell_lookupds(self, query: ClusterQuery, path: str, args: dict[str, str]) -> int:
        return await query.post(self._cluster.lookupds, path, args, what="nsqlookupd")

    async def _nodes_of(self, query: ClusterQuery, topic: str) -> list[Node]:
        nodes = await query.nodes_with_topic(topic)
        if nodes is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return nodes


def _kind(channel: str) -> str:
    return "channel" if channel else "topic"


def _names(topic: str, channel: str) -> dict[str, str]:
    return {"topic": topic} | ({"channel": channel} if channel else {})


def _addresses(nodes: Iterable[Node]) -> list[str]:
    return [node.address for node in nodes]
