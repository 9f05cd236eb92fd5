"""What the lists show, made from a snapshot and the chronicle. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.admin_api.cluster import Node, NodeStats
from penstock.admin_api.models import ClientSummary, RetentionSummary
from penstock.common import names
from penstock.nsqadmin.metrics_store import Chronicle, Figures, channel_key, node_key, topic_key
from penstock.nsqadmin.rendering import ago
from penstock.nsqadmin.watcher import Snapshot

__all__ = [
    "ChannelRow",
    "Found",
    "NodeRow",
    "TopicRow",
    "Totals",
    "channel_rows",
    "clients_of",
    "find",
    "node_rows",
    "topic_rows",
    "totals",
]

TRAIL_POINTS = 32

# What would take longer than a day to catch up does not catch up; what changes by less than a
# message in ten seconds does not change.
CATCH_UP_SECONDS_MAX = 86_400
NOTICEABLE_RATE = 0.1
FOUND_MAX = 12


@dataclass(slots=True)
class ChannelRow:
    """A channel, over all nodes."""

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
    figures: Figures = field(default_factory=Figures)
    trail: list[float] = field(default_factory=list)

    @property
    def is_ephemeral(self) -> bool:
        return names.is_ephemeral(self.name)

    @property
    def is_stuck(self) -> bool:
        """Whether messages wait and nobody is there to take them."""
        return bool(self.depth) and not self.clients and not self.is_paused and not self.mode

    @property
    def outlook(self) -> str:
        """How it will go on, if it goes on like this."""
        if self.is_paused:
            return "paused"
        if not self.depth:
            return "up to date"
        if self.is_stuck:
            return "no consumer"
        gain = self.figures.finished - self.figures.published
        if gain > self.depth / CATCH_UP_SECONDS_MAX:
            return f"caught up in {ago(self.depth / gain)}"
        return "falling behind" if gain < -NOTICEABLE_RATE else "standing"


@dataclass(slots=True)
class TopicRow:
    """A topic, over all nodes."""

    name: str
    nodes: int = 0
    depth: int = 0  # in the topic itself and in its channels
    own_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    clients: int = 0
    is_paused: bool = False
    retention: RetentionSummary | None = None
    channels: dict[str, ChannelRow] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    trail: list[float] = field(default_factory=list)

    @property
    def is_ephemeral(self) -> bool:
        return names.is_ephemeral(self.name)

    @property
    def has_stuck_channel(self) -> bool:
        return any(channel.is_stuck for channel in self.channels.values())


@dataclass(slots=True)
class NodeRow:
    """An nsqd."""

    node: Node
    health: str = ""
    topics: int = 0
    channels: int = 0
    depth: int = 0
    messages: int = 0
    clients: int = 0
    is_draining: bool = False
    answers: bool = False
    figures: Figures = field(default_factory=Figures)
    trail: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """The whole cluster."""

    topics: int
    channels: int
    nodes: int
    clients: int
    depth: int
    in_flight: int
    deferred: int


@dataclass(frozen=True, slots=True)
class Found:
    """Something that was searched for."""

    kind: str
    topic: str
    channel: str = ""
    node: str = ""


def topic_rows(snapshot: Snapshot, chronicle: Chronicle) -> list[TopicRow]:
    """Every topic, by name, with its channels."""
    rows = {name: TopicRow(name) for name in snapshot.topics}
    for answer in snapshot.answers:
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
        _complete(row, chronicle)
    return [rows[name] for name in sorted(rows)]


def _complete(row: TopicRow, chronicle: Chronicle) -> None:
    for channel in row.channels.values():
        row.depth += channel.depth
        row.in_flight += channel.in_flight
        row.deferred += channel.deferred
        row.clients += channel.clients
        channel.figures = chronicle.latest(channel_key(row.name, channel.name))
    row.figures = chronicle.latest(topic_key(row.name))
    row.trail = chronicle.trail(topic_key(row.name), "published", TRAIL_POINTS)


def channel_rows(row: TopicRow, chronicle: Chronicle) -> list[ChannelRow]:
    """The channels of a topic, by name, with how each was lately."""
    for channel in row.channels.values():
        key = channel_key(row.name, channel.name)
        channel.trail = chronicle.trail(key, "depth", TRAIL_POINTS)
    return [row.channels[name] for name in sorted(row.channels)]


def node_rows(snapshot: Snapshot, chronicle: Chronicle) -> list[NodeRow]:
    """Every nsqd, by host name; also those that do not answer."""
    rows = {node.address: NodeRow(node, is_draining=node.is_draining) for node in snapshot.nodes}
    for answer in snapshot.answers:
        row, stats = rows[answer.node.address], answer.stats
        row.answers, row.health = True, stats.health
        row.is_draining |= stats.draining
        for topic in stats.topics or ():
            row.topics += 1
            row.depth += topic.depth
            row.messages += topic.message_count
            row.channels += len(topic.channels)
            row.depth += sum(channel.depth for channel in topic.channels)
            row.clients += sum(channel.client_count for channel in topic.channels)
        key = node_key(row.node.address)
        row.figures = chronicle.latest(key)
        row.trail = chronicle.trail(key, "published", TRAIL_POINTS)
    return list(rows.values())


def totals(rows: Iterable[TopicRow], snapshot: Snapshot) -> Totals:
    """All taken together."""
    rows = list(rows)
    return Totals(
        topics=len(rows),
        channels=sum(len(row.channels) for row in rows),
        nodes=len(snapshot.nodes),
        clients=sum(row.clients for row in rows),
        depth=sum(row.depth for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        deferred=sum(row.deferred for row in rows),
    )


def clients_of(answers: Iterable[NodeStats], topic: str, channel: str) -> list[ClientSummary]:
    """The consumers of a channel, on all nodes that were asked."""
    return [
        client
        for answer in answers
        for each in answer.stats.topics or ()
        if each.topic_name == topic
        for part in each.channels
        if part.channel_name == channel
        for client in part.clients or ()
    ]


def find(snapshot: Snapshot, text: str) -> list[Found]:
    """Topics, channels and nodes whose name has all words of `text`, the best first: names that
    begin with the first word, then shorter ones."""
    words = text.lower().split()
    if not words:
        return []
    ranked = [
        (not name.lower().startswith(words[0]), len(name), name, found)
        for name, found in _everything(snapshot)
        if all(word in name.lower() for word in words)
    ]
    ranked.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in ranked[:FOUND_MAX]]


def _everything(snapshot: Snapshot) -> Iterable[tuple[str, Found]]:
    channels = {
        (topic.topic_name, channel.channel_name)
        for answer in snapshot.answers
        for topic in answer.stats.topics or ()
        for channel in topic.channels
    }
    for topic in snapshot.topics:
        yield topic, Found("topic", topic)
    for topic, channel in channels:
        yield f"{topic} {channel}", Found("channel", topic, channel)
    for node in snapshot.nodes:
        yield f"{node.address} {node.hostname}", Found("node", "", node=node.address)
