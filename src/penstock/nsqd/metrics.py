"""GET /metrics: Prometheus metrics of topics, channels and the process.

Each metric is one row of a table: its family, and the function that reads it. Single connections,
which /stats shows, are left out: there may be thousands of short-lived ones, and each would be a
time series.
"""

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from penstock import NSQ_VERSION, __version__
from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.latency import merged
from penstock.broker.subscriber import Locality
from penstock.broker.topic import Topic
from penstock.common.bug_reports import BugReports
from penstock.common.clock import SECOND_NS
from penstock.net.http_server import HttpServer
from penstock.net.prometheus import Family, Histogram, Kind, Sample, labels, with_label
from penstock.nsqd.process_metrics import ErrorCounters, GcPauses, memory_stats
from penstock.nsqd.replication_metrics import replication_metrics
from penstock.nsqd.stats import ClientView
from penstock.replication.status import ReplicationStatus

__all__ = ["FAMILIES", "SYNC_BOUNDS_SECONDS", "MetricsSource", "metrics", "process_metrics"]

# From a disk with a write cache to one that is failing.
SYNC_BOUNDS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


@dataclass(slots=True, kw_only=True)
class MetricsSource:
    """The sources of the metrics."""

    broker: Broker
    clients: Iterable[ClientView]
    gc_pauses: GcPauses
    refusals: ErrorCounters
    bugs: BugReports
    lookupds: Callable[[], Mapping[str, bool]]  # whether each is connected, by address
    loop_lag: Histogram
    sync_seconds: Histogram
    unresponsive_shards: Callable[[], int]
    quantiles: Sequence[float]  # of latencies, in descending order; none if not tracked
    started_at_ns: int
    http_server: HttpServer | None = None  # set when it is created
    replication: Callable[[], ReplicationStatus] | None = None  # None without replication


def metrics(source: MetricsSource) -> Iterator[tuple[Family, Iterable[Sample]]]:
    """All families with their samples, which are read lazily."""
    yield from process_metrics(source)
    for family, node_samples in _NODE:
        yield family, node_samples(source)
    topics = [(labels(topic=name), topic) for name, topic in source.broker.topics.items()]
    for family, topic_value in _TOPIC:
        yield family, ((rendered_labels, topic_value(topic)) for rendered_labels, topic in topics)
    stored = [
        (rendered_labels, topic) for rendered_labels, topic in topics if topic.store is not None
    ]
    for family, log_value in _TOPIC_LOG:
        yield family, ((rendered_labels, log_value(topic)) for rendered_labels, topic in stored)
    channels = [
        (with_label(rendered_labels, "channel", name), channel)
        for rendered_labels, topic in topics
        for name, channel in topic.channels.items()
    ]
    for family, channel_value in _CHANNEL:
        yield (
            family,
            ((rendered_labels, channel_value(channel)) for rendered_labels, channel in channels),
        )
    yield _CHANNEL_DELIVERIES, _deliveries(channels)
    yield _CHANNEL_COMMIT, _commits(channels, source.started_at_ns)
    yield (
        _TOPIC_LATENCY,
        _latencies(
            ((rendered_labels, list(topic.channels.values())) for rendered_labels, topic in topics),
            source.quantiles,
        ),
    )
    yield (
        _CHANNEL_LATENCY,
        _latencies(
            ((rendered_labels, [channel]) for rendered_labels, channel in channels),
            source.quantiles,
        ),
    )

    if source.replication is not None:
        yield from replication_metrics(source.replication())


def process_metrics(source: "ProcessSource") -> Iterator[tuple[Family, Iterable[Sample]]]:
    """The families about the process, which a follower without topics has, too."""
    for family, samples in _PROCESS:
        yield family, samples(source)


# The process --------------------------------------------------------------------------------------


class ProcessSource(Protocol):
    """The sources of the metrics of a process."""

    @property
    def gc_pauses(self) -> GcPauses: ...

    @property
    def started_at_ns(self) -> int: ...


def _info(_: ProcessSource) -> Iterator[Sample]:
    yield labels(version=__version__, nsq_version=NSQ_VERSION), 1


def _memory(source: ProcessSource) -> tuple[int, int]:
    """Current and maximum resident memory."""
    stats = memory_stats(source.gc_pauses)
    resident = stats["heap_in_use_bytes"]
    return resident, resident + stats["heap_released_bytes"]


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _gc_pauses(source: ProcessSource) -> Iterator[Sample]:
    for quantile, percent in (("1", 100), ("0.99", 99), ("0.95", 95)):
        yield labels(quantile=quantile), source.gc_pauses.percentile_us(percent) / 1_000_000


def _http_connections(source: MetricsSource) -> int:
    return 0 if source.http_server is None else source.http_server.connection_count


def _http_responses(source: MetricsSource) -> Iterator[Sample]:
    if source.http_server is not None:
        for status, count in sorted(source.http_server.responses_by_status.items()):
            yield labels(code=str(status)), count


def _http_rejections(source: MetricsSource) -> Iterator[Sample]:
    if source.http_server is not None:
        for status, count in sorted(source.http_server.rejections_by_status.items()):
            yield labels(code=str(status)), count


def _refusals(source: MetricsSource) -> Iterator[Sample]:
    for reason, count in sorted(source.refusals.counts.items()):
        yield labels(reason=reason), count


def _lookupds(source: MetricsSource) -> Iterator[Sample]:
    for address, is_connected in source.lookupds().items():
        yield labels(address=address), is_connected


SourceT = TypeVar("SourceT")


def _one(value: Callable[[SourceT], float]) -> Callable[[SourceT], Iterable[Sample]]:
    return lambda source: [("", value(source))]


_PROCESS: Final[list[tuple[Family, Callable[[ProcessSource], Iterable[Sample]]]]] = [
    (
        Family(
            "nsqd_info",
            "gauge",
            "1, with the version of nsqd and of the NSQ that it is compatible with.",
            ("version", "nsq_version"),
        ),
        _info,
    ),
    (
        Family(
            "process_start_time_seconds", "gauge", "Start time of nsqd, in seconds since the epoch."
        ),
        _one(lambda source: source.started_at_ns / SECOND_NS),
    ),
    (
        Family("process_cpu_seconds_total", "counter", "CPU time of all threads."),
        _one(lambda _: _cpu_seconds()),
    ),
    (
        Family("process_resident_memory_bytes", "gauge", "Resident memory."),
        _one(lambda source: _memory(source)[0]),
    ),
    (
        Family(
            "nsqd_resident_memory_max_bytes",
            "gauge",
            "Maximum of the resident memory since the start.",
        ),
        _one(lambda source: _memory(source)[1]),
    ),
    (
        Family("nsqd_memory_blocks", "gauge", "Memory blocks allocated by Python."),
        _one(lambda source: memory_stats(source.gc_pauses)["heap_objects"]),
    ),
    (
        Family("nsqd_gc_runs_total", "counter", "Garbage collections."),
        _one(lambda source: memory_stats(source.gc_pauses)["gc_total_runs"]),
    ),
    (
        Family(
            "nsqd_gc_pause_seconds",
            "summary",
            "Duration of the latest 256 garbage collections.",
            ("quantile",),
        ),
        _gc_pauses,
    ),
]

_NODE: Final[list[tuple[Family, Callable[[MetricsSource], Iterable[Sample]]]]] = [
    (
        Family("nsqd_healthy", "gauge", "1, or 0 if the last write to a log has failed."),
        _one(lambda source: source.broker.health() is None),
    ),
    (
        Family(
            "nsqd_unresponsive_shards",
            "gauge",
            "Shards of this nsqd whose heartbeats are missing.",
        ),
        _one(lambda source: source.unresponsive_shards()),
    ),
    (
        Family(
            "nsqd_draining",
            "gauge",
            "1 while nsqd is draining and accepts no messages, otherwise 0.",
        ),
        _one(lambda source: source.broker.draining),
    ),
    (
        Family(
            "nsqd_lookupd_connected",
            "gauge",
            "1 if nsqd is registered with this nsqlookupd, 0 if it cannot reach it.",
            ("address",),
        ),
        _lookupds,
    ),
    (
        Family("nsqd_connections", "gauge", "Open TCP connections."),
        _one(lambda source: sum(1 for _ in source.clients)),
    ),
    (
        Family("nsqd_producers", "gauge", "Open TCP connections that have published."),
        _one(lambda source: sum(1 for each in source.clients if each.publish_counts)),
    ),
    (
        Family("nsqd_http_connections", "gauge", "Open HTTP connections."),
        _one(_http_connections),
    ),
    (
        Family(
            "nsqd_http_requests_total",
            "counter",
            "HTTP requests by the status of the response.",
            ("code",),
        ),
        _http_responses,
    ),
    (
        Family(
            "nsqd_http_refusals_total",
            "counter",
            "HTTP connections ended for malformed requests, timeouts or limits, by status.",
            ("code",),
        ),
        _http_rejections,
    ),
    (
        Family(
            "nsqd_refusals_total",
            "counter",
            "TCP connections refused or ended, by the limit or error.",
            ("reason",),
        ),
        _refusals,
    ),
    (
        Family(
            "nsqd_internal_errors_total",
            "counter",
            "Unexpected exceptions, each logged with its traceback: bugs, or a lack of memory.",
        ),
        _one(lambda source: source.bugs.count),
    ),
    (
        Family(
            "nsqd_loop_lag_seconds",
            "histogram",
            "Delay of the event loop, sampled ten times a second.",
        ),
        lambda source: source.loop_lag.samples(),
    ),
    (
        Family("nsqd_fsync_seconds", "histogram", "Duration of the fsyncs of logs and cursors."),
        lambda source: source.sync_seconds.samples(),
    ),
]


# Topics and channels ------------------------------------------------------------------------------


def _topic(name: str, kind: Kind, help: str, *more_labels: str) -> Family:
    return Family(f"nsqd_topic_{name}", kind, help, ("topic", *more_labels))


def _channel(name: str, kind: Kind, help: str, *more_labels: str) -> Family:
    return Family(f"nsqd_channel_{name}", kind, help, ("topic", "channel", *more_labels))


def _log_bytes(topic: Topic) -> int:
    assert topic.store is not None
    return topic.store.log.byte_size


def _log_segments(topic: Topic) -> int:
    assert topic.store is not None
    return len(topic.store.log.segments)


_TOPIC: Final[list[tuple[Family, Callable[[Topic], float]]]] = [
    (
        _topic("depth", "gauge", "Messages in the topic that no channel has received."),
        attrgetter("depth"),
    ),
    (
        _topic("backend_depth", "gauge", "Messages beyond --mem-queue-size."),
        attrgetter("backend_depth"),
    ),
    (
        _topic("messages_total", "counter", "Messages published."),
        attrgetter("message_count"),
    ),
    (
        _topic("message_bytes_total", "counter", "Bytes of published message bodies."),
        attrgetter("message_bytes"),
    ),
    (
        _topic("paused", "gauge", "1 if the topic is paused."),
        attrgetter("paused"),
    ),
    (
        _topic("channels", "gauge", "Channels of the topic."),
        lambda topic: len(topic.channels),
    ),
]

# For topics with a log, which ephemeral ones do not have.
_TOPIC_LOG: Final[list[tuple[Family, Callable[[Topic], float]]]] = [
    (
        _topic("log_bytes", "gauge", "Size of the topic's log."),
        _log_bytes,
    ),
    (
        _topic("log_segments", "gauge", "Number of files of the topic's log."),
        _log_segments,
    ),
]

_CHANNEL: Final[list[tuple[Family, Callable[[Channel], float]]]] = [
    (
        _channel("depth", "gauge", "Queued messages, without those in flight or deferred."),
        attrgetter("depth"),
    ),
    (
        _channel("backend_depth", "gauge", "Messages beyond --mem-queue-size."),
        attrgetter("backend_depth"),
    ),
    (
        _channel(
            "in_flight", "gauge", "Messages sent to consumers and not finished or requeued yet."
        ),
        attrgetter("in_flight_count"),
    ),
    (
        _channel("deferred", "gauge", "Messages deferred until a later time."),
        attrgetter("deferred_count"),
    ),
    (
        _channel("messages_total", "counter", "Messages received by the channel."),
        attrgetter("message_count"),
    ),
    (
        _channel("requeues_total", "counter", "Messages that consumers requeued (REQ)."),
        attrgetter("requeue_count"),
    ),
    (
        _channel(
            "timeouts_total",
            "counter",
            "Messages that timed out, or were in flight when their consumer disconnected.",
        ),
        attrgetter("timeout_count"),
    ),
    (
        _channel("clients", "gauge", "Consumers of the channel."),
        lambda channel: len(channel.subscribers),
    ),
    (
        _channel("paused", "gauge", "1 if the channel is paused."),
        attrgetter("paused"),
    ),
]

_CHANNEL_DELIVERIES: Final = _channel(
    "deliveries_total",
    "counter",
    "Messages sent to consumers, including redeliveries, by locality: zone, region or global.",
    "locality",
)
_CHANNEL_COMMIT: Final = _channel(
    "last_commit_timestamp_seconds",
    "gauge",
    "Time of the last commit of a channel in commit mode, or the start of nsqd if that is later.",
)
_TOPIC_LATENCY: Final = _topic(
    "latency_seconds",
    "summary",
    "Time from publish to FIN in all channels, for each --e2e-processing-latency-percentile.",
    "quantile",
)
_CHANNEL_LATENCY: Final = _channel(
    "latency_seconds",
    "summary",
    "Time from publish to FIN, for each --e2e-processing-latency-percentile.",
    "quantile",
)


def _deliveries(channels: Iterable[tuple[str, Channel]]) -> Iterator[Sample]:
    """Counts by locality; zone and region only if not 0. Without topology, all are global."""
    for rendered_labels, channel in channels:
        for locality, count in zip(Locality, channel.delivered_counts, strict=True):
            if count or locality is Locality.GLOBAL:
                yield with_label(rendered_labels, "locality", locality.name.lower()), count


def _commits(channels: Iterable[tuple[str, Channel]], started_at_ns: int) -> Iterator[Sample]:
    """Samples of channels in commit mode only, so that alerts can distinguish them."""
    for rendered_labels, channel in channels:
        if channel.committing:
            yield rendered_labels, max(channel.committed_at_ns, started_at_ns) / SECOND_NS


def _latencies(
    channels: Iterable[tuple[str, Iterable[Channel]]], quantiles: Sequence[float]
) -> Iterator[Sample]:
    """Quantiles of groups of channels; none for a group without recently finished messages."""
    for rendered_labels, group in channels if quantiles else ():
        sketch = merged(channel.latency for channel in group)
        if sketch is not None and sketch.count:
            for quantile, value_ns in zip(quantiles, sketch.quantiles_ns(quantiles), strict=True):
                yield with_label(rendered_labels, "quantile", str(quantile)), value_ns / SECOND_NS


FAMILIES: Final = (
    *(family for family, _ in _PROCESS),
    *(family for family, _ in _NODE),
    *(family for family, _ in (*_TOPIC, *_TOPIC_LOG)),
    *(family for family, _ in _CHANNEL),
    _CHANNEL_DELIVERIES,
    _CHANNEL_COMMIT,
    _TOPIC_LATENCY,
    _CHANNEL_LATENCY,
)
