"""Import of one topic into a log, with verification.

NSQ's nsqd stores a message once per channel; Penstock stores it once, and channels are cursors. So
the queues of the channels are merged by time, and equal messages at the heads of several queues
become one. Each queue keeps its order; messages that cannot be matched are stored twice.

The merged messages are appended to the topic's log and marked as finished for the channels that did
not have them. The messages of the topic's own queue follow, for all channels. A message keeps its
timestamp, body and attempts (the stored frame contains the number of the next delivery). It gets a
new id, since an id is a position in the log.

A cursor stores the messages that its channel does not have as ranges, which take memory. If the
queues alternate too often, the rest of each queue is appended one after the other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from google_crc32c import extend

from penstock.broker.message_id import id_number
from penstock.common.errors import StorageError
from penstock.migration.old_data_path import DamagedRange, OldQueue, OldTopic, QueueReport
from penstock.migration.queue_files import QueueRecord
from penstock.protocol import frames
from penstock.storage import DataPath, Run, TopicStore

__all__ = ["ChannelRecord", "TopicImport", "merge_queues"]

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 10_000
SYNC_BYTES = 64 << 20


# Merging queues -----------------------------------------------------------------------------------

# Maximum ranges of all cursors together: each channel may get one more at every change of queue.
RANGES_MAX = 200_000


class ChannelRecord(NamedTuple):
    """A message, and the channels to which it is still to be delivered."""

    channels: tuple[str, ...]
    record: QueueRecord


class _QueueHead(NamedTuple):
    """The next message of a queue; compares by time."""

    timestamp_ns: int
    id: bytes
    queue: int
    record: QueueRecord


def merge_queues(
    queues: Mapping[str, Iterator[QueueRecord]], ranges_max: int = RANGES_MAX
) -> Iterator[ChannelRecord]:
    """All messages of the queues, which are given by channel."""
    channels, iterators = list(queues), list(queues.values())
    heads: list[_QueueHead] = []
    for queue, records in enumerate(iterators):
        heads += _next_head(queue, records)
    heapify(heads)
    turns, last = 0, [-1]
    while heads and turns * len(channels) < ranges_max:
        same = _pop_same(heads)
        owners = [head.queue for head in same]
        turns += owners != last
        last = owners
        yield ChannelRecord(tuple(channels[queue] for queue in owners), same[0].record)
        for queue in owners:
            for head in _next_head(queue, iterators[queue]):
                heappush(heads, head)
    for head in sorted(heads):
        owner = (channels[head.queue],)
        yield ChannelRecord(owner, head.record)
        for record in iterators[head.queue]:
            yield ChannelRecord(owner, record)


def _next_head(queue: int, records: Iterator[QueueRecord]) -> list[_QueueHead]:
    """One head, or none at the end of the queue."""
    record = next(records, None)
    return [] if record is None else [_QueueHead(record.timestamp_ns, record.id, queue, record)]


def _pop_same(heads: list[_QueueHead]) -> list[_QueueHead]:
    """The first head, and those of other queues with exactly the same message."""
    same = [heappop(heads)]
    others: list[_QueueHead] = []
    while heads and heads[0][:2] == same[0][:2]:
        head = heappop(heads)
        (same if head.record == same[0].record else others).append(head)
    for head in others:
        heappush(heads, head)
    return same


# Writing and verifying ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Checksum:
    """Number of messages, and a checksum of their bytes in order."""

    count: int = 0
    checksum: int = 0

    def add(self, rendered: Sequence[bytes]) -> None:
        self.count += len(rendered)
        self.checksum = extend(self.checksum, b"".join(rendered))


class TopicImport:
    """Imports one topic. `reports` has the result for each queue."""

    def __init__(
        self,
        topic: OldTopic,
        node_id: int,
        on_damage: Callable[[DamagedRange], None],
        on_read: Callable[[int], None],
    ) -> None:
        self.name = topic.entry.name
        self.reports: list[QueueReport] = []
        self._topic = topic
        self._node_id = node_id
        self._on_damage = on_damage
        self._on_read = on_read
        self._stored = _Checksum()
        self._by_channel = {channel: _Checksum() for channel in topic.channels}

    def write(self, data_path: DataPath, wall_ns: int) -> None:
        """Write the topic to a data path that does not have it. Raises StorageError."""
        store, _ = data_path.open_topic(self.name, wall_ns=wall_ns)
        with closing(store):
            for channel in self._topic.channels:
                store.cursors.create(channel, store.log.next_seq)
            queues = {name: self._read(queue) for name, queue in self._topic.channels.items()}
            self._append(store, merge_queues(queues))
            held_from = store.log.next_seq
            all_channels = tuple(self._topic.channels)
            self._append(
                store, (ChannelRecord(all_channels, each) for each in self._read(self._topic.queue))
            )
            if all_channels:
                store.cursors.set_pause_point(held_from if self._topic.entry.paused else None)

    def verify(self, data_path: DataPath, wall_ns: int) -> None:
        """Read the imported messages back. Raises StorageError if those of the topic or of a
        channel differ from the original messages."""
        store, findings = data_path.open_topic(self.name, wall_ns=wall_ns)
        stored, given = _Checksum(), {channel: _Checksum() for channel in store.cursors.progress}
        with closing(store):
            for run in _runs(store):
                stored.add(run.frames)
                first, end = run.first_seq, run.next_seq
                for channel, progress in store.cursors.progress.items():
                    for start, stop in progress.open_ranges(first, end):
                        given[channel].add(run.frames[start - first : stop - first])
        if findings or (stored, given) != (self._stored, self._by_channel):
            raise StorageError(
                f"{self.name}: the imported messages could not be read back; check the disk"
            )

    def _read(self, queue: OldQueue) -> Iterator[QueueRecord]:
        report = queue.new_report()
        self.reports.append(report)
        return queue.records(report, self._on_damage, self._on_read)

    def _append(self, store: TopicStore, messages: Iterable[ChannelRecord]) -> None:
        unsynced_bytes = 0
        for owners, records in _batches(messages):
            first_seq = store.log.next_seq
            first_id = id_number(self._node_id, first_seq)
            rendered = [_frame(record, id) for id, record in enumerate(records, first_id)]
            store.log.append(rendered, max(0, *(record.timestamp_ns for record in records)))
            self._stored.add(rendered)
            for channel, tally in self._by_channel.items():
                if channel in owners:
                    tally.add(rendered)
                else:
                    store.cursors.finish(channel, first_seq, store.log.next_seq)
            store.cursors.flush()
            unsynced_bytes += sum(map(len, rendered))
            if unsynced_bytes >= SYNC_BYTES:
                store.log.sync()
                unsynced_bytes = 0


def _batches(
    messages: Iterable[ChannelRecord],
) -> Iterator[tuple[tuple[str, ...], list[QueueRecord]]]:
    """Consecutive messages of the same channels, in batches of limited size."""
    owners: tuple[str, ...] = ()
    batch: list[QueueRecord] = []
    size = 0
    for channels, record in messages:
        is_full = size >= BATCH_BYTES or len(batch) >= BATCH_MESSAGES
        if batch and (is_full or channels != owners):
            yield owners, batch
            batch, size = [], 0
        owners = channels
        batch.append(record)
        size += len(record.body)
    if batch:
        yield owners, batch


def _frame(record: QueueRecord, id: int) -> bytes:
    """The frame of the next delivery."""
    (frame,) = frames.render_messages([record.body], id, record.timestamp_ns)
    return frames.with_attempts(frame, record.attempts + 1) if record.attempts else frame


def _runs(store: TopicStore) -> Iterator[Run]:
    seq = store.log.first_seq
    while runs := store.log.read(seq, BATCH_BYTES):
        yield from runs
        seq = runs[-1].next_seq
