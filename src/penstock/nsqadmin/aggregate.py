"""Sums of the nodes' stats per topic and channel, as JSON objects of NSQ's nsqadmin API. Pure.

nsq compat: keys have NSQ's order; `nodes` and `clients` are null rather than empty; counts of
deliveries by zone and region are omitted if zero; percentiles keep the values they were merged
from.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.admin_api.cluster import Node, NodeStats
from penstock.admin_api.models import ChannelSummary, ClientSummary, LatencySummary, TopicSummary
from penstock.common.clock import SECOND_NS

__all__ = [
    "aggregate_channel",
    "aggregate_channels",
    "aggregate_topic",
    "node_json",
    "node_topics",
    "topic_on_node",
]

Json = dict[str, Any]

_SUMMED = ("depth", "memory_depth", "backend_depth", "message_count")
_LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_CHANNEL_SUMMED = (
    "depth",
    "memory_depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
)


def aggregate_topic(topic: str, answers: Sequence[NodeStats], now_ns: int) -> Json:
    """Sum up a topic over all nodes."""
    nodes = [
        topic_on_node(answer.node, stats, now_ns)
        for answer in answers
        for stats in answer.stats.topics or ()
        if stats.topic_name == topic
    ]
    total: Json = {"node": "*" if nodes else "", "hostname": "", "topic_name": topic}
    total |= {key: sum(node[key] for node in nodes) for key in _SUMMED}
    total["delivery_msg_count"] = sum(node["delivery_msg_count"] for node in nodes)
    total |= _localities(nodes)
    total["nodes"] = nodes or None
    total["channels"] = _channels_of(nodes) or None
    total["paused"] = any(node["paused"] for node in nodes)
    latencies = [node["e2e_processing_latency"] for node in nodes]
    total["e2e_processing_latency"] = _merged_latency(latencies, topic, "") if nodes else None
    return total


def aggregate_channel(
    topic: str, channel: str, answers: Sequence[NodeStats], now_ns: int
) -> Json | None:
    """Sum up a channel over all nodes; None if no node has it."""
    for key, total in aggregate_channels(answers, now_ns).items():
        if key == (topic, channel):
            return total
    return None


def aggregate_channels(answers: Sequence[NodeStats], now_ns: int) -> dict[tuple[str, str], Json]:
    """Sum up every channel over all nodes, by topic and channel name."""
    found: dict[tuple[str, str], list[Json]] = {}
    for answer in answers:
        for topic in answer.stats.topics or ():
            for channel in topic.channels:
                key = topic.topic_name, channel.channel_name
                on_node = _channel_on_node(answer.node, topic.topic_name, channel, now_ns)
                found.setdefault(key, []).append(on_node)
    return {key: _merged_channel(nodes) for key, nodes in found.items()}


def node_topics(answer: NodeStats, now_ns: int) -> list[Json]:
    """All topics of one node."""
    return [topic_on_node(answer.node, topic, now_ns) for topic in answer.stats.topics or ()]


def topic_on_node(node: Node, topic: TopicSummary, now_ns: int) -> Json:
    """A topic on one node."""
    channels = [
        _channel_on_node(node, topic.topic_name, channel, now_ns) for channel in topic.channels
    ]
    result: Json = {
        "node": node.address,
        "hostname": node.hostname,
        "topic_name": topic.topic_name,
        "depth": topic.depth,
        "memory_depth": topic.depth - topic.backend_depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "delivery_msg_count": sum(channel.get("delivery_msg_count", 0) for channel in channels),
    }
    result |= _localities(channels)
    result["nodes"] = None
    result["channels"] = channels
    result["paused"] = topic.paused
    result["e2e_processing_latency"] = _latency_json(topic.e2e_processing_latency)
    return result


def node_json(node: Node) -> Json:
    """A node in the response of `/api/nodes`."""
    result: Json = {
        "remote_addresses": node.remote_addresses or None,
        "remote_address": node.remote_address,
        "hostname": node.hostname,
        "broadcast_address": node.broadcast_address,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": node.version,
    }
    if node.topology_zone:
        result["topology_zone"] = node.topology_zone
    if node.topology_region:
        result["topology_region"] = node.topology_region
    topics = [{"topic": topic, "tombstoned": tombstoned} for topic, tombstoned in node.topics]
    result["topics"] = topics or None
    result["out_of_date"] = node.is_out_of_date
    return result


def _channel_on_node(node: Node, topic: str, channel: ChannelSummary, now_ns: int) -> Json:
    result: Json = {
        "node": node.address,
        "hostname": node.hostname,
        "topic_name": topic,
        "channel_name": channel.channel_name,
        "depth": channel.depth,
        "memory_depth": channel.depth - channel.backend_depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "message_count": channel.message_count,
    }
    counts = {key: getattr(channel, key) for key in _LOCALITIES}
    result |= _delivered(counts)
    result["client_count"] = channel.client_count
    result["nodes"] = None
    clients = channel.clients
    result["clients"] = (
        None if clients is None else [_client_json(node, client, now_ns) for client in clients]
    )
    result["paused"] = channel.paused
    result["e2e_processing_latency"] = _latency_json(channel.e2e_processing_latency)
    return result


def _merged_channel(nodes: Sequence[Json]) -> Json:
    topic, channel = nodes[0]["topic_name"], nodes[0]["channel_name"]
    total: Json = {"node": "*", "hostname": "", "topic_name": topic, "channel_name": channel}
    total |= {key: sum(node[key] for node in nodes) for key in _CHANNEL_SUMMED}
    total |= _delivered({key: sum(node.get(key, 0) for node in nodes) for key in _LOCALITIES})
    total["client_count"] = sum(node["client_count"] for node in nodes)
    total["nodes"] = list(nodes)
    clients = [client for node in nodes for client in node["clients"] or ()]
    total["clients"] = sorted(clients, key=lambda client: client["hostname"]) or None
    total["paused"] = any(node["paused"] for node in nodes)
    latencies = [node["e2e_processing_latency"] for node in nodes]
    total["e2e_processing_latency"] = _merged_latency(latencies, topic, channel)
    return total


def _channels_of(nodes: Iterable[Json]) -> list[Json]:
    """The channels of a topic. A channel on a single node is not summed up."""
    found: dict[str, list[Json]] = {}
    for node in nodes:
        for channel in node["channels"]:
            found.setdefault(channel["channel_name"], []).append(channel)
    return [each[0] if len(each) == 1 else _merged_channel(each) for each in found.values()]


def _client_json(node: Node, client: ClientSummary, now_ns: int) -> Json:
    result: Json = {
        "node": node.address,
        "remote_address": client.remote_address,
        "version": client.version,
        "client_id": client.client_id,
        "hostname": client.hostname,
        "user_agent": client.user_agent,
        "connect_ts": client.connect_ts,
        "connected": (now_ns // SECOND_NS - client.connect_ts) * SECOND_NS,
        "in_flight_count": client.in_flight_count,
        "ready_count": client.ready_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "message_count": client.message_count,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "authed": client.authed,
        "auth_identity": client.auth_identity,
        "auth_identity_url": client.auth_identity_url,
    }
    places = {
        "node_topology_region": node.topology_region,
        "node_topology_zone": node.topology_zone,
        "topology_region": client.topology_region,
        "topology_zone": client.topology_zone,
    }
    result |= {key: place for key, place in places.items() if place}
    return result | {
        "tls": client.tls,
        "tls_cipher_suite": client.tls_cipher_suite,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": client.tls_negotiated_protocol,
        "tls_negotiated_protocol_is_mutual": client.tls_negotiated_protocol_is_mutual,
    }


def _delivered(counts: dict[str, int]) -> Json:
    total = sum(counts.values())
    return {key: count for key, count in {"delivery_msg_count": total, **counts}.items() if count}


def _localities(parts: Iterable[Json]) -> Json:
    parts = list(parts)
    counts = {key: sum(part.get(key, 0) for part in parts) for key in _LOCALITIES}
    return {key: count for key, count in counts.items() if count}


def _latency_json(latency: LatencySummary) -> Json:
    percentiles = latency.percentiles
    return {
        "count": latency.count,
        "percentiles": None
        if percentiles is None
        else [_percentile_json(each, latency.count) for each in percentiles],
        "topic": "",
        "channel": "",
        "host": "",
    }


def _percentile_json(percentile: dict[str, float], count: int) -> Json:
    value = percentile.get("value", 0.0)
    merged = {"average": value, "count": count, "max": value, "min": value}
    return dict(sorted({**percentile, **merged}.items()))


def _merged_latency(latencies: Sequence[Json], topic: str, channel: str) -> Json:
    by_quantile: dict[float, list[Json]] = {}
    for latency in latencies:
        for percentile in latency["percentiles"] or ():
            by_quantile.setdefault(percentile.get("quantile", 0.0), []).append(percentile)
    merged = [_merged_percentile(quantile, each) for quantile, each in by_quantile.items()]
    return {
        "count": sum(latency["count"] for latency in latencies),
        "percentiles": merged or None,
        "topic": topic,
        "channel": channel,
        "host": "*",
    }


def _merged_percentile(quantile: float, parts: Sequence[Json]) -> Json:
    """Mean of the nodes' values, weighted by their message counts."""
    count = sum(part["count"] for part in parts)
    weighted = sum(part["average"] * part["count"] for part in parts)
    return {
        "average": weighted / count if count else 0,
        "count": count,
        "max": max(part["max"] for part in parts),
        "min": min(part["min"] for part in parts),
        "quantile": quantile,
    }
