"""The last hour of every topic, channel and node, for the charts.

One sample after the other is written into rings: a fine one for the last minutes and a coarse one,
each of whose points is the mean of several fine ones, for the hour. All series share the rings'
times. A series that has always been zero has no ring at all, so that a cluster of thousands of idle
channels costs little; what has not been seen for an hour is forgotten, and there is a limit to how
many are kept. Pure: time comes with the samples.

A rate is the sum of what each node counted since the sample before. So a node that joins or was
restarted brings its past without making a peak of it.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from penstock.admin_api.cluster import NodeStats
from penstock.admin_api.models import ChannelSummary

__all__ = ["CLUSTER", "Chronicle", "Figures", "Key", "channel_key", "node_key", "topic_key"]

FINE_SECONDS, FINE_POINTS_MAX = 600.0, 300
COARSE_SECONDS, COARSE_POINTS = 30.0, 120

# 20,000 series in which all is moving take about 150 MB.
KEYS_MAX = 20_000

Key = tuple[str, ...]
CLUSTER: Key = ("cluster",)


def topic_key(topic: str) -> Key:
    """Where the series of a topic are."""
    return "topic", topic


def channel_key(topic: str, channel: str) -> Key:
    """Where the series of a channel are."""
    return "channel", topic, channel


def node_key(address: str) -> Key:
    """Where the series of a node are."""
    return "node", address


@dataclass(slots=True)
class Figures:
    """What there is at one moment. Rates are in messages a second."""

    published: float = 0.0
    finished: float = 0.0
    requeued: float = 0.0
    timed_out: float = 0.0
    depth: float = 0.0
    in_flight: float = 0.0
    deferred: float = 0.0
    latency_ms: float = 0.0  # the highest quantile that nsqds measure, if they do


_NAMES = tuple(field.name for field in fields(Figures))
_NOTHING = Figures()

_Counts = tuple[int, int, int, int]  # published, pending, requeued, timed out
_NOT_COUNTED: _Counts = (0, 0, 0, 0)
_Process = tuple[str, int]  # a node's address, and when it was started


class _Record:
    """The rings of one key."""

    __slots__ = ("coarse", "fine", "latest", "seen_tick")

    def __init__(self) -> None:
        self.fine: list[array[float] | None] = [None] * len(_NAMES)
        self.coarse: list[array[float] | None] = [None] * len(_NAMES)
        self.latest = _NOTHING
        self.seen_tick = 0


class Chronicle:
    """Is shown one sample after the other."""

    def __init__(self, interval_seconds: float) -> None:
        interval_seconds = interval_seconds or COARSE_SECONDS
        self._fine_points = max(min(int(FINE_SECONDS / interval_seconds), FINE_POINTS_MAX), 2)
        self._fine_per_coarse = max(round(COARSE_SECONDS / interval_seconds), 1)
        self._fine_times = array("d", bytes(8 * self._fine_points))
        self._coarse_times = array("d", bytes(8 * COARSE_POINTS))
        self._tick = 0
        self._records: dict[Key, _Record] = {}
        self._before: dict[_Process, dict[Key, _Counts]] = {}
        self._before_at = 0.0

    # Looking.

    def latest(self, key: Key) -> Figures:
        """The figures of the last sample; zeros for what was not in it."""
        record = self._records.get(key)
        return record.latest if record is not None else _NOTHING

    def series(self, key: Key, names: Sequence[str], *, fine: bool) -> dict[str, list[float]]:
        """These figures over time, oldest first, and their `time` in seconds."""
        times = self._fine_times if fine else self._coarse_times
        order = list(self._slots(fine=fine))
        result = {"time": [times[slot] for slot in order]}
        for name in names:
            ring = self._ring(key, name, fine=fine)
            result[name] = [ring[slot] for slot in order] if ring else [0.0] * len(order)
        return result

    def trail(self, key: Key, name: str, points: int) -> list[float]:
        """The last few minutes of one figure, oldest first, in at most so many points."""
        slots = list(self._slots(fine=True))[-points:]
        ring = self._ring(key, name, fine=True)
        return [ring[slot] for slot in slots] if ring else [0.0] * len(slots)

    # Recording.

    def observe(self, answers: Iterable[NodeStats], at_seconds: float) -> None:
        """Adds a sample, taken at this time of day."""
        answers = list(answers)
        found = _gauges(answers)
        counts = {
            (answer.node.address, answer.stats.start_time): _counts(answer) for answer in answers
        }
        if self._before_at:
            self._add_rates(found, counts, max(at_seconds - self._before_at, 1e-3))
        self._before, self._before_at = counts, at_seconds
        self._write(found, at_seconds)

    def _add_rates(
        self,
        found: dict[Key, Figures],
        counts: dict[_Process, dict[Key, _Counts]],
        seconds: float,
    ) -> None:
        for process, now in counts.items():
            before = self._before.get(process)
            if before is None:
                continue  # It has joined: there is nothing to compare it with.
            wholes = (found[CLUSTER], found[node_key(process[0])])
            for key, counted in now.items():
                was = before.get(key, _NOT_COUNTED)
                if counted[0] < was[0]:  # deleted and made anew
                    was = _NOT_COUNTED
                if key[0] == "topic":
                    _add_published((*wholes, found[key]), was, counted, seconds)
                else:
                    _add_published((found[key],), was, counted, seconds)
                    parts = (*wholes, found[topic_key(key[1])], found[key])
                    _add_done(parts, was, counted, seconds)

    def _write(self, found: dict[Key, Figures], at_seconds: float) -> None:
        slot = self._tick % self._fine_points
        self._fine_times[slot] = at_seconds
        for key, figures in found.items():
            record = self._records.get(key)
            if record is None:
                if len(self._records) >= KEYS_MAX:
                    continue
                record = self._records[key] = _Record()
            record.seen_tick, record.latest = self._tick, figures
            self._put(record, slot, figures)
        self._write_absent(slot)
        self._tick += 1
        if self._tick % self._fine_per_coarse == 0:
            self._write_coarse(at_seconds)

    def _put(self, record: _Record, slot: int, figures: Figures) -> None:
        for number, name in enumerate(_NAMES):
            value, ring = getattr(figures, name), record.fine[number]
            if ring is None:
                if not value:
                    continue
                ring = record.fine[number] = array("f", bytes(4 * self._fine_points))
            ring[slot] = value

    def _write_absent(self, slot: int) -> None:
        """What is gone counts nothing, and is forgotten when it is out of the charts."""
        forgotten = []
        for key, record in self._records.items():
            if record.seen_tick != self._tick:
                record.latest = _NOTHING
                self._put(record, slot, _NOTHING)
                if self._tick - record.seen_tick > self._fine_per_coarse * COARSE_POINTS:
                    forgotten.append(key)
        for key in forgotten:
            del self._records[key]

    def _write_coarse(self, at_seconds: float) -> None:
        slot = self._coarse_tick % COARSE_POINTS
        count = min(self._fine_per_coarse, self._fine_points)
        slots = [(self._tick - 1 - back) % self._fine_points for back in range(count)]
        self._coarse_times[slot] = at_seconds
        for record in self._records.values():
            for number, fine in enumerate(record.fine):
                ring = record.coarse[number]
                if fine is None and ring is None:
                    continue
                if ring is None:
                    ring = record.coarse[number] = array("f", bytes(4 * COARSE_POINTS))
                ring[slot] = sum(fine[each] for each in slots) / count if fine else 0.0

    # Within.

    @property
    def _coarse_tick(self) -> int:
        return self._tick // self._fine_per_coarse - 1

    def _slots(self, *, fine: bool) -> Iterator[int]:
        """Where the samples are in the rings, oldest first."""
        points = self._fine_points if fine else COARSE_POINTS
        end = self._tick if fine else self._tick // self._fine_per_coarse
        return (tick % points for tick in range(max(end - points, 0), end))

    def _ring(self, key: Key, name: str, *, fine: bool) -> "array[float] | None":
        record = self._records.get(key)
        if record is None:
            return None
        return (record.fine if fine else record.coarse)[_NAMES.index(name)]


def _gauges(answers: Sequence[NodeStats]) -> dict[Key, Figures]:
    found: dict[Key, Figures] = {CLUSTER: Figures()}
    for answer in answers:
        node = found.setdefault(node_key(answer.node.address), Figures())
        for topic in answer.stats.topics or ():
            of_topic = found.setdefault(topic_key(topic.topic_name), Figures())
            wholes = (found[CLUSTER], node, of_topic)
            for whole in wholes:
                whole.depth += topic.depth
            for channel in topic.channels:
                key = channel_key(topic.topic_name, channel.channel_name)
                own = found.setdefault(key, Figures())
                for figures in (*wholes, own):
                    _add_gauges(figures, channel)
    return found


def _add_gauges(figures: Figures, channel: ChannelSummary) -> None:
    figures.depth += channel.depth
    figures.in_flight += channel.in_flight_count
    figures.deferred += channel.deferred_count
    percentiles = channel.e2e_processing_latency.percentiles
    if percentiles:
        slowest = max(percentiles, key=lambda each: each.get("quantile", 0.0))
        figures.latency_ms = max(figures.latency_ms, slowest.get("value", 0.0) / 1e6)


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


def _add_published(wholes: Iterable[Figures], was: _Counts, now: _Counts, seconds: float) -> None:
    rate = (now[0] - was[0]) / seconds
    for figures in wholes:
        figures.published += rate


def _add_done(wholes: Iterable[Figures], was: _Counts, now: _Counts, seconds: float) -> None:
    """A channel may be emptied or rewound: neither is a rate below zero."""
    finished = max(now[0] - was[0] - (now[1] - was[1]), 0) / seconds
    requeued = max(now[2] - was[2], 0) / seconds
    timed_out = max(now[3] - was[3], 0) / seconds
    for figures in wholes:
        figures.finished += finished
        figures.requeued += requeued
        figures.timed_out += timed_out
