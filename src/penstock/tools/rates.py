"""From counters to rates: how fast messages come and go, and how that was a moment ago.

A rate is the sum of what each node counted between two snapshots. So a node that joins or was
restarted brings its past without making a peak of it, and one that leaves makes no hole. Pure: time
comes with the snapshots.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.admin_api.cluster import ClusterStats, NodeStats
from penstock.admin_api.models import ChannelSummary, TopicSummary

__all__ = ["SAMPLES_MAX", "QueueMeter", "QueueStats", "RateSample"]

# As much as a sparkline ever shows.
SAMPLES_MAX = 60


@dataclass(slots=True)
class QueueStats:
    """A topic or, with a name of its own, a channel: the figures of all nodes taken together."""

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
    trail: list["RateSample"] = field(default_factory=list)
    """The past up to now, which is `rates`."""

    @property
    def pending(self) -> int:
        """Messages that somebody still has to finish."""
        return self.depth + self.in_flight + self.deferred


@dataclass(slots=True)
class RateSample:
    """What happened between two snapshots, in messages a second, and how many waited then."""

    ingress: float = 0.0
    """Published."""
    egress: float = 0.0
    """Taken from the queue, which is what `nsq_stat` calls it."""
    finished: float = 0.0
    """Done with."""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class _Counted:
    """What is compared between two snapshots, for one topic or channel of one node."""

    messages: int
    depth: int
    pending: int


_NOTHING = _Counted(0, 0, 0)
_Key = tuple[str, str]  # topic and channel
_Process = tuple[str, int]  # a node's address, and when it was started
_NodeCounts = dict[_Key, _Counted]


class QueueMeter:
    """Is shown one snapshot after the other."""

    def __init__(self) -> None:
        self._before: dict[_Process, _NodeCounts] = {}
        self._before_at = 0.0
        self._trails: dict[_Key, deque[RateSample]] = {}

    def observe(self, snapshot: ClusterStats) -> list[QueueStats]:
        """Every topic, each followed by its channels, by name."""
        flows = _summed(snapshot)
        counts = {(node.address, node.started_at): _counts(node) for node in snapshot.nodes}
        if self._before_at:
            rates = self._rates(counts, snapshot.taken_at - self._before_at)
            for key, flow in flows.items():
                rates[key].depth = flow.depth
            self._trails = {key: self._trail(key, rates[key]) for key in flows}
            for key, flow in flows.items():
                flow.rates, flow.trail = rates[key], list(self._trails[key])
        self._before, self._before_at = counts, snapshot.taken_at
        return [flows[key] for key in sorted(flows)]

    def _trail(self, key: _Key, latest: RateSample) -> deque[RateSample]:
        trail = self._trails.get(key) or deque(maxlen=SAMPLES_MAX)
        trail.append(latest)
        return trail

    def _rates(
        self, counts: dict[_Process, _NodeCounts], seconds: float
    ) -> defaultdict[_Key, RateSample]:
        rates: defaultdict[_Key, RateSample] = defaultdict(RateSample)
        for process, now in counts.items():
            before = self._before.get(process)
            if before is None:
                continue  # It has joined: there is nothing to compare it with.
            for key, counted in now.items():
                was = before.get(key, _NOTHING)
                _add(rates[key], was, counted, max(seconds, 1e-9))
        return rates


def _add(rates: RateSample, was: _Counted, now: _Counted, seconds: float) -> None:
    """A topic may be emptied and a channel rewound; neither is a rate below zero."""
    came = now.messages - was.messages
    if came < 0:  # deleted and made anew
        was, came = _NOTHING, now.messages
    rates.ingress += came / seconds
    rates.egress += max(came - (now.depth - was.depth), 0) / seconds
    rates.finished += max(came - (now.pending - was.pending), 0) / seconds


def _counts(node: NodeStats) -> _NodeCounts:
    counts = {}
    for topic in node.topics:
        counts[topic.topic_name, ""] = _Counted(topic.message_count, topic.depth, topic.depth)
        for channel in topic.channels:
            counts[topic.topic_name, channel.channel_name] = _Counted(
                channel.message_count, channel.depth, channel.pending_count
            )
    return counts


def _summed(snapshot: ClusterStats) -> dict[_Key, QueueStats]:
    flows: dict[_Key, QueueStats] = {}
    for topic, channel in _figures(snapshot):
        key = topic.topic_name, channel.channel_name if channel else ""
        flow = flows.setdefault(key, QueueStats(*key))
        flow.nodes += 1
        of = channel or topic
        flow.depth += of.depth
        flow.disk_depth += of.backend_depth
        flow.messages += of.message_count
        flow.is_paused |= of.paused
        if channel is not None:
            flow.in_flight += channel.in_flight_count
            flow.deferred += channel.deferred_count
            flow.requeues += channel.requeue_count
            flow.timeouts += channel.timeout_count
            flow.clients += channel.client_count
    return flows


def _figures(snapshot: ClusterStats) -> Iterator[tuple[TopicSummary, ChannelSummary | None]]:
    for node in snapshot.nodes:
        for topic in node.topics:
            yield topic, None
            for channel in topic.channels:
                yield topic, channel
