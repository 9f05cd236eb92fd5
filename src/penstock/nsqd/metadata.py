"""`nsqd.dat`: which topics and channels there are and which are paused, as JSON in NSQ's own shape.

    {"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}],"version":"1.3.0"}

What NSQ knows nothing of has keys of its own, which are left out unless they are needed and which
NSQ's nsqd skips: `"retention":{"time_ns":...,"bytes":...}` of a topic that has its own, null for a
limit that is not set, and `"mode":"commit"` of a channel that is moved by commits.

A lasting topic or channel is on disk already, in its folder or its topic's journal, before this
file names it, so after a crash the file may lag behind what was made; it is never behind on what
was deleted or paused, because those are written at once.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from penstock import NSQ_VERSION
from penstock.broker.broker import Broker
from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.errors import DataPathError, StorageError
from penstock.common.json_decode import decode_json
from penstock.common.logs import Logger
from penstock.storage import RealFiles, Retention

__all__ = [
    "FILE_NAME",
    "ChannelEntry",
    "Metadata",
    "TopicEntry",
    "encode",
    "read",
    "render",
    "restore",
    "write",
]

FILE_NAME = "nsqd.dat"


class ChannelEntry(msgspec.Struct):
    """What the file says of a channel."""

    name: str
    paused: bool = False
    mode: str | UnsetType = UNSET


class _Retention(msgspec.Struct):
    time_ns: int | None = None
    bytes: int | None = None


class TopicEntry(msgspec.Struct):
    """What the file says of a topic."""

    name: str
    paused: bool = False
    channels: list[ChannelEntry] | None = None
    retention: _Retention | UnsetType = UNSET


_Named = TypeVar("_Named", TopicEntry, ChannelEntry)


class Metadata(msgspec.Struct):
    """What the file says."""

    topics: list[TopicEntry] | None = None
    version: str = ""


def restore(data_path: Path, broker: Broker, log: Logger) -> None:
    """Makes the topics and channels that the file names, and has them as it says they were."""
    metadata = read(data_path)
    unnamed = dict(broker.topics)
    for stored_topic in _with_valid_names(metadata.topics, "topic", log):
        unnamed.pop(stored_topic.name, None)
        topic = broker.topic(stored_topic.name)
        for stored_channel in _with_valid_names(stored_topic.channels, "channel", log):
            # One whose cursor a power loss has taken begins where the log does: what it had
            # finished comes again, but what it had not is not passed by.
            channel = topic.channel(stored_channel.name, topic.log.first_seq)
            if stored_channel.paused:
                channel.pause(True)
            channel.set_committing(stored_channel.mode == "commit")
        topic.pause(stored_topic.paused)
        if stored_topic.retention is not UNSET and topic.store is not None:
            kept = stored_topic.retention
            topic.retain(Retention(kept.time_ns, kept.bytes))
    for topic in unnamed.values():
        topic.pause(False)  # made just before a crash; had it been paused, the file would say so


def render(topics: Iterable[Topic]) -> bytes:
    """The file's content."""
    lasting = [_describe(topic) for topic in topics if not topic.ephemeral]
    return encode(lasting)


def encode(topics: list[TopicEntry]) -> bytes:
    """The file's content, of what it shall say."""
    return msgspec.json.encode(Metadata(topics=topics or None, version=NSQ_VERSION))


def read(data_path: Path) -> Metadata:
    """What the file of a data path says; nothing, if there is none. Raises DataPathError."""
    file = data_path / FILE_NAME
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return Metadata()
    except OSError as failure:
        raise DataPathError(f"cannot read {file}: {failure.strerror}") from failure
    try:
        return decode_json(content, Metadata) if content else Metadata()
    except ValueError as failure:
        raise DataPathError(f"failed to parse metadata in {file} - {failure}") from failure


def write(data_path: Path, content: bytes) -> None:
    """Writes the file anew: a crash leaves the old one or the new one, whole."""
    try:
        with NamedTemporaryFile(
            dir=data_path, prefix=f"{FILE_NAME}.", suffix=".tmp", delete=False
        ) as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, data_path / FILE_NAME)
            except OSError:
                os.unlink(file.name)
                raise
        RealFiles().sync_folder(str(data_path))
    except OSError as failure:
        raise StorageError(f"cannot write {FILE_NAME}: {failure.strerror}") from failure


def _describe(topic: Topic) -> TopicEntry:
    channels = [
        ChannelEntry(channel.name, channel.paused, "commit" if channel.committing else UNSET)
        for channel in topic.channels.values()
        if not channel.ephemeral
    ]
    described = TopicEntry(topic.name, topic.paused, channels or None)
    if topic.retention is not None:
        described.retention = _Retention(topic.retention.time_ns, topic.retention.size_bytes)
    return described


def _with_valid_names(entries: list[_Named] | None, kind: str, log: Logger) -> Iterable[_Named]:
    for entry in entries or ():
        if names.is_valid(entry.name):
            yield entry
        else:
            log.warning("skipping creation of invalid %s %s", kind, entry.name)
