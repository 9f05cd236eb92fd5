"""Message rates, computed from the counters of two successive snapshots of a cluster.

Rates are computed per node and summed. So a node that joins or restarts causes no peak, and one
that leaves causes no gap. No I/O; the time is part of the snapshots.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.admin_api.cluster import ClusterStats, NodeStats
from penstock.admin_api.models import ChannelSummary, TopicSummary

__all__ = ["SAMPLES_MAX", "QueueMeter", "QueueStats", "RateSample"]

# Maximum length of a sparkline.
SAMPLES_MAX = 60


@dataclass(slots=True)
class QueueStats:
    """Statistics of a topic, or of a channel if `channel` is set, summed over all nodes."""

    topic: str
    channel: str = ""
    nodes: int = 0
    depth: int = 0
    disk_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    requeues: int = 0
    timeouts: int = 0
    clients: int = 0
    is_paused: bool = False
    rates: "RateSample | None" = None
    """None until there are two snapshots to compare."""
    history: list["RateSample"] = field(default_factory=list)
    """The last samples, including `rates`."""

    @property
    def pending(self) -> int:
        """Number of unfinished messages."""
        return self.depth + self.in_flight + self.deferred


@dataclass(slots=True)
class RateSample:
    """Rates between two snapshots, in messages per second, and the depth at the second."""

    ingress: float = 0.0
    """Published messages."""
    egress: float = 0.0
    """Messages taken from the queue, as `nsq_stat` defines it."""
    finished: float = 0.0
    """Finished messages."""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class _Counters:
    """The counters of one topic or channel of one node."""

    messages: int
    depth: int
    pending: int


_NOTHING = _Counters(0, 0, 0)
_Key = tuple[str, str]  # topic and channel
_Process = tuple[str, int]  # address and start time of a node
_NodeCounts = dict[_Key, _Counters]


class QueueMeter:
    """Computes rates from successive snapshots."""

    def __init__(self) -> None:
        self._before: dict[_Process, _NodeCounts] = {}
        self._before_at = 0.0
        self._histories: dict[_Key, deque[RateSample]] = {}

    def observe(self, snapshot: ClusterStats) -> list[QueueStats]:
        """Statistics of all topics, sorted by name, each followed by its channels."""
        stats = _summed(snapshot)
        counts = {(node.address, node.started_at): _counts(node) for node in snapshot.nodes}
        if self._before_at:
            rates = self._rates(counts, snapshot.taken_at - self._before_at)
            for key, each in stats.items():
                rates[key].depth = each.depth
            self._histories = {key: self._history(key, rates[key]) for key in stats}
            for key, each in stats.items():
                each.rates, each.history = rates[key], list(self._histories[key])
        self._before, self._before_at = counts, snapshot.taken_at
        return [stats[key] for key in sorted(stats)]

    def _history(self, key: _Key, latest: RateSample) -> deque[RateSample]:
        history = self._histories.get(key) or deque(maxlen=SAMPLES_MAX)
        history.append(latest)
        return history

    def _rates(
        self, counts: dict[_Process, _NodeCounts], seconds: float
    ) -> defaultdict[_Key, RateSample]:
        rates: defaultdict[_Key, RateSample] = defaultdict(RateSample)
        for process, now in counts.items():
            before = self._before.get(process)
            if before is None:
                continue  # The node is new: no earlier counters.
            for key, counted in now.items():
                was = before.get(key, _NOTHING)
                _add(rates[key], was, counted, max(seconds, 1e-9))
        return rates


def _add(rates: RateSample, was: _Counters, now: _Counters, seconds: float) -> None:
    """Add the rates of one node. Emptying a topic or rewinding a channel counts as 0, not as a
    negative rate."""
    came = now.messages - was.messages
    if came < 0:  # deleted and created again
        was, came = _NOTHING, now.messages
    rates.ingress += came / seconds
    rates.egress += max(came - (now.depth - was.depth), 0) / seconds
    rates.finished += max(came - (now.pending - was.pending), 0) / seconds


def _counts(node: NodeStats) -> _NodeCounts:
    counts = {}
    for topic in node.topics:
        counts[topic.topic_name, ""] = _Counters(topic.message_count, topic.depth, topic.depth)
        for channel in topic.channels:
            counts[topic.topic_name, channel.channel_name] = _Counters(
                channel.message_count, channel.depth, channel.pending_count
            )
    return counts


def _summed(snapshot: ClusterStats) -> dict[_Key, QueueStats]:
    stats: dict[_Key, QueueStats] = {}
    for topic, channel in _figures(snapshot):
        key = topic.topic_name, channel.channel_name if channel else ""
        each = stats.setdefault(key, QueueStats(*key))
        each.nodes += 1
        of = channel or topic
        each.depth += of.depth
        each.disk_depth += of.backend_depth
        each.messages += of.message_count
        each.is_paused |= of.paused
        if channel is not None:
            each.in_flight += channel.in_flight_count
            each.deferred += channel.deferred_count
            each.requeues += channel.requeue_count
            each.timeouts += channel.timeout_count
            each.clients += channel.client_count
    return stats


def _figures(snapshot: ClusterStats) -> Iterator[tuple[TopicSummary, ChannelSummary | None]]:
    for node in snapshot.nodes:
        for topic in node.topics:
            yield topic, None
            for channel in topic.channels:
                yield topic, channel
