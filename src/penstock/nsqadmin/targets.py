"""The targets of requests: names in the arguments, and the nodes that they mean.

Unknown topics, channels and nodes raise HttpError 404.
"""

import time
from collections.abc import Mapping
from typing import Any

from penstock.admin_api.cluster import ClusterQuery, Node, NodeStats
from penstock.net.http_server import HttpError
from penstock.nsqadmin.aggregate import aggregate_channel

__all__ = ["Args", "channel_stats", "node_at", "nodes_with_topic", "target_of"]

Args = Mapping[str, str]


def target_of(args: Args) -> tuple[str, str, str]:
    """Topic, channel and node that the arguments name; empty where they name none."""
    topic, channel, node = (args.get(name, "").strip() for name in ("topic", "channel", "node"))
    return topic, channel, node


async def nodes_with_topic(query: ClusterQuery, topic: str) -> list[Node]:
    """The nodes that have a topic. Raises HttpError 404 if no daemon knows the topic."""
    nodes = await query.nodes_with_topic(topic)
    if nodes is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return nodes


async def channel_stats(
    query: ClusterQuery, topic: str, channel: str
) -> tuple[list[Node], list[NodeStats], dict[str, Any]]:
    """The nodes that have a topic, their stats of a channel, and the sum of these stats. Raises
    HttpError 404 if no daemon knows the topic, or no node has the channel."""
    nodes = await nodes_with_topic(query, topic)
    answers = await query.stats(nodes, topic, channel, clients=True)
    total = aggregate_channel(topic, channel, answers, time.time_ns())
    if total is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return nodes, answers, total


async def node_at(query: ClusterQuery, address: str) -> Node:
    """The node with this HTTP address. Raises HttpError 404 if the cluster has no such node."""
    node = await query.node(address)
    if node is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    return node
