"""The data path: the folder with the logs of all topics, and its format file.

One process at a time uses a data path, which it locks. Before it changes anything, it checks that
the folder contains only files of a known format; otherwise it raises DataPathError.

The format file `penstock.format` records the version of the format and how the last run ended. It
is text:

    penstock data path
    format 1
    boot 7e340d32-169b-42a8-8e62-ea3d15afc667
    closed
    removed below 1794798614919625

`boot` is the boot ID of the machine when the data path was last opened. The next line is `open`
while a process has the data path open. If it is `open` and the boot ID has changed, the machine
went down meanwhile, and writes that were not fsynced may be lost.

`removed below` is above every sequence number of the deleted topics. A topic that is created again
starts there or later, so that no sequence number is used twice.
"""

import contextlib
import re
from typing import NamedTuple

from penstock.common import names
from penstock.common.errors import DataPathError
from penstock.storage.files import (
    FilePool,
    Files,
    ImmediateRemover,
    Lock,
    RealFiles,
    Remover,
    storage_error,
    write_all,
)
from penstock.storage.layout import (
    FORMAT_NAME,
    NEW_SUFFIX,
    TOPICS_NAME,
    Issue,
    is_nsq_queue_file,
    is_topic_file,
    maybe_removal_number,
    removed_name,
)
from penstock.storage.retention import LogSettings
from penstock.storage.topic_log import TopicLog
from penstock.storage.topic_storage import (
    LastShutdown,
    TopicStore,
    close_stores,
    create_store,
    initial_seq,
    load_store,
)

__all__ = [
    "FORMAT_VERSION",
    "REAL_FILES",
    "DataPath",
    "FormatFile",
    "lock_data_path",
    "read_format_file",
    "verify_data_path",
    "write_format_file",
]

FORMAT_VERSION = 1

_TEXT = re.compile(
    r"penstock data path\nformat (\d+)\n"
    r"(?:boot (\S*)\n(open|closed)\n)?(?:removed below (\d+)\n)?.*",
    re.DOTALL,
)
_SIZE_MAX = 4096


class FormatFile(NamedTuple):
    """What the file says besides the format, which is ours."""

    boot_id: str
    is_open: bool
    removed_below: int = 0

    def last_shutdown(self, boot_id: str) -> LastShutdown:
        """How the last run ended, `boot_id` being today's."""
        if not self.is_open:
            return LastShutdown.CLEAN
        return LastShutdown.CRASH if self.boot_id == boot_id else LastShutdown.POWER_LOSS


def read_format_file(files: Files, folder: str) -> FormatFile | None:
    """What the marker of a data path says, or None if there is none.

    Raises DataPathError if it is not a marker, or one of a format that we do not know.
    """
    path = f"{folder}/{FORMAT_NAME}"
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            text = file.read(0, _SIZE_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise DataPathError(f"{path} is not a Penstock format marker")
    if int(match[1]) > FORMAT_VERSION:
        raise DataPathError(
            f"data path {folder} has format {match[1]}, written by a newer version; "
            f"this one knows up to {FORMAT_VERSION}"
        )
    return FormatFile(match[2] or "", match[3] != "closed", int(match[4] or 0))


def write_format_file(files: Files, folder: str, marker: FormatFile) -> None:
    """Replaces the marker, so that at any moment there is a whole one."""
    path = f"{folder}/{FORMAT_NAME}"
    state = "open" if marker.is_open else "closed"
    text = f"penstock data path\nformat {FORMAT_VERSION}\nboot {marker.boot_id}\n{state}\n"
    if marker.removed_below:
        text += f"removed below {marker.removed_below}\n"
    with contextlib.suppress(FileNotFoundError):
        files.remove(path + NEW_SUFFIX)
    with contextlib.closing(files.open(path + NEW_SUFFIX, "create")) as file:
        write_all(file, [text.encode()], 0)
        file.sync()
    files.rename(path + NEW_SUFFIX, path)
    files.sync_folder(folder)


REAL_FILES = RealFiles()

_HOW_TO_IMPORT = (
    "is a queue of NSQ's own nsqd, which 'penstock import {path} --data-path FOLDER' takes over"
)


class DataPath:
    """A data path that this process has to itself. `DataPath.open` makes one."""

    def __init__(
        self,
        path: str,
        settings: LogSettings,
        files: Files,
        remover: Remover,
        lock: Lock,
        last_shutdown: LastShutdown,
        removed_below: int,
    ) -> None:
        self.path = path
        self._settings = settings
        self._files = files
        self._lock = lock
        self._last_shutdown = last_shutdown
        self._topics_path = f"{path}/{TOPICS_NAME}"
        self._remover = remover
        self._removal_number = 0  # of the last topic folder renamed for removal
        self._pool = FilePool(files, settings.open_files_max, remover)
        self._topics: set[str] = set()
        self._unrecovered: set[str] = set()
        """Topics that were not opened yet although the last run did not end cleanly. While there is
        one, the marker goes on to say how that run ended."""
        self._stores: dict[str, TopicStore] = {}
        self._removed_below = removed_below
        """Above every sequence number of the deleted topics. A new topic starts here or later."""

    @classmethod
    def open(
        cls,
        path: str,
        settings: LogSettings,
        files: Files = REAL_FILES,
        remover: Remover | None = None,
    ) -> "DataPath":
        """Takes a folder, which must be there, and makes a data path of it if it is none yet.

        `remover` removes files that are no longer needed; by default they are removed at once.
        Raises DataPathError, in which case nothing has been changed.
        """
        remover = remover or ImmediateRemover(files)
        lock = lock_data_path(path, files)
        try:
            marker = verify_data_path(path, files)
            last_shutdown = marker.last_shutdown(files.boot_id()) if marker else LastShutdown.CLEAN
            removed_below = marker.removed_below if marker else 0
            data_path = cls(path, settings, files, remover, lock, last_shutdown, removed_below)
            data_path._prepare()
        except BaseException:
            lock.close()
            raise
        return data_path

    def topics(self) -> list[str]:
        """The topics that there are, in the order of their names."""
        return sorted(self._topics)

    def open_topic(self, name: str, *, wall_ns: int) -> tuple[TopicStore, list[Issue]]:
        """Opens a topic, which is created if there is none of this name; also returns what had to
        be put right. The first message of a new topic gets the number `wall_ns // 1000`, or a
        higher one if topics that we have removed went beyond that.

        Raises StorageError.
        """
        assert name not in self._stores or self._stores[name].is_closed
        folder = self._folder(name)
        try:
            store, issues = self._load_or_create(name, folder, wall_ns)
        except OSError as error:
            raise storage_error("open", folder, error) from error
        self._stores[name] = store
        self._set_recovered(name)
        return store, issues

    def remove_topic(self, name: str, *, wall_ns: int) -> None:
        """Removes a topic and all its messages, also while it is open. Raises StorageError."""
        store = self._stores.pop(name, None)
        if store is not None:
            store.discard()
        folder = self._folder(name)
        removed = removed_name(folder, self._removal_number + 1)
        try:
            if store is not None:
                self._keep_numbers_of(store.log, wall_ns)
            self._files.rename(folder, removed)
            # The topic is now deleted; the remover or the next start removes its files.
            self._removal_number += 1
            self._topics.discard(name)
            self._files.sync_folder(self._topics_path)
            self._set_recovered(name)
            self._remover.remove_folder(removed)
        except OSError as error:
            raise storage_error("remove", folder, error) from error

    def close(self) -> None:
        """Closes every topic that is still open, and gives the folder up. Raises StorageError if a
        topic could not be brought to disk; the others were."""
        try:
            still_open = [store for store in self._stores.values() if not store.is_closed]
            for failure in close_stores(still_open):
                raise failure
            # What could not be synced must not count as if it had been by the next start.
            if not self._unrecovered and all(store.is_safe for store in self._stores.values()):
                self._write_format_file(is_open=False)
        except OSError as error:
            raise storage_error("close", self.path, error) from error
        finally:
            self._remover.close()
            self._lock.close()

    def _prepare(self) -> None:
        try:
            if self._last_shutdown is LastShutdown.CLEAN:
                self._write_format_file(is_open=True)
            if TOPICS_NAME not in self._files.names(self.path):
                self._files.make_folder(self._topics_path)
                self._files.sync_folder(self.path)
            for folder in self._files.names(self._topics_path):
                if (number := maybe_removal_number(folder)) is not None:
                    self._removal_number = max(self._removal_number, number)
                    self._remover.remove_folder(f"{self._topics_path}/{folder}")
                elif (name := names.name_of_file(folder)) is not None:
                    self._topics.add(name)
        except OSError as error:
            raise _refusal("write to", self.path, error) from error
        if self._last_shutdown is not LastShutdown.CLEAN:
            self._unrecovered = set(self._topics)
            self._end_recovery()

    def _set_recovered(self, name: str) -> None:
        if name in self._unrecovered:
            self._unrecovered.remove(name)
            self._end_recovery()

    def _end_recovery(self) -> None:
        """If every topic has been recovered, the last run is history."""
        if not self._unrecovered:
            # A marker that stays as it is only makes the next start more careful than it need be.
            with contextlib.suppress(OSError):
                self._write_format_file(is_open=True)

    def _keep_numbers_of(self, removed: TopicLog, wall_ns: int) -> None:
        """Records in the marker which sequence numbers a deleted topic has used. Raises OSError."""
        self._removed_below = max(self._removed_below, removed.next_seq)
        if self._unrecovered:
            return
        try:
            self._write_format_file(is_open=True)
        except OSError:
            # Removing a topic makes room on a full disk. It is safe without the marker if the clock
            # is beyond the topic's numbers: a topic that is created later starts there.
            if removed.next_seq > initial_seq(wall_ns):
                raise

    def _write_format_file(self, *, is_open: bool) -> None:
        marker = FormatFile(self._files.boot_id(), is_open, self._removed_below)
        write_format_file(self._files, self.path, marker)

    def _folder(self, name: str) -> str:
        return f"{self._topics_path}/{names.file_name(name)}"

    def _load_or_create(
        self, name: str, folder: str, wall_ns: int
    ) -> tuple[TopicStore, list[Issue]]:
        # The clock may have been set back, or a deleted topic may have used later numbers.
        new_seq = max(initial_seq(wall_ns), self._removed_below)
        if name in self._topics:
            return load_store(self._pool, folder, self._settings, new_seq, self._last_shutdown)
        self._files.make_folder(folder)
        self._topics.add(name)
        store = create_store(self._pool, folder, self._settings, new_seq)
        if new_seq > initial_seq(wall_ns):
            # If a power loss took the topic without a trace, the next one of this name would start
            # at the same number.
            store.cursors.sync()
        return store, []


def lock_data_path(path: str, files: Files, *, shared: bool = False) -> Lock:
    """Locks the folder; raises DataPathError if it cannot."""
    try:
        return files.lock(path, shared=shared)
    except BlockingIOError as error:
        # nsq compat: the words of the reference, which operators search their logs for.
        raise DataPathError(
            f"failed to lock data-path: cannot flock directory {path} - {error.strerror} "
            "(possibly in use by another instance of nsqd)"
        ) from error
    except OSError as error:
        raise _refusal("open", path, error) from error


def verify_data_path(path: str, files: Files) -> FormatFile | None:
    """Makes sure that everything in a data path is ours, and of a format that we know; returns its
    marker, or None if it is not a data path yet. Raises DataPathError."""
    try:
        marker = read_format_file(files, path)
        for name in files.names(path):
            if is_nsq_queue_file(name):
                raise _foreign(path, name, _HOW_TO_IMPORT.format(path=path))
        if TOPICS_NAME not in files.names(path):
            return marker
        if marker is None:
            raise _foreign(path, TOPICS_NAME, "was not made by Penstock")
        for folder in files.names(f"{path}/{TOPICS_NAME}"):
            _verify_topic(path, f"{TOPICS_NAME}/{folder}", folder, files)
    except OSError as error:
        raise _refusal("read", path, error) from error
    return marker


def _verify_topic(path: str, relative: str, folder: str, files: Files) -> None:
    if maybe_removal_number(folder) is not None:
        return
    if names.name_of_file(folder) is None:
        raise _foreign(path, relative, "is not a topic")
    try:
        found = files.names(f"{path}/{relative}")
    except NotADirectoryError as error:
        raise _foreign(path, relative, "is not a topic") from error
    for name in found:
        if not is_topic_file(name):
            raise _foreign(path, f"{relative}/{name}", "is not part of a log")


def _foreign(path: str, name: str, why: str) -> DataPathError:
    return DataPathError(f"data path {path} has foreign files: {name} {why}")


def _refusal(doing: str, path: str, error: OSError) -> DataPathError:
    return DataPathError(f"cannot {doing} data path {path}: {error.strerror or error}")
