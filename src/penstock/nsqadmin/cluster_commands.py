"""What an operator orders, carried out on every daemon that it concerns.

Each returns the inquiry that it was, whose `warning` says what failed of it. A name that nobody
knows raises HttpError 404, and `UpstreamFailed` is raised if nobody did as told.
"""

from collections.abc import Iterable

from penstock.net.http_server import HttpError
from penstock.nsqadmin.cluster_client import Cluster, Inquiry
from penstock.nsqadmin.schemas import Node

__all__ = ["Orders"]


class Orders:
    """The verbs of NSQ's nsqadmin."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, topic: str, channel: str = "") -> Inquiry:
        """A topic and, if named, a channel of it. Where there are nsqlookupds it is told to them,
        and the channel to the nsqds that have the topic; otherwise to all nsqds."""
        inquiry = self._cluster.inquire()
        names = _names(topic, channel)
        await self._tell_lookupds(inquiry, "/topic/create", {"topic": topic})
        if channel:
            await self._tell_lookupds(inquiry, "/channel/create", names)
        if self._cluster.lookupds:
            nodes = await inquiry.nodes_of(topic) if channel else []
        else:
            nodes = await inquiry.nodes()
            await inquiry.post(_addresses(nodes), "/topic/create", {"topic": topic})
        if channel:
            await inquiry.post(_addresses(nodes or ()), "/channel/create", names)
        return inquiry

    async def delete(self, topic: str, channel: str = "") -> Inquiry:
        """A topic with all its channels, or one channel."""
        inquiry = self._cluster.inquire()
        path, names = f"/{_kind(channel)}/delete", _names(topic, channel)
        nodes = await self._nodes_of(inquiry, topic)  # before nsqlookupds forget who has it
        told = await self._tell_lookupds(inquiry, path, names)
        done = await inquiry.post(_addresses(nodes), path, names)
        if channel and not told and not done:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return inquiry

    async def act(self, action: str, topic: str, channel: str = "") -> Inquiry:
        """Pauses, unpauses or empties."""
        inquiry = self._cluster.inquire()
        nodes = await self._nodes_of(inquiry, topic)
        path = f"/{_kind(channel)}/{action}"
        await inquiry.post(_addresses(nodes), path, _names(topic, channel))
        if inquiry.was_unknown or not nodes:
            raise HttpError(404, f"{_kind(channel).upper()}_NOT_FOUND")
        return inquiry

    async def tombstone(self, topic: str, address: str) -> Inquiry:
        """Takes a node out of the lookups of a topic, and the topic from the node."""
        inquiry = self._cluster.inquire()
        node = await inquiry.node(address)
        if node is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        args = {"topic": topic, "node": address}
        await self._tell_lookupds(inquiry, "/topic/tombstone", args)
        await inquiry.post([node.address], "/topic/delete", {"topic": topic})
        return inquiry

    async def _tell_lookupds(self, inquiry: Inquiry, path: str, args: dict[str, str]) -> int:
        return await inquiry.post(self._cluster.lookupds, path, args, what="nsqlookupd")

    async def _nodes_of(self, inquiry: Inquiry, topic: str) -> list[Node]:
        nodes = await inquiry.nodes_of(topic)
        if nodes is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return nodes


def _kind(channel: str) -> str:
    return "channel" if channel else "topic"


def _names(topic: str, channel: str) -> dict[str, str]:
    return {"topic": topic} | ({"channel": channel} if channel else {})


def _addresses(nodes: Iterable[Node]) -> list[str]:
    return [node.address for node in nodes]
