"""Rows of the lists and search results, built from the cluster state and the metrics. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.admin_api.cluster import Node, NodeStats
from penstock.admin_api.models import ClientSummary, RetentionSummary
from penstock.common import names
from penstock.nsqadmin.formatting import ago
from penstock.nsqadmin.metrics_store import (
    MetricsSample,
    MetricsStore,
    channel_key,
    node_key,
    topic_key,
)
from penstock.nsqadmin.watcher import ClusterState

__all__ = [
    "ChannelRow",
    "NodeRow",
    "SearchMatch",
    "TopicRow",
    "Totals",
    "channel_rows",
    "clients_of",
    "find",
    "node_rows",
    "topic_rows",
    "totals",
]

SPARKLINE_POINTS = 32

# A channel that would need longer than this to catch up counts as not catching up.
CATCH_UP_SECONDS_MAX = 86_400

# Messages per second by which the depth must grow before a channel counts as falling behind.
FALLING_BEHIND_RATE = 0.1

SEARCH_MATCHES_MAX = 12


@dataclass(slots=True)
class ChannelRow:
    """A channel: sums over all nodes."""

    topic: str
    name: str
    depth: int = 0
    disk_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeues: int = 0
    timeouts: int = 0
    messages: int = 0
    clients: int = 0
    is_paused: bool = False
    mode: str = ""
    metrics: MetricsSample = field(default_factory=MetricsSample)
    sparkline: list[float] = field(default_factory=list)

    @property
    def is_ephemeral(self) -> bool:
        return names.is_ephemeral(self.name)

    @property
    def lacks_consumers(self) -> bool:
        """Whether the channel has messages but no consumers."""
        return bool(self.depth) and not self.clients and not self.is_paused and not self.mode

    @property
    def lag_status(self) -> str:
        """Whether the consumers keep up, extrapolated from the current rates."""
        if self.is_paused:
            return "paused"
        if not self.depth:
            return "up to date"
        if self.lacks_consumers:
            return "no consumers"
        gain = self.metrics.finished - self.metrics.published
        if gain > self.depth / CATCH_UP_SECONDS_MAX:
            return f"catching up, {ago(self.depth / gain)} left"
        return "falling behind" if gain < -FALLING_BEHIND_RATE else "not catching up"


@dataclass(slots=True)
class TopicRow:
    """A topic: sums over all nodes."""

    name: str
    nodes: int = 0
    depth: int = 0  # of the topic itself and its channels
    own_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    clients: int = 0
    is_paused: bool = False
    retention: RetentionSummary | None = None
    channels: dict[str, ChannelRow] = field(default_factory=dict)
    metrics: MetricsSample = field(default_factory=MetricsSample)
    sparkline: list[float] = field(default_factory=list)

    @property
    def is_ephemeral(self) -> bool:
        return names.is_ephemeral(self.name)

    @property
    def has_channel_without_consumers(self) -> bool:
        return any(channel.lacks_consumers for channel in self.channels.values())


@dataclass(slots=True)
class NodeRow:
    """A node."""

    node: Node
    health: str = ""
    topics: int = 0
    channels: int = 0
    depth: int = 0
    messages: int = 0
    clients: int = 0
    is_draining: bool = False
    is_reachable: bool = False
    metrics: MetricsSample = field(default_factory=MetricsSample)
    sparkline: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """Sums over the whole cluster."""

    topics: int
    channels: int
    nodes: int
    clients: int
    depth: int
    in_flight: int
    deferred: int


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """A topic, channel or node that matches a search."""

    kind: str
    topic: str
    channel: str = ""
    node: str = ""


def topic_rows(state: ClusterState, metrics_store: MetricsStore) -> list[TopicRow]:
    """All topics, sorted by name, with their channels."""
    rows = {name: TopicRow(name) for name in state.topics}
    for answer in state.answers:
        for topic in answer.stats.topics or ():
            row = rows.setdefault(topic.topic_name, TopicRow(topic.topic_name))
            row.nodes += 1
            row.own_depth += topic.depth
            row.depth += topic.depth
            row.messages += topic.message_count
            row.is_paused |= topic.paused
            row.retention = row.retention or topic.retention
            for channel in topic.channels:
                own = row.channels.setdefault(
                    channel.channel_name, ChannelRow(row.name, channel.channel_name)
                )
                own.depth += channel.depth
                own.disk_depth += channel.backend_depth
                own.in_flight += channel.in_flight_count
                own.deferred += channel.deferred_count
                own.requeues += channel.requeue_count
                own.timeouts += channel.timeout_count
                own.messages += channel.message_count
                own.clients += channel.client_count
                own.is_paused |= channel.paused
                own.mode = own.mode or channel.mode
    for row in rows.values():
        _add_metrics(row, metrics_store)
    return [rows[name] for name in sorted(rows)]


def _add_metrics(row: TopicRow, metrics_store: MetricsStore) -> None:
    for channel in row.channels.values():
        row.depth += channel.depth
        row.in_flight += channel.in_flight
        row.deferred += channel.deferred
        row.clients += channel.clients
        channel.metrics = metrics_store.latest(channel_key(row.name, channel.name))
    row.metrics = metrics_store.latest(topic_key(row.name))
    row.sparkline = metrics_store.recent(topic_key(row.name), "published", SPARKLINE_POINTS)


def channel_rows(row: TopicRow, metrics_store: MetricsStore) -> list[ChannelRow]:
    """The channels of a topic, sorted by name, with their recent depth."""
    for channel in row.channels.values():
        key = channel_key(row.name, channel.name)
        channel.sparkline = metrics_store.recent(key, "depth", SPARKLINE_POINTS)
    return [row.channels[name] for name in sorted(row.channels)]


def node_rows(state: ClusterState, metrics_store: MetricsStore) -> list[NodeRow]:
    """All nodes, sorted by host name, including unreachable ones."""
    rows = {node.address: NodeRow(node, is_draining=node.is_draining) for node in state.nodes}
    for answer in state.answers:
        row, stats = rows[answer.node.address], answer.stats
        row.is_reachable, row.health = True, stats.health
        row.is_draining |= stats.draining
        for topic in stats.topics or ():
            row.topics += 1
            row.depth += topic.depth
            row.messages += topic.message_count
            row.channels += len(topic.channels)
            row.depth += sum(channel.depth for channel in topic.channels)
            row.clients += sum(channel.client_count for channel in topic.channels)
        key = node_key(row.node.address)
        row.metrics = metrics_store.latest(key)
        row.sparkline = metrics_store.recent(key, "published", SPARKLINE_POINTS)
    return list(rows.values())


def totals(rows: Iterable[TopicRow], state: ClusterState) -> Totals:
    """Sum up all topics."""
    rows = list(rows)
    return Totals(
        topics=len(rows),
        channels=sum(len(row.channels) for row in rows),
        nodes=len(state.nodes),
        clients=sum(row.clients for row in rows),
        depth=sum(row.depth for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        deferred=sum(row.deferred for row in rows),
    )


def clients_of(answers: Iterable[NodeStats], topic: str, channel: str) -> list[ClientSummary]:
    """The consumers of a channel on these nodes."""
    return [
        client
        for answer in answers
        for each in answer.stats.topics or ()
        if each.topic_name == topic
        for part in each.channels
        if part.channel_name == channel
        for client in part.clients or ()
    ]


def find(state: ClusterState, search_text: str) -> list[SearchMatch]:
    """Topics, channels and nodes whose name contains all words of `search_text`.

    Names that start with the first word come first, then shorter names.
    """
    words = search_text.lower().split()
    if not words:
        return []
    ranked = [
        (not name.lower().startswith(words[0]), len(name), name, found)
        for name, found in _searchable(state)
        if all(word in name.lower() for word in words)
    ]
    ranked.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in ranked[:SEARCH_MATCHES_MAX]]


def _searchable(state: ClusterState) -> Iterable[tuple[str, SearchMatch]]:
    channels = {
        (topic.topic_name, channel.channel_name)
        for answer in state.answers
        for topic in answer.stats.topics or ()
        for channel in topic.channels
    }
    for topic in state.topics:
        yield topic, SearchMatch("topic", topic)
    for topic, channel in channels:
        yield f"{topic} {channel}", SearchMatch("channel", topic, channel)
    for node in state.nodes:
        yield f"{node.address} {node.hostname}", SearchMatch("node", "", node=node.address)
