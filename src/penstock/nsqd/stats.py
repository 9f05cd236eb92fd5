"""/stats: statistics of topics, channels and clients, in NSQ's JSON.

`collect` returns dicts with the keys of NSQ's JSON in NSQ's order. Clients distinguish null, an
empty list and a missing key, so these follow NSQ, too: if the requested topic does not exist,
`topics` is null; if the requested channel does not exist, it is an empty list.

With tens of thousands of channels this takes a second, so the work is split into steps: a generator
yields after every `ROWS_PER_STEP` topics and channels, and returns the result. The values of one
channel are consistent; those of different channels may be from different moments.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NotRequired, Protocol, TypedDict, TypeVar, cast

import msgspec

from penstock import NSQ_VERSION
from penstock.broker.channel import Channel
from penstock.broker.latency import merged
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS
from penstock.common.go_json import to_json
from penstock.net.tls import TlsInfo
from penstock.nsqd.auth import Authorizations
from penstock.nsqd.process_metrics import MemoryStats
from penstock.protocol.events import State
from penstock.protocol.identify import Negotiated

__all__ = [
    "ChannelStatsJson",
    "ClientStatsJson",
    "ClientView",
    "LatencyJson",
    "StatsJson",
    "Steps",
    "TopicStatsJson",
    "collect",
    "json_steps",
    "merged_latency",
    "run_steps",
]

_PROTOCOL = "V2"

# Topics and channels per step, which takes a few milliseconds.
ROWS_PER_STEP = 100

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""A generator that does part of the work in each step, and returns the result."""


class LatencyJson(TypedDict):
    """Quantiles of the time from publish to FIN; null unless they are tracked."""

    count: int
    percentiles: list[dict[str, float]] | None


class PublishCountJson(TypedDict):
    """Number of messages that a client has published to one topic."""

    topic: str
    count: int


class LocalityStatsJson(TypedDict, total=False):
    """Numbers of delivered messages by the consumer's location; keys with 0 are left out."""

    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int


class AuthStatsJson(TypedDict, total=False):
    """Identity of an authenticated client; empty values are left out."""

    authed: bool
    auth_identity: str
    auth_identity_url: str


class TlsStatsJson(TypedDict):
    """TLS parameters of a connection; empty strings without TLS."""

    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class ClientStatsJson(LocalityStatsJson, AuthStatsJson, TlsStatsJson):
    """One connection."""

    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    topology_zone: str
    topology_region: str
    pub_counts: NotRequired[list[PublishCountJson]]


class ChannelModeJson(TypedDict, total=False):
    """Field of a channel that NSQ does not have. Present only if the channel is in commit mode."""

    mode: str


class ChannelStatsJson(LocalityStatsJson, ChannelModeJson):
    """One channel. `clients` is null if the request excludes them."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStatsJson] | None
    paused: bool
    e2e_processing_latency: LatencyJson


class RetentionJson(TypedDict):
    """Retention of finished messages; null for a limit that is not set."""

    time_ns: int | None
    bytes: int | None


class TopicStatsJson(TypedDict):
    """One topic. `retention` is not in NSQ, and present only if a retention is set."""

    topic_name: str
    channels: list[ChannelStatsJson]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyJson
    retention: NotRequired[RetentionJson]


class StatsJson(TypedDict):
    """The whole response."""

    version: str
    health: str
    start_time: int
    topics: list[TopicStatsJson] | None
    memory: NotRequired[MemoryStats]
    producers: list[ClientStatsJson] | None
    draining: NotRequired[bool]  # only while draining


class ClientView(Protocol):
    """A TCP connection, as /stats needs it."""

    remote_address: str
    connected_at_ns: int

    @property
    def state(self) -> State:
        """State of the protocol."""

    @property
    def negotiated(self) -> Negotiated:
        """Settings negotiated by IDENTIFY."""

    @property
    def subscriber(self) -> Subscriber | None:
        """The connection's subscription; None if it has none."""

    @property
    def publish_counts(self) -> dict[str, int]:
        """Number of published messages by topic."""

    @property
    def authorizations(self) -> Authorizations | None:
        """Permissions of the client; None if it has not authenticated."""

    @property
    def tls(self) -> TlsInfo | None:
        """TLS parameters of the connection; None without TLS."""


def collect(
    *,
    topics: Mapping[str, Topic],
    clients: Iterable[ClientView] | None,
    health: str,
    started_at_ns: int,
    memory: MemoryStats | None,
    quantiles: Sequence[float] = (),
    topic: str = "",
    channel: str = "",
) -> Steps[StatsJson]:
    """Statistics of all topics, of one topic, or of the channels of one name, in steps.

    If `clients` or `memory` is None, it is left out. `quantiles` are the tracked quantiles of
    latencies, in descending order.
    """
    topic_stats: list[TopicStatsJson] | None = None
    producers: list[ClientStatsJson] | None = None
    if not topic or topic in topics:
        shown = [topics[topic]] if topic else sorted(topics.values(), key=lambda each: each.name)
        by_subscriber = None if clients is None else _by_subscriber(clients)
        topic_stats, rows = [], count(1)
        for each in shown:
            if not channel or channel in each.channels:
                topic_stats.append(
                    (yield from _topic_stats(each, channel, topic, by_subscriber, quantiles, rows))
                )
        producers = None if clients is None else _producers(clients, topic)
    start_time = started_at_ns // SECOND_NS
    if memory is None:
        return {
            "version": NSQ_VERSION,
            "health": health,
            "start_time": start_time,
            "topics": topic_stats,
            "producers": producers,
        }
    return {
        "version": NSQ_VERSION,
        "health": health,
        "start_time": start_time,
        "topics": topic_stats,
        "memory": memory,
        "producers": producers,
    }


_Clients = dict[Subscriber, ClientView]


def _by_subscriber(clients: Iterable[ClientView]) -> _Clients:
    return {each.subscriber: each for each in clients if each.subscriber is not None}


def _producers(clients: Iterable[ClientView], topic: str) -> list[ClientStatsJson] | None:
    """Clients that have published; null if there are none."""
    return [_client_stats(each, topic) for each in clients if each.publish_counts] or None


def merged_latency(channels: Iterable[Channel], quantiles: Sequence[float]) -> LatencyJson:
    """Merged latencies of channels.

    nsq compat: without channels they are null, as if untracked; idle channels have zeros.
    """
    sketch = merged(channel.latency for channel in channels)
    if sketch is None:
        return {"count": 0, "percentiles": None}
    values_ns = sketch.quantiles_ns(quantiles)
    return {
        "count": sketch.count,
        "percentiles": [
            {"quantile": quantile, "value": value_ns}
            for quantile, value_ns in zip(quantiles, values_ns, strict=True)
        ],
    }


def run_steps(steps: Steps[_T]) -> _T:
    """Runs all steps without a pause; returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("_T", end.value)


def json_steps(stats: StatsJson) -> Steps[bytes]:
    """Encodes `stats` as JSON, in steps."""
    if stats["topics"] is None:
        return to_json(stats)
    topics, rows = [], count(1)
    for topic in stats["topics"]:
        channels = []
        for channel in topic["channels"]:
            channels.append(to_json(channel))
            if not next(rows) % ROWS_PER_STEP:
                yield
        topics.append(to_json({**topic, "channels": _raw_list(channels)}))
        if not next(rows) % ROWS_PER_STEP:
            yield
    return to_json({**stats, "topics": _raw_list(topics)})


def _raw_list(items: list[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[%b]" % b",".join(items))


def _topic_stats(
    topic: Topic,
    channel: str,
    publish_topic: str,
    clients: _Clients | None,
    quantiles: Sequence[float],
    rows: Iterator[int],
) -> Steps[TopicStatsJson]:
    channels = [topic.channels[channel]] if channel else topic.channels.values()
    channel_stats = []
    for each in sorted(channels, key=lambda each: each.name):
        channel_stats.append(_channel_stats(each, publish_topic, clients, quantiles))
        if not next(rows) % ROWS_PER_STEP:
            yield
    if not next(rows) % ROWS_PER_STEP:
        yield
    stats: TopicStatsJson = {
        "topic_name": topic.name,
        "channels": channel_stats,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": merged_latency(topic.channels.values(), quantiles),
    }
    if topic.store is not None and topic.store.log.retention.is_set:
        time_ns, size_bytes = topic.store.log.retention
        stats["retention"] = {"time_ns": time_ns, "bytes": size_bytes}
    return stats


def _channel_stats(
    channel: Channel, publish_topic: str, clients: _Clients | None, quantiles: Sequence[float]
) -> ChannelStatsJson:
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        **_locality_stats(channel),
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.subscribers),
        "clients": None
        if clients is None
        else [
            _client_stats(clients[each], publish_topic)
            for each in channel.subscribers
            if each in clients
        ],
        "paused": channel.paused,
        "e2e_processing_latency": merged_latency([channel], quantiles),
        **_mode_stats(channel),
    }


def _mode_stats(channel: Channel) -> ChannelModeJson:
    return {"mode": "commit"} if channel.committing else {}


def _client_stats(client: ClientView, topic: str) -> ClientStatsJson:
    subscriber, negotiated = client.subscriber, client.negotiated
    stats: ClientStatsJson = {
        "client_id": negotiated.client_id,
        "hostname": negotiated.hostname,
        "version": _PROTOCOL,
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": subscriber.rdy if subscriber else 0,
        "in_flight_count": len(subscriber.in_flight) if subscriber else 0,
        "message_count": subscriber.message_count if subscriber else 0,
        **_locality_stats(subscriber),
        "finish_count": subscriber.finish_count if subscriber else 0,
        "requeue_count": subscriber.requeue_count if subscriber else 0,
        "connect_ts": client.connected_at_ns // SECOND_NS,
        "sample_rate": negotiated.sample_rate,
        "deflate": negotiated.deflate,
        "snappy": negotiated.snappy,
        "user_agent": negotiated.user_agent,
        **_auth_stats(client.authorizations),
        "topology_zone": negotiated.topology_zone,
        "topology_region": negotiated.topology_region,
        "pub_counts": _publish_counts(client, topic),
        **_tls_stats(client.tls),
    }
    if not stats["pub_counts"]:
        del stats["pub_counts"]
    return stats


def _locality_stats(of: Channel | Subscriber | None) -> LocalityStatsJson:
    stats: LocalityStatsJson = {}
    if of is not None:
        zone_local, region_local, anywhere = of.delivered_counts
        if zone_local:
            stats["zone_local_msg_count"] = zone_local
        if region_local:
            stats["region_local_msg_count"] = region_local
        if anywhere:
            stats["global_msg_count"] = anywhere
    return stats


def _auth_stats(known: Authorizations | None) -> AuthStatsJson:
    stats: AuthStatsJson = {}
    if known is not None and known.count:
        stats["authed"] = True
        if known.identity:
            stats["auth_identity"] = known.identity
        if known.identity_url:
            stats["auth_identity_url"] = known.identity_url
    return stats


def _tls_stats(tls: TlsInfo | None) -> TlsStatsJson:
    return {
        "tls": tls is not None,
        "tls_cipher_suite": tls.cipher_suite if tls else "",
        "tls_version": tls.version if tls else "",
        "tls_negotiated_protocol": tls.negotiated_protocol if tls else "",
        "tls_negotiated_protocol_is_mutual": tls is not None,  # nsq compat: Go's constant
    }


def _publish_counts(client: ClientView, topic: str) -> list[PublishCountJson]:
    """nsq compat: one topic at most, even if the client has published to several."""
    for name, published in client.publish_counts.items():
        if not topic or name == topic:
            return [{"topic": name, "count": published}]
    return []
