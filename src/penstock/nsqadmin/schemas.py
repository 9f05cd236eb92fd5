"""What nsqds and nsqlookupds say of themselves, as it is read from their JSON.

Only what is used is named; what is missing, as in the answers of older daemons, has the value that
Go would give it. What Penstock's nsqd adds (`retention`, `mode`, `draining`) is marked as ours.
"""

import msgspec

__all__ = [
    "ChannelStats",
    "ClientStats",
    "Latency",
    "Node",
    "NodeInfo",
    "NodeStats",
    "Producer",
    "Retention",
    "TopicStats",
]


class Latency(msgspec.Struct, kw_only=True):
    """Quantiles of the time from publish to FIN."""

    count: int = 0
    percentiles: list[dict[str, float]] | None = None


class ClientStats(msgspec.Struct, kw_only=True):
    """One connection of a consumer."""

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


class ChannelStats(msgspec.Struct, kw_only=True):
    """A channel on one node."""

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
    clients: list[ClientStats] | None = None
    paused: bool = False
    e2e_processing_latency: Latency = msgspec.field(default_factory=Latency)
    mode: str = ""  # ours

    @property
    def pending_count(self) -> int:
        """Messages that somebody still has to finish."""
        return self.depth + self.in_flight_count + self.deferred_count


class Retention(msgspec.Struct):
    """What is kept of what every channel has finished. Ours."""

    time_ns: int | None = None
    bytes: int | None = None


class TopicStats(msgspec.Struct, kw_only=True):
    """A topic on one node."""

    topic_name: str
    channels: list[ChannelStats] = []
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    e2e_processing_latency: Latency = msgspec.field(default_factory=Latency)
    retention: Retention | None = None  # ours


class NodeStats(msgspec.Struct, kw_only=True):
    """All that one nsqd has."""

    topics: list[TopicStats] | None = None
    health: str = ""
    start_time: int = 0
    draining: bool = False  # ours


class NodeInfo(msgspec.Struct, kw_only=True):
    """What an nsqd says when it is asked directly."""

    version: str = ""
    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    topology_zone: str = ""
    topology_region: str = ""
    draining: bool = False  # ours


class Producer(msgspec.Struct, kw_only=True):
    """An nsqd, as an nsqlookupd knows it."""

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
    draining: bool = False  # ours


class Node(msgspec.Struct, kw_only=True):
    """An nsqd, as all that know it say."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""
    remote_address: str = ""
    remote_addresses: list[str] = []
    topics: list[tuple[str, bool]] = []  # with whether the node is tombstoned for it
    is_draining: bool = False
    is_out_of_date: bool = False
    reached_at: str = ""  # where we were told to find it, if we were

    @property
    def address(self) -> str:
        """Where its HTTP is, which is what it is known by. What it broadcasts is meant for those
        who find it by an nsqlookupd, and may mean nothing to others."""
        return self.reached_at or _joined(self.broadcast_address, self.http_port)

    def is_at(self, address: str) -> bool:
        """Whether this is one of its addresses."""
        return address in (self.address, _joined(self.broadcast_address, self.http_port))

    @property
    def tcp_address(self) -> str:
        """Where clients connect."""
        return _joined(self.broadcast_address, self.tcp_port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
