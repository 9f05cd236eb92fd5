"""What is at stake when something is to be done: the cluster is asked before the operator is.

Changes nothing. What the answers mean in words is in `consequences`.
"""

from collections.abc import Mapping

from penstock.admin_api.cluster import Cluster, ClusterQuery, Node
from penstock.admin_api.seeking import Move, absolute_position
from penstock.common.errors import HttpRequestError
from penstock.net.http_server import HttpError
from penstock.nsqadmin.confirmation_text import (
    Question,
    about_cancel,
    about_channel,
    about_client,
    about_drain,
    about_requeue,
    about_seek,
    about_tombstone,
    about_topic,
)
from penstock.nsqadmin.penstock_api import PenstockApi
from penstock.nsqadmin.views import TopicRow, clients_of, node_rows, topic_rows
from penstock.nsqadmin.watcher import Snapshot, Watcher

__all__ = ["Args", "Questions", "named"]

Args = Mapping[str, str]


class Questions:
    """What is asked of the cluster for the sake of a question."""

    def __init__(self, cluster: Cluster, watcher: Watcher, penstock_api: PenstockApi) -> None:
        self._cluster = cluster
        self._watcher = watcher
        self._penstock_api = penstock_api

    async def about(self, deed: str, args: Args) -> Question | None:
        """None if a place is still to be named."""
        topic, channel, node = named(args)
        match deed:
            case "tombstone":
                row = await self._row(topic, only=node)
                return about_tombstone(topic, node, row.depth)
            case "drain":
                return await self._of_drain(node)
            case "seek":
                if not args.get("to"):
                    return None
                return about_seek(channel, args["to"], await self.moves(args))
            case "cancel":
                return about_cancel(args.get("id", ""), channel)
            case "requeue":
                return about_requeue(args.get("id", ""), channel, args.get("state", ""))
            case "kick":
                return await self._of_kick(args)
            case _:
                row = await self._row(topic)
                if not channel:
                    return about_topic(deed, row)
                if channel not in row.channels:
                    raise HttpError(404, "CHANNEL_NOT_FOUND")
                return about_channel(deed, row.channels[channel])

    async def _of_drain(self, address: str) -> Question:
        query = self._cluster.new_query()
        node = await _node(query, address)
        snapshot = Snapshot(0.0, [], [node], await query.stats([node]))
        return about_drain(node_rows(snapshot, self._watcher.chronicle)[0])

    async def _of_kick(self, args: Args) -> Question:
        topic, channel, address = named(args)
        query = self._cluster.new_query()
        node = await _node(query, address)
        answers = await query.stats([node], topic, channel, clients=True)
        wanted = args.get("client"), args.get("since")
        for client in clients_of(answers, topic, channel):
            if wanted == (client.remote_address, str(client.connect_ts)):
                return about_client(client, channel, address)
        raise HttpRequestError(address, "the client is no longer connected")

    async def _row(self, topic: str, *, only: str = "") -> TopicRow:
        query = self._cluster.new_query()
        nodes = await query.nodes_with_topic(topic)
        if nodes is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        answers = await query.stats(
            [node for node in nodes if not only or node.has_address(only)], topic
        )
        rows = topic_rows(Snapshot(0.0, [topic], nodes, answers), self._watcher.chronicle)
        return next(row for row in rows if row.name == topic)

    async def moves(self, args: Args) -> list[Move]:
        """What moving a channel would do on each node."""
        topic, channel, _ = named(args)
        place = absolute_position(args.get("to", "").strip())
        only = args.get("node", "")
        nodes = [node for node in await self.able_nodes(topic) if not only or node == only]
        return await self._penstock_api.plan_seek(nodes, topic, channel, place)

    async def able_nodes(self, topic: str) -> list[str]:
        """The nodes of a topic that have our extensions."""
        nodes = await self._cluster.new_query().nodes_with_topic(topic)
        able = await self._penstock_api.supporting(node.address for node in nodes or ())
        if not able:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return able


async def _node(query: ClusterQuery, address: str) -> Node:
    node = await query.node(address)
    if node is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    return node


def named(args: Args) -> tuple[str, str, str]:
    """The topic, the channel and the node that are named; empty where none is."""
    topic, channel, node = (args.get(name, "").strip() for name in ("topic", "channel", "node"))
    return topic, channel, node
