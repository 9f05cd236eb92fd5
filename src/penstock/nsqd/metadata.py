"""`nsqd.dat`: topics and channels and their settings (paused, retention, mode), as JSON in the
format of NSQ.

    {"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}],"version":"1.3.0"}

Penstock adds two keys, which NSQ's nsqd ignores and which are omitted unless they are set: a
topic's `"retention":{"time_ns":...,"bytes":...}` (null for a limit that is not set), and a
channel's `"mode":"commit"`.

The topic folders and their cursors define which topics and channels exist: they are on disk before
this file names them, and it may lag behind after a crash. The file defines their settings, and is
written before a pause, an unpause or a deletion is answered. A channel that only this file names
has lost its cursor in a power loss; `restore` creates it again.
"""

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from penstock import NSQ_VERSION
from penstock.broker.broker import Broker
from penstock.broker.engine import EventLoop, TimerHandle
from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.errors import DataPathError, StorageError
from penstock.common.go_json import decode_json
from penstock.common.logs import Logger
from penstock.storage import RealFiles, Retention
from penstock.storage.files import Files, replace_file
from penstock.storage.layout import METADATA_NAME

__all__ = [
    "ChannelEntry",
    "Metadata",
    "MetadataWriter",
    "ThreadsafeLoop",
    "TopicEntry",
    "encode",
    "read",
    "render",
    "restore",
    "write",
]

# Delay before new topics and channels are written, so that a thousand creations share one write.
DELAY_SECONDS = 0.05

# Delay before a failed write is retried.
RETRY_SECONDS = 1.0

_REAL_FILES = RealFiles()


class ChannelEntry(msgspec.Struct):
    """A channel's entry."""

    name: str
    paused: bool = False
    mode: str | UnsetType = UNSET


class _Retention(msgspec.Struct):
    time_ns: int | None = None
    bytes: int | None = None


class TopicEntry(msgspec.Struct):
    """A topic's entry."""

    name: str
    paused: bool = False
    channels: list[ChannelEntry] | None = None
    retention: _Retention | UnsetType = UNSET


_Named = TypeVar("_Named", TopicEntry, ChannelEntry)


class Metadata(msgspec.Struct):
    """Content of the file."""

    topics: list[TopicEntry] | None = None
    version: str = ""


def restore(folder: str | Path, broker: Broker, log: Logger, files: Files = _REAL_FILES) -> None:
    """Applies the file to a broker that has just opened its topics. Raises DataPathError and
    StorageError."""
    metadata = read(folder, files)
    unnamed = dict(broker.topics)
    for topic_entry in _with_valid_names(metadata.topics, "topic", log):
        unnamed.pop(topic_entry.name, None)
        topic = broker.topic(topic_entry.name)
        for channel_entry in _with_valid_names(topic_entry.channels, "channel", log):
            # A channel without a cursor starts at the beginning of the log: finished messages are
            # delivered again, but no unfinished message is lost.
            channel = topic.channel(channel_entry.name, topic.log.first_seq)
            if channel_entry.paused:
                channel.pause(True)
            channel.set_committing(channel_entry.mode == "commit")
        topic.pause(topic_entry.paused)
        if topic_entry.retention is not UNSET and topic.store is not None:
            limits = topic_entry.retention
            topic.retain(Retention(limits.time_ns, limits.bytes))
    for topic in unnamed.values():
        topic.pause(False)  # Created just before a crash. A paused topic would be in the file.


def render(topics: Iterable[Topic]) -> bytes:
    """Content of nsqd.dat for these topics, without ephemeral ones."""
    return encode([_entry_of(topic) for topic in topics if not topic.ephemeral])


def encode(topics: list[TopicEntry]) -> bytes:
    """Content of nsqd.dat for these entries."""
    return msgspec.json.encode(Metadata(topics=topics or None, version=NSQ_VERSION))


def read(folder: str | Path, files: Files = _REAL_FILES) -> Metadata:
    """Reads nsqd.dat in a data path; empty if the file does not exist. Raises DataPathError."""
    path = f"{folder}/{METADATA_NAME}"
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            content = file.read(0, file.size())
    except FileNotFoundError:
        return Metadata()
    except OSError as failure:
        raise DataPathError(f"cannot read {path}: {failure.strerror}") from failure
    try:
        return decode_json(content, Metadata) if content else Metadata()
    except ValueError as failure:
        raise DataPathError(f"failed to parse metadata in {path} - {failure}") from failure


def write(folder: str | Path, content: bytes, files: Files = _REAL_FILES) -> None:
    """Replaces the file: a crash leaves the old content or the new. Raises StorageError."""
    path, new_path = f"{folder}/{METADATA_NAME}", f"{folder}/{METADATA_NAME}.tmp"
    try:
        replace_file(files, path, new_path, content)
    except OSError as failure:
        with contextlib.suppress(OSError):
            _remove_if_exists(new_path, files)
        raise StorageError(f"cannot write {METADATA_NAME}: {failure.strerror}") from failure


class ThreadsafeLoop(EventLoop, Protocol):
    """An event loop that other threads can call."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> object:
        """`call_soon` for another thread."""


class MetadataWriter:
    """Keeps the file up to date. Writes run in an executor, one after the other."""

    def __init__(
        self,
        folder: str | Path,
        render: Callable[[], bytes],
        log: Logger,
        loop: ThreadsafeLoop,
        executor: Executor,
        files: Files = _REAL_FILES,
    ) -> None:
        """`executor` has one thread, so that the last write is the newest; `close` shuts it
        down."""
        self._folder = folder
        self._render = render
        self._log = log
        self._loop = loop
        self._executor = executor
        self._files = files
        self._timer: TimerHandle | None = None
        self._is_closed = False

    def write_soon(self) -> None:
        """Writes within DELAY_SECONDS."""
        self._write_in(DELAY_SECONDS)

    def write(self, done: Callable[[StorageError | None], None]) -> None:
        """Writes now. Calls `done` in the loop once the file is fsynced, or with the failure; a
        failed write is retried."""
        self._submit().add_done_callback(
            lambda written: self._loop.call_soon_threadsafe(done, written.result())
        )

    def write_and_wait(self) -> StorageError | None:
        """Writes now and blocks until the file is fsynced. Returns the failure, which is logged
        and retried."""
        return self._submit().result()

    def close(self) -> None:
        """Writes for the last time, and ends the executor. A failure is logged."""
        self._is_closed = True
        self.write_and_wait()
        self._executor.shutdown()

    def _write_in(self, seconds: float) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(seconds, self._submit)

    def _submit(self) -> Future[StorageError | None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._executor.submit(self._try, self._render())

    def _try(self, content: bytes) -> StorageError | None:
        try:
            write(self._folder, content, self._files)
        except StorageError as failure:
            self._log.error("failed to persist metadata - %s", failure)
            self._loop.call_soon_threadsafe(self._write_in, RETRY_SECONDS)
            return failure
        return None


def _remove_if_exists(path: str, files: Files) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.remove(path)


def _entry_of(topic: Topic) -> TopicEntry:
    channels = [
        ChannelEntry(channel.name, channel.paused, "commit" if channel.committing else UNSET)
        for channel in topic.channels.values()
        if not channel.ephemeral
    ]
    entry = TopicEntry(topic.name, topic.paused, channels or None)
    if topic.retention is not None:
        entry.retention = _Retention(topic.retention.time_ns, topic.retention.size_bytes)
    return entry


def _with_valid_names(entries: list[_Named] | None, kind: str, log: Logger) -> Iterable[_Named]:
    for entry in entries or ():
        if names.is_valid(entry.name):
            yield entry
        else:
            log.warning("skipping creation of invalid %s %s", kind, entry.name)
