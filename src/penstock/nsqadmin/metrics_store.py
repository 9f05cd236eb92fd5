"""In-memory time series of the last hour, for the charts: per topic, channel, node and cluster.

Each metric has two ring buffers: a fine one for ten minutes, and a coarse one for the hour, whose
points are means of fine points. All series share the same timestamps. A metric that was always zero
has no buffer, so that thousands of idle channels need little memory. Keys that no sample contained
for an hour are deleted, and the number of keys is limited. Pure: the caller passes the time of each
sample.

A rate is the sum of the increases of each node's counter since the previous sample. So a node that
joins or restarts causes no peak.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from penstock.admin_api.cluster import NodeStats
from penstock.admin_api.models import ChannelSummary

__all__ = [
    "CLUSTER",
    "Key",
    "MetricsSample",
    "MetricsStore",
    "channel_key",
    "node_key",
    "topic_key",
]

FINE_SECONDS, FINE_POINTS_MAX = 600.0, 300
COARSE_SECONDS, COARSE_POINTS = 30.0, 120

# 20,000 keys whose metrics all change need about 150 MB.
KEYS_MAX = 20_000

Key = tuple[str, ...]
CLUSTER: Key = ("cluster",)


def topic_key(topic: str) -> Key:
    """Key of a topic's metrics."""
    return "topic", topic


def channel_key(topic: str, channel: str) -> Key:
    """Key of a channel's metrics."""
    return "channel", topic, channel


def node_key(address: str) -> Key:
    """Key of a node's metrics."""
    return "node", address


@dataclass(slots=True)
class MetricsSample:
    """The metrics of one key at one time. Rates are in messages per second."""

    published: float = 0.0
    finished: float = 0.0
    requeued: float = 0.0
    timed_out: float = 0.0
    depth: float = 0.0
    in_flight: float = 0.0
    deferred: float = 0.0
    latency_ms: float = 0.0  # highest quantile that nsqd is configured to measure


_NAMES = tuple(field.name for field in fields(MetricsSample))
_NO_METRICS = MetricsSample()

_Counts = tuple[int, int, int, int]  # published, pending, requeued, timed out
_ZERO_COUNTS: _Counts = (0, 0, 0, 0)
_Process = tuple[str, int]  # address and start time of a node


class _Rings:
    """The ring buffers of one key, one per metric."""

    __slots__ = ("coarse", "fine", "latest", "seen_tick")

    def __init__(self) -> None:
        self.fine: list[array[float] | None] = [None] * len(_NAMES)
        self.coarse: list[array[float] | None] = [None] * len(_NAMES)
        self.latest = _NO_METRICS
        self.seen_tick = 0


class MetricsStore:
    """Stores samples and returns them as time series."""

    def __init__(self, interval_seconds: float) -> None:
        interval_seconds = interval_seconds or COARSE_SECONDS
        self._fine_points = max(min(int(FINE_SECONDS / interval_seconds), FINE_POINTS_MAX), 2)
        self._fine_per_coarse = max(round(COARSE_SECONDS / interval_seconds), 1)
        self._fine_times = array("d", bytes(8 * self._fine_points))
        self._coarse_times = array("d", bytes(8 * COARSE_POINTS))
        self._tick = 0
        self._rings_by_key: dict[Key, _Rings] = {}
        self._previous: dict[_Process, dict[Key, _Counts]] = {}
        self._previous_at = 0.0

    # Reading.

    def latest(self, key: Key) -> MetricsSample:
        """The metrics of the last sample; zeros if the key was not in it."""
        rings = self._rings_by_key.get(key)
        return rings.latest if rings is not None else _NO_METRICS

    def series(self, key: Key, names: Sequence[str], *, fine: bool) -> dict[str, list[float]]:
        """Time series of some metrics, oldest first, with `time` in seconds."""
        times = self._fine_times if fine else self._coarse_times
        order = list(self._slots(fine=fine))
        result = {"time": [times[slot] for slot in order]}
        for name in names:
            ring = self._ring(key, name, fine=fine)
            result[name] = [ring[slot] for slot in order] if ring else [0.0] * len(order)
        return result

    def recent(self, key: Key, name: str, points: int) -> list[float]:
        """The last `points` fine values of one metric, oldest first."""
        slots = list(self._slots(fine=True))[-points:]
        ring = self._ring(key, name, fine=True)
        return [ring[slot] for slot in slots] if ring else [0.0] * len(slots)

    # Writing.

    def add_sample(self, answers: Iterable[NodeStats], at_seconds: float) -> None:
        """Add a sample of all nodes, taken at this wall-clock time."""
        answers = list(answers)
        by_key = _gauges(answers)
        counts = {
            (answer.node.address, answer.stats.start_time): _counts(answer) for answer in answers
        }
        if self._previous_at:
            self._add_rates(by_key, counts, max(at_seconds - self._previous_at, 1e-3))
        self._previous, self._previous_at = counts, at_seconds
        self._write(by_key, at_seconds)

    def _add_rates(
        self,
        by_key: dict[Key, MetricsSample],
        counts: dict[_Process, dict[Key, _Counts]],
        seconds: float,
    ) -> None:
        for process, now in counts.items():
            before = self._previous.get(process)
            if before is None:
                continue  # a new node: no previous counts
            totals = (by_key[CLUSTER], by_key[node_key(process[0])])
            for key, counted in now.items():
                old = before.get(key, _ZERO_COUNTS)
                if counted[0] < old[0]:  # deleted and created again
                    old = _ZERO_COUNTS
                if key[0] == "topic":
                    _add_published((*totals, by_key[key]), old, counted, seconds)
                else:
                    _add_published((by_key[key],), old, counted, seconds)
                    affected = (*totals, by_key[topic_key(key[1])], by_key[key])
                    _add_finished(affected, old, counted, seconds)

    def _write(self, by_key: dict[Key, MetricsSample], at_seconds: float) -> None:
        slot = self._tick % self._fine_points
        self._fine_times[slot] = at_seconds
        for key, metrics in by_key.items():
            rings = self._rings_by_key.get(key)
            if rings is None:
                if len(self._rings_by_key) >= KEYS_MAX:
                    continue
                rings = self._rings_by_key[key] = _Rings()
            rings.seen_tick, rings.latest = self._tick, metrics
            self._write_slot(rings, slot, metrics)
        self._write_missing(slot)
        self._tick += 1
        if self._tick % self._fine_per_coarse == 0:
            self._write_coarse(at_seconds)

    def _write_slot(self, rings: _Rings, slot: int, metrics: MetricsSample) -> None:
        for number, name in enumerate(_NAMES):
            value, ring = getattr(metrics, name), rings.fine[number]
            if ring is None:
                if not value:
                    continue
                ring = rings.fine[number] = array("f", bytes(4 * self._fine_points))
            ring[slot] = value

    def _write_missing(self, slot: int) -> None:
        """Write zeros for keys that the sample lacks; delete keys older than the charts."""
        expired = []
        for key, rings in self._rings_by_key.items():
            if rings.seen_tick != self._tick:
                rings.latest = _NO_METRICS
                self._write_slot(rings, slot, _NO_METRICS)
                if self._tick - rings.seen_tick > self._fine_per_coarse * COARSE_POINTS:
                    expired.append(key)
        for key in expired:
            del self._rings_by_key[key]

    def _write_coarse(self, at_seconds: float) -> None:
        slot = self._coarse_tick % COARSE_POINTS
        count = min(self._fine_per_coarse, self._fine_points)
        slots = [(self._tick - 1 - back) % self._fine_points for back in range(count)]
        self._coarse_times[slot] = at_seconds
        for rings in self._rings_by_key.values():
            for number, fine in enumerate(rings.fine):
                ring = rings.coarse[number]
                if fine is None and ring is None:
                    continue
                if ring is None:
                    ring = rings.coarse[number] = array("f", bytes(4 * COARSE_POINTS))
                ring[slot] = sum(fine[each] for each in slots) / count if fine else 0.0

    # Helpers.

    @property
    def _coarse_tick(self) -> int:
        return self._tick // self._fine_per_coarse - 1

    def _slots(self, *, fine: bool) -> Iterator[int]:
        """Ring positions of the samples, oldest first."""
        points = self._fine_points if fine else COARSE_POINTS
        end = self._tick if fine else self._tick // self._fine_per_coarse
        return (tick % points for tick in range(max(end - points, 0), end))

    def _ring(self, key: Key, name: str, *, fine: bool) -> "array[float] | None":
        rings = self._rings_by_key.get(key)
        if rings is None:
            return None
        return (rings.fine if fine else rings.coarse)[_NAMES.index(name)]


def _gauges(answers: Sequence[NodeStats]) -> dict[Key, MetricsSample]:
    by_key: dict[Key, MetricsSample] = {CLUSTER: MetricsSample()}
    for answer in answers:
        node = by_key.setdefault(node_key(answer.node.address), MetricsSample())
        for topic in answer.stats.topics or ():
            topic_metrics = by_key.setdefault(topic_key(topic.topic_name), MetricsSample())
            totals = (by_key[CLUSTER], node, topic_metrics)
            for metrics in totals:
                metrics.depth += topic.depth
            for channel in topic.channels:
                key = channel_key(topic.topic_name, channel.channel_name)
                own = by_key.setdefault(key, MetricsSample())
                for metrics in (*totals, own):
                    _add_gauges(metrics, channel)
    return by_key


def _add_gauges(metrics: MetricsSample, channel: ChannelSummary) -> None:
    metrics.depth += channel.depth
    metrics.in_flight += channel.in_flight_count
    metrics.deferred += channel.deferred_count
    percentiles = channel.e2e_processing_latency.percentiles
    if percentiles:
        slowest = max(percentiles, key=lambda each: each.get("quantile", 0.0))
        metrics.latency_ms = max(metrics.latency_ms, slowest.get("value", 0.0) / 1e6)


def _counts(answer: NodeStats) -> dict[Key, _Counts]:
    counts: dict[Key, _Counts] = {}
    for topic in answer.stats.topics or ():
        counts[topic_key(topic.topic_name)] = topic.message_count, 0, 0, 0
        for channel in topic.channels:
            counts[channel_key(topic.topic_name, channel.channel_name)] = (
                channel.message_count,
                channel.pending_count,
                channel.requeue_count,
                channel.timeout_count,
            )
    return counts


def _add_published(
    samples: Iterable[MetricsSample], old: _Counts, now: _Counts, seconds: float
) -> None:
    rate = (now[0] - old[0]) / seconds
    for metrics in samples:
        metrics.published += rate


def _add_finished(
    samples: Iterable[MetricsSample], old: _Counts, now: _Counts, seconds: float
) -> None:
    """Rates are never negative, although emptying or rewinding a channel changes its counts."""
    finished = max(now[0] - old[0] - (now[1] - old[1]), 0) / seconds
    requeued = max(now[2] - old[2], 0) / seconds
    timed_out = max(now[3] - old[3], 0) / seconds
    for metrics in samples:
        metrics.finished += finished
        metrics.requeued += requeued
        metrics.timed_out += timed_out
