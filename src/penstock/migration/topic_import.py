"""One topic's way into a log of ours, and the proof that it has arrived.

What a channel had waiting is appended to the topic's log, and is finished for all channels that did
not have it; what waited in the topic follows, for all of them. A message keeps its time, body and
attempts; its id is new, since here an id is an address in the log. A frame that is stored says
which delivery the next one is, so that attempts need no note of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from google_crc32c import extend

from penstock.broker.message_id import id_number
from penstock.common.errors import StorageError
from penstock.migration.merging import Owned, merged
from penstock.migration.old_data_path import OldTopic
from penstock.migration.old_queue import Damage, OldQueue, QueueReport
from penstock.migration.queue_files import Record
from penstock.protocol import frames as wire
from penstock.storage import DataPath, Run, TopicStore

__all__ = ["TopicImport"]

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 10_000
SYNC_BYTES = 64 << 20


@dataclass(slots=True)
class _Tally:
    """How many messages there are, and a checksum of all their bytes, in order."""

    count: int = 0
    checksum: int = 0

    def add(self, frames: Sequence[bytes]) -> None:
        self.count += len(frames)
        self.checksum = extend(self.checksum, b"".join(frames))


class TopicImport:
    """Takes one topic over. `reports` say, when that is done, what was found of each queue."""

    def __init__(
        self,
        topic: OldTopic,
        node_id: int,
        on_damage: Callable[[Damage], None],
        on_read: Callable[[int], None],
    ) -> None:
        self.name = topic.entry.name
        self.reports: list[QueueReport] = []
        self._topic = topic
        self._node_id = node_id
        self._on_damage = on_damage
        self._on_read = on_read
        self._stored = _Tally()
        self._given = {channel: _Tally() for channel in topic.channels}

    def write(self, data_path: DataPath, wall_ns: int) -> None:
        """Writes the topic to a data path that does not have it yet. Raises StorageError."""
        store, _ = data_path.open_topic(self.name, wall_ns=wall_ns)
        with closing(store):
            for channel in self._topic.channels:
                store.cursors.create(channel, store.log.next_seq)
            queues = {name: self._read(queue) for name, queue in self._topic.channels.items()}
            self._append(store, merged(queues))
            held_from = store.log.next_seq
            everyone = tuple(self._topic.channels)
            self._append(store, (Owned(everyone, each) for each in self._read(self._topic.queue)))
            if everyone:
                store.cursors.set_pause_point(held_from if self._topic.entry.paused else None)

    def verify(self, data_path: DataPath, wall_ns: int) -> None:
        """Reads everything back, channel by channel. Raises StorageError if it is not what was
        written."""
        store, findings = data_path.open_topic(self.name, wall_ns=wall_ns)
        stored, given = _Tally(), {channel: _Tally() for channel in store.cursors.progress}
        with closing(store):
            for run in _runs(store):
                stored.add(run.frames)
                first, end = run.first_seq, run.next_seq
                for channel, progress in store.cursors.progress.items():
                    for start, stop in progress.open_ranges(first, end):
                        given[channel].add(run.frames[start - first : stop - first])
        if findings or (stored, given) != (self._stored, self._given):
            raise StorageError(
                f"{self.name}: what was written could not be read back; is the disk in order?"
            )

    def _read(self, queue: OldQueue) -> Iterator[Record]:
        report = queue.new_report()
        self.reports.append(report)
        return queue.records(report, self._on_damage, self._on_read)

    def _append(self, store: TopicStore, messages: Iterable[Owned]) -> None:
        unsynced_bytes = 0
        for owners, records in _batches(messages):
            first_seq = store.log.next_seq
            first_id = id_number(self._node_id, first_seq)
            frames = [_frame(record, id) for id, record in enumerate(records, first_id)]
            store.log.append(frames, max(0, *(record.timestamp_ns for record in records)))
            self._stored.add(frames)
            for channel, tally in self._given.items():
                if channel in owners:
                    tally.add(frames)
                else:
                    store.cursors.finish(channel, first_seq, store.log.next_seq)
            store.cursors.flush()
            unsynced_bytes += sum(map(len, frames))
            if unsynced_bytes >= SYNC_BYTES:
                store.log.sync()
                unsynced_bytes = 0


def _batches(messages: Iterable[Owned]) -> Iterator[tuple[tuple[str, ...], list[Record]]]:
    """Messages of the same channels that follow on each other, as many as are good to write."""
    owners: tuple[str, ...] = ()
    batch: list[Record] = []
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


def _frame(record: Record, id: int) -> bytes:
    """The message as it is to be delivered next."""
    (frame,) = wire.render_messages([record.body], id, record.timestamp_ns)
    return wire.with_attempts(frame, record.attempts + 1) if record.attempts else frame


def _runs(store: TopicStore) -> Iterator[Run]:
    seq = store.log.first_seq
    while runs := store.log.read(seq, BATCH_BYTES):
        yield from runs
        seq = runs[-1].next_seq
