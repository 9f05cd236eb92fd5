"""Read-only access to a data path of NSQ's nsqd: topics, channels and their queues.

`nsqd.dat` lists topics and channels and whether they are paused. If a queue is not listed there,
its topic or channel is added.

The meta file of a queue contains its read and write positions. After a crash it is out of date;
then no message is lost: messages after the write position count, since producers received OK, and
messages that were read after the read position are delivered again, as by NSQ's nsqd. Without a
meta file, all messages in the files count.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.common import names
from penstock.common.errors import DataPathError
from penstock.migration.queue_files import (
    Meta,
    QueueFile,
    QueueName,
    QueuePosition,
    QueueRecord,
    RecordReader,
    parse_file_name,
    parse_meta,
)
from penstock.nsqd import metadata
from penstock.nsqd.metadata import ChannelEntry, TopicEntry
from penstock.storage.files import File, Files, Lock, storage_error
from penstock.storage.layout import FORMAT_NAME, METADATA_NAME, TOPICS_NAME, maybe_shard

__all__ = [
    "DamagedRange",
    "OldDataPath",
    "OldQueue",
    "OldTopic",
    "QueueReport",
    "lock_old_data_path",
]

_META_BYTES_MAX = 4096
_START = QueuePosition(0, 0)
_PROGRESS_BYTES = 1 << 20


# Queues -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes of a file that are not a record. `pieces` reads them, once, while the file is open.

    `is_leftover`: they are after the write position, so that a crash left them.
    """

    file: str
    first_byte: int
    end_byte: int
    is_leftover: bool
    pieces: Iterator[bytes] = field(compare=False)

    def __str__(self) -> str:
        why = ", left by a crash" if self.is_leftover else ""
        return f"{self.file}: bytes {self.first_byte} to {self.end_byte - 1} are not a record{why}"


@dataclass(slots=True)
class QueueReport:
    """Result of reading a queue."""

    queue: QueueName
    depth: int | None  # by the meta file; None without one
    found: int = 0
    late: int = 0  # of these, messages after the write position
    body_bytes: int = 0
    damage: list[DamagedRange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all messages counted in the meta file were found, without damage. There may be
        more: nsqd does not count messages that it finds after a crash."""
        has_depth = self.depth is None or self.found - self.late >= self.depth
        return has_depth and all(damage.is_leftover for damage in self.damage)


class OldQueue:
    """The files of one queue."""

    def __init__(self, files: Files, folder: str, name: QueueName) -> None:
        self.name = name
        self.meta: Meta | None = None
        self.numbered: dict[int, str] = {}
        """Names of the files with messages, by number."""
        self.bad: list[str] = []
        """Files that nsqd renamed to .bad."""
        self._files = files
        self._folder = folder

    def new_report(self) -> QueueReport:
        """A report with the problems that can be found without reading the messages."""
        report = QueueReport(self.name, self.meta.depth if self.meta else None)
        for number, name in sorted(self.numbered.items()):
            if number < self._read.file:
                report.notes.append(f"{name} was consumed; skipped")
        for number in self._missing():
            report.notes.append(
                f"file {number:06} of {self.name} is missing: consumed before a crash, or lost"
            )
        if self.meta is None and self.numbered:
            report.notes.append(
                f"{self.name} has no valid meta file: all its files are imported completely, "
                "so that consumed messages may be delivered again"
            )
        for name in self.bad:
            report.notes.append(f"{name} was marked bad by NSQ's nsqd; skipped")
        return report

    def records(
        self,
        report: QueueReport,
        on_damage: Callable[[DamagedRange], None] = lambda _: None,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> Iterator[QueueRecord]:
        """The messages; fills in `report`. `on_read` is called periodically with the number of
        bytes read since its last call. Raises StorageError."""
        for number, name in sorted(self.numbered.items()):
            if number < self._read.file:
                continue
            try:
                with contextlib.closing(self._files.open(f"{self._folder}/{name}", "read")) as file:
                    yield from self._records_of(number, name, file, report, on_damage, on_read)
            except OSError as error:
                raise storage_error("read", f"{self._folder}/{name}", error) from error

    def byte_size(self) -> int:
        """Maximum number of bytes to read."""
        total = 0
        for number, name in self.numbered.items():
            if number >= self._read.file:
                with contextlib.closing(self._files.open(f"{self._folder}/{name}", "read")) as file:
                    total += file.size()
        return total

    def _records_of(
        self,
        number: int,
        name: str,
        file: File,
        report: QueueReport,
        on_damage: Callable[[DamagedRange], None],
        on_read: Callable[[int], None],
    ) -> Iterator[QueueRecord]:
        reader, size = RecordReader(file), file.size()
        known_end = self._known_end(number, size)

        def keep(first: int, end: int) -> None:
            is_leftover = first >= known_end or (self.meta is None and end == size)
            damage = DamagedRange(name, first, end, is_leftover, reader.bytes_between(first, end))
            report.damage.append(damage)
            on_damage(damage)

        start = self._read.byte if number == self._read.file else 0
        reported = 0
        for position, record in reader.records(start, keep):
            report.found += 1
            report.late += position >= known_end
            report.body_bytes += len(record.body)
            if position - reported >= _PROGRESS_BYTES:
                on_read(position - reported)
                reported = position
            yield record
        on_read(size - reported)

    @property
    def _read(self) -> QueuePosition:
        return self.meta.read if self.meta is not None else _START

    def _known_end(self, number: int, size: int) -> int:
        """Write position in a file, by the meta file."""
        if self.meta is None or number < self.meta.write.file:
            return size
        return self.meta.write.byte if number == self.meta.write.file else 0

    def _missing(self) -> list[int]:
        """Numbers of the files that should exist according to the meta file, and do not."""
        if self.meta is None:
            return []
        end = self.meta.write.file + (self.meta.write.byte > 0)
        wanted = range(self._read.file, end) if self.meta.read < self.meta.write else ()
        return [number for number in wanted if number not in self.numbered]


# The data path ------------------------------------------------------------------------------------


@dataclass(slots=True)
class OldTopic:
    """A topic with its queue and those of its channels."""

    entry: TopicEntry
    queue: OldQueue
    channels: dict[str, OldQueue] = field(default_factory=dict)

    @property
    def queues(self) -> list[OldQueue]:
        """Queues of the channels, then that of the topic."""
        return [*self.channels.values(), self.queue]


@dataclass(slots=True)
class OldDataPath:
    """A data path of NSQ's nsqd; create it with `OldDataPath.read`."""

    path: str
    topics: dict[str, OldTopic] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str, files: Files) -> "OldDataPath":
        """List the topics and queues. Raises StorageError if there are none, if the path has topics
        of Penstock, or if it cannot be read."""
        try:
            found = files.list_names(path)
            queue_files = {name: file for name in found if (file := parse_file_name(name))}
            if FORMAT_NAME in found:
                _reject_penstock_topics(path, found, files, has_queues=bool(queue_files))
        except OSError as error:
            raise storage_error("read", path, error) from error
        if METADATA_NAME not in found and not queue_files:
            raise DataPathError(
                f"{path} has nothing of an nsqd: neither {METADATA_NAME} nor *.diskqueue.*.dat"
            )
        old = cls(path)
        if METADATA_NAME not in found:
            old.notes.append(f"{METADATA_NAME} is missing: topics are taken from the queue files")
        old._add_entries(metadata.read(Path(path)).topics, files)
        for name, file in queue_files.items():
            old._add_file(name, file, files)
        return old

    @property
    def queues(self) -> list[OldQueue]:
        return [queue for topic in self.topics.values() for queue in topic.queues]

    def _add_entries(self, entries: Iterable[TopicEntry] | None, files: Files) -> None:
        for entry in entries or ():
            if not self._is_persistent("topic", entry.name):
                continue
            topic = self.topics.get(entry.name) or self._add_topic(entry, files)
            for channel in entry.channels or ():
                if channel.name not in topic.channels and self._is_persistent(
                    "channel", channel.name
                ):
                    self._add_channel(topic, channel, files)

    def _is_persistent(self, kind: str, name: str) -> bool:
        if names.is_valid(name) and not names.is_ephemeral(name):
            return True
        self.notes.append(f"{kind} {name!r} is ephemeral or has an invalid name; skipped")
        return False

    def _add_file(self, name: str, file: QueueFile, files: Files) -> None:
        topic_name, channel_name = file.queue
        if names.is_ephemeral(topic_name):
            self.notes.append(f"{name} belongs to an ephemeral topic; skipped")
            return
        topic = self.topics.get(topic_name)
        if topic is None:
            self.notes.append(f"topic {topic_name} is not in {METADATA_NAME}; added")
            topic = self._add_topic(TopicEntry(topic_name), files)
        if channel_name is not None and channel_name not in topic.channels:
            self.notes.append(f"channel {file.queue} is not in {METADATA_NAME}; added")
            self._add_channel(topic, ChannelEntry(channel_name), files)
        queue = topic.queue if channel_name is None else topic.channels[channel_name]
        if file.is_bad:
            queue.bad.append(name)
        elif file.number is not None:
            queue.numbered[file.number] = name
        else:
            queue.meta = parse_meta(self._content(name, files))

    def _add_topic(self, entry: TopicEntry, files: Files) -> OldTopic:
        queue = OldQueue(files, self.path, QueueName(entry.name, None))
        known = TopicEntry(entry.name, entry.paused, [])
        topic = self.topics[entry.name] = OldTopic(known, queue)
        return topic

    def _add_channel(self, topic: OldTopic, entry: ChannelEntry, files: Files) -> None:
        assert topic.entry.channels is not None
        topic.entry.channels.append(ChannelEntry(entry.name, entry.paused))
        name = QueueName(topic.entry.name, entry.name)
        topic.channels[entry.name] = OldQueue(files, self.path, name)

    def _content(self, name: str, files: Files) -> bytes:
        try:
            with contextlib.closing(files.open(f"{self.path}/{name}", "read")) as file:
                return file.read(0, _META_BYTES_MAX)
        except OSError as error:
            raise storage_error("read", f"{self.path}/{name}", error) from error


def _reject_penstock_topics(path: str, found: list[str], files: Files, *, has_queues: bool) -> None:
    """Raises DataPathError if the path has Penstock topics, which an import would leave out."""
    if not has_queues:
        raise DataPathError(
            f"{path} is a data path of Penstock ({FORMAT_NAME}), and has no queue of NSQ's nsqd: "
            f"nothing to import, start nsqd with --data-path={path}"
        )
    topics = files.list_names(f"{path}/{TOPICS_NAME}") if TOPICS_NAME in found else []
    if topics or any(maybe_shard(name) is not None for name in found):
        raise DataPathError(
            f"{path} has queues of NSQ's nsqd and topics of Penstock, which an import would leave "
            f"behind: move {FORMAT_NAME}, {TOPICS_NAME} and any shard-*, with a copy of "
            f"{METADATA_NAME}, to another folder, start nsqd on it to deliver their messages, "
            "and import again"
        )


def lock_old_data_path(path: str, files: Files) -> Lock:
    """Lock the folder against nsqd until the lock is closed. Raises DataPathError."""
    try:
        return files.lock(path, shared=True)
    except BlockingIOError as error:
        raise DataPathError(f"{path} is in use: stop its nsqd first") from error
    except OSError as error:
        raise DataPathError(f"cannot open {path}: {error.strerror or error}") from error
