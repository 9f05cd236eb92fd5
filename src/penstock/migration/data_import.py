"""Import of a data path of NSQ's nsqd, as one atomic operation.

All topics are written to a data path inside the new one, `importing`, and read back from there.
Then they are moved to their final place. An import that is interrupted before has changed nothing
and starts again. One that is interrupted during the move is completed by the next run: `nsqd.dat`
in `importing` marks it as verified.

The old data path is locked against nsqd and only read. Bytes that are not a message are copied to
`import-damage`, one file per range.
"""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from penstock.common.clock import Clock, SystemClock
from penstock.common.errors import DataPathError
from penstock.migration.old_data_path import (
    DamagedRange,
    OldDataPath,
    QueueReport,
    lock_old_data_path,
)
from penstock.migration.topic_import import TopicImport
from penstock.nsqd import metadata
from penstock.storage import DataPath, Files, LogSettings, RealFiles
from penstock.storage.files import append_and_sync, storage_error
from penstock.storage.layout import IMPORTING_NAME, METADATA_NAME, TOPICS_NAME

__all__ = [
    "DAMAGE_NAME",
    "ImportReport",
    "bytes_to_read",
    "finish_interrupted",
    "import_data",
    "scan_old_data",
]

DAMAGE_NAME = "import-damage"


@dataclass(slots=True)
class ImportReport:
    """Content of the old data path."""

    reports: list[QueueReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all queues are complete."""
        return all(report.is_complete for report in self.reports)


def scan_old_data(old_path: str, on_read: Callable[[int], None]) -> ImportReport:
    """Read all messages without importing them. Raises StorageError."""
    files = RealFiles()
    with closing(lock_old_data_path(old_path, files)):
        old = OldDataPath.read(old_path, files)
        found = _new_report(old)
        for queue in old.queues:
            report = queue.new_report()
            for _ in queue.records(report, on_read=on_read):
                pass
            found.reports.append(report)
    return found


def bytes_to_read(old_path: str) -> int:
    """Maximum number of bytes that an import reads. Raises StorageError."""
    return _new_report(OldDataPath.read(old_path, RealFiles())).size_bytes


def import_data(
    old_path: str,
    new_path: str,
    *,
    node_id: int | None = None,
    on_read: Callable[[int], None],
    clock: Clock | None = None,
) -> ImportReport:
    """Import all topics. The message ids have the given node id, or that of the new data path.
    `on_read` is called with numbers of bytes read. Raises StorageError; then nothing has changed.
    """
    files, clock = RealFiles(), clock or SystemClock()
    with closing(lock_old_data_path(old_path, files)):
        old = OldDataPath.read(old_path, files)
        with closing(_open(new_path)) as data_path:
            _check_no_conflict(old, data_path)
            _remove(f"{new_path}/{IMPORTING_NAME}")
            found = _new_report(old)
            chosen = data_path.node_id if node_id is None else node_id
            _write(old, new_path, found, chosen, on_read, clock)
            _publish_topics(new_path, files)
    return found


def finish_interrupted(new_path: str) -> list[str]:
    """Complete an import that was interrupted after verification. Returns the names of its
    topics; an empty list if there is no such import. Raises StorageError."""
    if not Path(new_path, IMPORTING_NAME, METADATA_NAME).exists():
        return []
    with closing(_open(new_path)):
        return _publish_topics(new_path, RealFiles())


def _new_report(old: OldDataPath) -> ImportReport:
    try:
        size_bytes = sum(queue.byte_size() for queue in old.queues)
    except OSError as error:
        raise storage_error("read", old.path, error) from error
    return ImportReport(notes=list(old.notes), size_bytes=size_bytes)


def _open(path: str) -> DataPath:
    try:
        Path(path).mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error("make", path, error) from error
    return DataPath.open(path, LogSettings())


def _check_no_conflict(old: OldDataPath, data_path: DataPath) -> None:
    both = sorted(old.topics.keys() & set(data_path.topics()))
    if both:
        more = f" and {len(both) - 1} more" if len(both) > 1 else ""
        raise DataPathError(f"{data_path.path} already has the topic {both[0]}{more}")


def _write(
    old: OldDataPath,
    new_path: str,
    found: ImportReport,
    node_id: int,
    on_read: Callable[[int], None],
    clock: Clock,
) -> None:
    """Write all topics to the staging folder, and verify them."""
    staging = f"{new_path}/{IMPORTING_NAME}"

    def save(damage: DamagedRange) -> None:
        _save_damage(f"{new_path}/{DAMAGE_NAME}", damage)

    try:
        with closing(_open(staging)) as data_path:
            for topic in old.topics.values():
                topic_import = TopicImport(topic, node_id, save, on_read)
                topic_import.write(data_path, clock.wall_ns())
                topic_import.verify(data_path, clock.wall_ns())
                found.reports += topic_import.reports
        metadata.write(
            Path(staging), metadata.encode([topic.entry for topic in old.topics.values()])
        )
    except BaseException:
        _remove(staging)
        raise


def _publish_topics(new_path: str, files: Files) -> list[str]:
    """Move verified topics to their final place, and add them to nsqd.dat."""
    staging = f"{new_path}/{IMPORTING_NAME}"
    entries = metadata.read(Path(staging)).topics or []
    try:
        for folder in files.list_names(f"{staging}/{TOPICS_NAME}"):
            Path(staging, TOPICS_NAME, folder).rename(Path(new_path, TOPICS_NAME, folder))
        files.sync_folder(f"{new_path}/{TOPICS_NAME}")
    except OSError as error:
        raise storage_error("move topics to", new_path, error) from error
    ours = {entry.name: entry for entry in metadata.read(Path(new_path)).topics or []}
    ours |= {entry.name: entry for entry in entries}
    metadata.write(Path(new_path), metadata.encode(list(ours.values())))
    _remove(staging)
    return [entry.name for entry in entries]


def _save_damage(folder: str, damage: DamagedRange) -> None:
    """Copy bytes that are not a message."""
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
