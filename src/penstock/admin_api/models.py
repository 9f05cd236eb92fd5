"""Models of the JSON responses of nsqd and nsqlookupd: one class per response.

Only the fields that Penstock uses are declared. Fields missing from a response, as in those of
older daemons, have Go's zero values. Fields that only Penstock's daemons send are marked.
"""

from base64 import b64decode

import msgspec

from penstock.common.addresses import join_address

__all__ = [
    "ChannelSummary",
    "ChannelsResponse",
    "ClientSummary",
    "InfoResponse",
    "LatencySummary",
    "LogSegment",
    "LookupResponse",
    "NodesResponse",
    "RegisteredNode",
    "RetentionSummary",
    "StatsResponse",
    "StoredMessage",
    "TopicLogResponse",
    "TopicLogSummary",
    "TopicSummary",
    "TopicsLogResponse",
    "TopicsResponse",
]


# nsqd: /info and /stats.


class InfoResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`/info` of nsqd."""

    version: str = ""
    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    topology_zone: str = ""
    topology_region: str = ""
    draining: bool = False  # Penstock only


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of the time from publish to FIN."""

    count: int = 0
    percentiles: list[dict[str, float]] | None = None


class ClientSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's connection in `/stats`."""

    client_id: str = ""
    hostname: str = ""
    version: str = ""
    remote_address: str = ""
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class ChannelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A channel in `/stats`."""

    channel_name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    clients: list[ClientSummary] | None = None
    paused: bool = False
    e2e_processing_latency: LatencySummary = LatencySummary()
    mode: str = ""  # Penstock only

    @property
    def pending_count(self) -> int:
        """Messages that consumers have not finished."""
        return self.depth + self.in_flight_count + self.deferred_count


class RetentionSummary(msgspec.Struct, frozen=True):
    """Limits on the finished messages that a topic keeps. Penstock only."""

    time_ns: int | None = None
    bytes: int | None = None


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in `/stats`."""

    topic_name: str
    channels: list[ChannelSummary] = []
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    e2e_processing_latency: LatencySummary = LatencySummary()
    retention: RetentionSummary | None = None  # Penstock only

    def maybe_channel(self, name: str) -> ChannelSummary | None:
        return next((each for each in self.channels if each.channel_name == name), None)


class StatsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`/stats?format=json` of nsqd."""

    topics: list[TopicSummary] | None = None
    health: str = ""
    start_time: int = 0
    draining: bool = False  # Penstock only

    def has_topic(self, name: str) -> bool:
        return any(each.topic_name == name for each in self.topics or ())


# nsqd: history. Penstock only.


class LogSegment(msgspec.Struct, frozen=True):
    """A file of a topic's log, with the messages from `first_seq` to `next_seq` - 1."""

    first_seq: int
    next_seq: int
    bytes: int = 0


class TopicLogResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`/topic/log`: the messages that one nsqd stores, from `first_seq` to `next_seq` - 1."""

    node_id: int
    log_id: str = ""
    first_seq: int
    next_seq: int
    bytes: int = 0
    segments: list[LogSegment] = []

    def count_from(self, seq: int) -> int:
        """Number of stored messages from sequence number `seq` on."""
        return sum(max(each.next_seq - max(each.first_seq, seq), 0) for each in self.segments)


class TopicLogSummary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A topic in `/topics/log`. Messages below `high_watermark` can be read."""

    topic: str
    log_id: str
    first_seq: int
    next_seq: int
    high_watermark: int
    bytes: int = 0


class TopicsLogResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`/topics/log`: the topics of one nsqd that have changed, or all if `full`. `version` is the
    token for the next request."""

    node_id: int
    version: str
    full: bool
    topics: list[TopicLogSummary] = []
    removed: list[str] = []


class StoredMessage(msgspec.Struct, kw_only=True):
    """A message in `/topic/messages` and `/channel/messages`. A body that is not UTF-8 is in
    `body_base64`."""

    seq: int
    timestamp_ns: int
    id: str = ""
    body: str | None = None
    body_base64: str | None = None
    due_ns: int = 0
    attempts: int = 0
    deadline_ns: int = 0
    client_id: str = ""
    client_address: str = ""

    @property
    def body_bytes(self) -> bytes:
        """The body as it was published."""
        if self.body is None:
            return b64decode(self.body_base64 or "")
        return self.body.encode()


# nsqlookupd.


class RegisteredNode(msgspec.Struct, frozen=True, kw_only=True):
    """An nsqd in `/lookup` or `/nodes` of an nsqlookupd."""

    remote_address: str = ""
    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    topics: list[str] | None = None
    tombstones: list[bool] | None = None
    topology_zone: str = ""
    topology_region: str = ""
    draining: bool = False  # Penstock only

    @property
    def http_address(self) -> str:
        return join_address(self.broadcast_address, self.http_port)

    @property
    def tcp_address(self) -> str:
        return join_address(self.broadcast_address, self.tcp_port)


class LookupResponse(msgspec.Struct, frozen=True):
    """`/lookup` of nsqlookupd: the nsqds that have a topic."""

    producers: list[RegisteredNode] | None = None


class NodesResponse(msgspec.Struct, frozen=True):
    """`/nodes` of nsqlookupd: all nsqds."""

    producers: list[RegisteredNode] | None = None


class TopicsResponse(msgspec.Struct, frozen=True):
    """`/topics` of nsqlookupd."""

    topics: list[str] | None = None


class ChannelsResponse(msgspec.Struct, frozen=True):
    """`/channels` of nsqlookupd: the channels of a topic."""

    channels: list[str] | None = None
