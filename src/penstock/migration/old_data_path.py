"""What NSQ's own nsqd has in its data path: topics, channels, and the queues of both.

`nsqd.dat` says which there are and which are paused. A queue of which it does not know has messages
all the same: its topic or channel is then made. Nothing here changes a file.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.common import names
from penstock.common.errors import DataPathError
from penstock.migration.old_queue import OldQueue
from penstock.migration.queue_files import QueueFile, QueueName, maybe_meta, maybe_queue_file
from penstock.nsqd import metadata
from penstock.nsqd.metadata import ChannelEntry, TopicEntry
from penstock.storage.files import Files, Lock, storage_error
from penstock.storage.layout import FORMAT_NAME, TOPICS_NAME, maybe_shard

__all__ = ["OldDataPath", "OldTopic", "lock_old"]

_META_BYTES_MAX = 4096


@dataclass(slots=True)
class OldTopic:
    """A topic, with what waits in it and in its channels."""

    entry: TopicEntry
    queue: OldQueue
    channels: dict[str, OldQueue] = field(default_factory=dict)

    @property
    def queues(self) -> list[OldQueue]:
        """Those of the channels, then the topic's own."""
        return [*self.channels.values(), self.queue]


@dataclass(slots=True)
class OldDataPath:
    """A data path of NSQ's nsqd; `OldDataPath.read` makes one."""

    path: str
    topics: dict[str, OldTopic] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str, files: Files) -> "OldDataPath":
        """List the topics and queues. Raises StorageError if there are none, if the path has topics
        of Penstock, or if it cannot be read."""
        try:
            found = files.names(path)
            queue_files = {name: file for name in found if (file := maybe_queue_file(name))}
            if FORMAT_NAME in found:
                _refuse_penstocks(path, found, files, has_queues=bool(queue_files))
        except OSError as error:
            raise storage_error("read", path, error) from error
        if metadata.FILE_NAME not in found and not queue_files:
            raise DataPathError(
                f"{path} has nothing of an nsqd: neither {metadata.FILE_NAME} nor *.diskqueue.*.dat"
            )
        old = cls(path)
        if metadata.FILE_NAME not in found:
            old.notes.append(f"{metadata.FILE_NAME} is missing: its queues say what there was")
        old._take_entries(metadata.read(Path(path)).topics, files)
        for name, file in queue_files.items():
            old._take_file(name, file, files)
        return old

    @property
    def queues(self) -> list[OldQueue]:
        return [queue for topic in self.topics.values() for queue in topic.queues]

    def _take_entries(self, entries: Iterable[TopicEntry] | None, files: Files) -> None:
        for entry in entries or ():
            if not self._is_kept("topic", entry.name):
                continue
            topic = self.topics.get(entry.name) or self._add_topic(entry, files)
            for channel in entry.channels or ():
                if channel.name not in topic.channels and self._is_kept("channel", channel.name):
                    self._add_channel(topic, channel, files)

    def _is_kept(self, kind: str, name: str) -> bool:
        if names.is_valid(name) and not names.is_ephemeral(name):
            return True
        self.notes.append(f"{kind} {name!r} has no name that is kept on disk; it is left out")
        return False

    def _take_file(self, name: str, file: QueueFile, files: Files) -> None:
        topic_name, channel_name = file.queue
        if names.is_ephemeral(topic_name):
            self.notes.append(f"{name} is of an ephemeral topic, which is not kept; it is left out")
            return
        topic = self.topics.get(topic_name)
        if topic is None:
            self.notes.append(f"topic {topic_name} is not in {metadata.FILE_NAME}; it is made")
            topic = self._add_topic(TopicEntry(topic_name), files)
        if channel_name is not None and channel_name not in topic.channels:
            self.notes.append(f"channel {file.queue} is not in {metadata.FILE_NAME}; it is made")
            self._add_channel(topic, ChannelEntry(channel_name), files)
        queue = topic.queue if channel_name is None else topic.channels[channel_name]
        if file.is_bad:
            queue.bad.append(name)
        elif file.number is not None:
            queue.numbered[file.number] = name
        else:
            queue.meta = maybe_meta(self._content(name, files))

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


def _refuse_penstocks(path: str, found: list[str], files: Files, *, has_queues: bool) -> None:
    """Raises DataPathError if the path has Penstock topics, which an import would leave out."""
    if not has_queues:
        raise DataPathError(
            f"{path} is a data path of Penstock ({FORMAT_NAME}), and has no queue of NSQ's nsqd: "
            f"nothing to import, start nsqd with --data-path={path}"
        )
    topics = files.names(f"{path}/{TOPICS_NAME}") if TOPICS_NAME in found else []
    if topics or any(maybe_shard(name) is not None for name in found):
        raise DataPathError(
            f"{path} has queues of NSQ's nsqd and topics of Penstock, which an import would leave "
            f"behind: move {FORMAT_NAME}, {TOPICS_NAME} and any shard-*, with a copy of "
            f"{metadata.FILE_NAME}, to another folder, start nsqd on it to deliver their messages, "
            "and import again"
        )


def lock_old(path: str, files: Files) -> Lock:
    """Makes sure, until it is closed, that no nsqd works on the folder. Raises DataPathError."""
    try:
        return files.lock(path, shared=True)
    except BlockingIOError as error:
        raise DataPathError(f"{path} is in use: stop its nsqd first") from error
    except OSError as error:
        raise DataPathError(f"cannot open {path}: {error.strerror or error}") from error
