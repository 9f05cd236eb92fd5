"""From a data path of NSQ's own nsqd to one of ours, all of it or nothing.

Everything is written to a data path within the new one, `importing`, and read back from there. Only
then its topics are moved to their place. What is interrupted before that has changed nothing and
begins again; what is interrupted while topics are moved is completed by the next run: that
`importing` has an `nsqd.dat` says that all of it has been verified.

The old data path is locked against an nsqd, and only read. Bytes that are no message are copied to
`import-damage`, one file for each stretch.
"""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from penstock.common.clock import Clock, SystemClock
from penstock.common.errors import DataPathError
from penstock.migration.old_data_path import OldDataPath, lock_old
from penstock.migration.old_queue import Damage, QueueReport
from penstock.migration.topic_import import TopicImport
from penstock.nsqd import metadata
from penstock.storage import DataPath, Files, LogSettings, RealFiles
from penstock.storage.files import append_and_sync, storage_error
from penstock.storage.layout import IMPORTING_NAME, TOPICS_NAME

__all__ = [
    "DAMAGE_NAME",
    "Found",
    "finish_interrupted",
    "import_data",
    "size_to_read",
    "survey",
]

DAMAGE_NAME = "import-damage"


@dataclass(slots=True)
class Found:
    """What there was to take over."""

    reports: list[QueueReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every queue is."""
        return all(report.is_complete for report in self.reports)


def survey(old_path: str, on_read: Callable[[int], None]) -> Found:
    """Reads everything, and writes nothing. Raises StorageError."""
    files = RealFiles()
    with closing(lock_old(old_path, files)):
        old = OldDataPath.read(old_path, files)
        found = _found_before(old)
        for queue in old.queues:
            report = queue.new_report()
            for _ in queue.records(report, on_read=on_read):
                pass
            found.reports.append(report)
    return found


def size_to_read(old_path: str) -> int:
    """How many bytes of messages there are, at most. Raises StorageError."""
    return _found_before(OldDataPath.read(old_path, RealFiles())).size_bytes


def import_data(
    old_path: str,
    new_path: str,
    *,
    node_id: int,
    on_read: Callable[[int], None],
    clock: Clock | None = None,
) -> Found:
    """Takes all topics over. `on_read` is told how many bytes have been read. Raises StorageError,
    and has changed nothing then."""
    files, clock = RealFiles(), clock or SystemClock()
    with closing(lock_old(old_path, files)):
        old = OldDataPath.read(old_path, files)
        with closing(_open(new_path)) as data_path:
            _refuse_what_is_there(old, data_path)
            _remove(f"{new_path}/{IMPORTING_NAME}")
            found = _found_before(old)
            _write(old, new_path, found, node_id, on_read, clock)
            _move_in(new_path, files)
    return found


def finish_interrupted(new_path: str) -> list[str]:
    """Completes an import that was interrupted after all of it had been verified; returns its
    topics, none if there is nothing to complete. Raises StorageError."""
    if not Path(new_path, IMPORTING_NAME, metadata.FILE_NAME).exists():
        return []
    with closing(_open(new_path)):
        return _move_in(new_path, RealFiles())


def _found_before(old: OldDataPath) -> Found:
    try:
        size_bytes = sum(queue.byte_size() for queue in old.queues)
    except OSError as error:
        raise storage_error("read", old.path, error) from error
    return Found(notes=list(old.notes), size_bytes=size_bytes)


def _open(path: str) -> DataPath:
    try:
        Path(path).mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error("make", path, error) from error
    return DataPath.open(path, LogSettings())


def _refuse_what_is_there(old: OldDataPath, data_path: DataPath) -> None:
    both = sorted(old.topics.keys() & set(data_path.topics()))
    if both:
        more = f" and {len(both) - 1} more" if len(both) > 1 else ""
        raise DataPathError(f"{data_path.path} has the topic {both[0]} already{more}")


def _write(
    old: OldDataPath,
    new_path: str,
    found: Found,
    node_id: int,
    on_read: Callable[[int], None],
    clock: Clock,
) -> None:
    """Everything, to the staging place, verified."""
    staging = f"{new_path}/{IMPORTING_NAME}"

    def keep(damage: Damage) -> None:
        _keep(f"{new_path}/{DAMAGE_NAME}", damage)

    try:
        with closing(_open(staging)) as data_path:
            for topic in old.topics.values():
                topic_import = TopicImport(topic, node_id, keep, on_read)
                topic_import.write(data_path, clock.wall_ns())
                topic_import.verify(data_path, clock.wall_ns())
                found.reports += topic_import.reports
        metadata.write(
            Path(staging), metadata.encode([topic.entry for topic in old.topics.values()])
        )
    except BaseException:
        _remove(staging)
        raise


def _move_in(new_path: str, files: Files) -> list[str]:
    """Moves verified topics to their place, and says in nsqd.dat that they are there."""
    staging = f"{new_path}/{IMPORTING_NAME}"
    entries = metadata.read(Path(staging)).topics or []
    try:
        for folder in files.names(f"{staging}/{TOPICS_NAME}"):
            Path(staging, TOPICS_NAME, folder).rename(Path(new_path, TOPICS_NAME, folder))
        files.sync_folder(f"{new_path}/{TOPICS_NAME}")
    except OSError as error:
        raise storage_error("move topics to", new_path, error) from error
    ours = {entry.name: entry for entry in metadata.read(Path(new_path)).topics or []}
    ours |= {entry.name: entry for entry in entries}
    metadata.write(Path(new_path), metadata.encode(list(ours.values())))
    _remove(staging)
    return [entry.name for entry in entries]


def _keep(folder: str, damage: Damage) -> None:
    """Copies bytes that are no message."""
    path = f"{folder}/{damage.file}.{damage.first_byte}-{damage.end_byte}"
    try:
        Path(folder).mkdir(exist_ok=True)
        Path(path).unlink(missing_ok=True)  # of an import that was interrupted
        for piece in damage.pieces:
            append_and_sync(RealFiles(), path, [piece])
    except OSError as error:
        raise storage_error("write", path, error) from error


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
