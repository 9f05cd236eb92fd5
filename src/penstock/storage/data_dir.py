"""The data path: the folder with the logs of all topics, and its format file.

One process at a time uses a data path, which it locks. Before it changes anything, it checks that
the folder contains only files of a known format; otherwise it raises DataPathError.

The format file `penstock.format` records the version of the format and how the last run ended. It
is text:

    penstock data path
    format 2
    boot 7e340d32-169b-42a8-8e62-ea3d15afc667
    closed
    node 617
    reserved below 1794798614919625
    check 7d001e76

`boot` is the boot ID of the machine when the data path was last opened. The next line is `open`
while a process has the data path open. If it is `open` and the boot ID has changed, the machine
went down meanwhile, and writes that were not fsynced may be lost.

`node` is the node id, the upper part of the message ids. The first process that opens the data path
chooses it at random. If an earlier version has written the data path, the line is missing; the
process then keeps the default of that version, because offsets of Spark queries may contain it.

`reserved below` is above every sequence number that a topic may have used. A topic reserves numbers
before it uses them, and the line is raised by many numbers at a time, so that it is rarely written.
After a power loss all topics continue at this number; a new topic starts at this number or later,
because a deleted topic of the same name may have used lower ones. So no number is used twice,
whatever the clock says.

`check` is the CRC-32C of all bytes before this line. In format 1 the line is missing.
"""

import contextlib
import re
from collections.abc import Collection
from typing import NamedTuple

from google_crc32c import value as crc32c

from penstock.common import names
from penstock.common.errors import DataPathError, StorageError
from penstock.common.node_id import NODE_IDS, choose_node_id, former_node_id
from penstock.storage.files import (
    FilePool,
    Files,
    ImmediateRemover,
    Lock,
    RealFiles,
    Remover,
    replace_file,
    storage_error,
)
from penstock.storage.layout import (
    FORMAT_NAME,
    NEW_SUFFIX,
    TOPICS_NAME,
    Issue,
    is_nsq_queue_file,
    is_topic_file,
    maybe_removal_number,
    maybe_shard,
    removed_name,
)
from penstock.storage.observer import StoreObserver
from penstock.storage.retention import LogSettings
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

FORMAT_VERSION = 2

_TEXT = re.compile(
    r"penstock data path\nformat (\d+)\n"
    r"(?:boot (\S*)\n(open|closed)\n)?(?:node (\d+)\n)?"
    r"(?:re(?:moved|served) below (\d+)\n)?.*?(?:check ([0-9a-f]{8})\n)?",
    re.DOTALL,
)
_SIZE_MAX = 4096

# Sequence numbers that are reserved in addition when `reserved below` is raised. The 54 bits of a
# sequence number suffice for four million times.
_RESERVED_SEQS = 1 << 32


class FormatFile(NamedTuple):
    """Content of the format file. It is always written with the current version."""

    boot_id: str
    is_open: bool
    node_id: int | None = None
    reserved_below: int = 0
    version: int = FORMAT_VERSION

    def last_shutdown(self, boot_id: str) -> LastShutdown:
        """How the last run ended. `boot_id` is the current one."""
        if not self.is_open:
            return LastShutdown.CLEAN
        return LastShutdown.CRASH if self.boot_id == boot_id else LastShutdown.POWER_LOSS


def read_format_file(files: Files, folder: str) -> FormatFile | None:
    """Read the format file of a data path; None if there is none.

    Raises DataPathError if the file is invalid or its format is not supported.
    """
    path = f"{folder}/{FORMAT_NAME}"
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            text = file.read(0, _SIZE_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise DataPathError(f"{path} is not a Penstock format file")
    version = int(match[1])
    if version > FORMAT_VERSION:
        raise DataPathError(
            f"data path {folder} has format {version}, written by a newer version; "
            f"this one supports up to {FORMAT_VERSION}"
        )
    has_checksum = version > 1 or match[6] is not None
    if has_checksum and match[6] != _checksum(text.rpartition("check ")[0]):
        raise DataPathError(
            f"{path} is damaged: its checksum does not match; restore it from a backup, or follow "
            "'A damaged format file' in the documentation"
        )
    node_id = None if match[4] is None else int(match[4])
    if node_id is not None and node_id >= NODE_IDS:
        raise DataPathError(f"{path}: the node id must be from 0 to {NODE_IDS - 1}, not {node_id}")
    return FormatFile(match[2] or "", match[3] != "closed", node_id, int(match[5] or 0), version)


def _checksum(text: str) -> str:
    return f"{crc32c(text.encode()):08x}"


def write_format_file(files: Files, folder: str, format_file: FormatFile) -> None:
    """Replace the format file atomically."""
    path = f"{folder}/{FORMAT_NAME}"
    state = "open" if format_file.is_open else "closed"
    text = f"penstock data path\nformat {FORMAT_VERSION}\nboot {format_file.boot_id}\n{state}\n"
    if format_file.node_id is not None:
        text += f"node {format_file.node_id}\n"
    if format_file.reserved_below:
        text += f"reserved below {format_file.reserved_below}\n"
    text += f"check {_checksum(text)}\n"
    replace_file(files, path, path + NEW_SUFFIX, text.encode())


REAL_FILES = RealFiles()

_HOW_TO_IMPORT = (
    "is a queue of NSQ's nsqd; import it with 'penstock import {path} --data-path FOLDER'"
)


class DataPath:
    """A data path that this process has locked. Use `DataPath.open` to create it."""

    def __init__(
        self,
        path: str,
        settings: LogSettings,
        files: Files,
        remover: Remover,
        lock: Lock,
        format_file: FormatFile,
        epoch: int = 0,
        observer: StoreObserver | None = None,
    ) -> None:
        """`format_file` is the one that the last run left, with a node id."""
        self.path = path
        self._epoch = epoch
        self._observer = observer
        self._settings = settings
        self._files = files
        self._lock = lock
        self._format_file = format_file
        self._last_shutdown = format_file.last_shutdown(files.boot_id())
        self._topics_path = f"{path}/{TOPICS_NAME}"
        self._remover = remover
        self._removal_number = 0  # of the topic folder that was last renamed for removal
        self._pool = FilePool(files, settings.open_files_max, remover)
        self._topics: set[str] = set()
        self._unrecovered: set[str] = set()
        """Topics that have not been opened since a run that did not end cleanly. Until all are
        opened, the format file continues to record how that run ended."""
        self._stores: dict[str, TopicStore] = {}
        self._topic_of_log: dict[str, str] = {}
        self._unreserved_seq = format_file.reserved_below
        """Above the sequence numbers that earlier runs and deleted topics may have used."""

    @classmethod
    def open(
        cls,
        path: str,
        settings: LogSettings,
        files: Files = REAL_FILES,
        remover: Remover | None = None,
        *,
        epoch: int = 0,
        observer: StoreObserver | None = None,
        may_lack_messages: bool = False,
    ) -> "DataPath":
        """Lock an existing folder and, if necessary, make it a data path.

        `remover` removes files that are no longer needed; by default they are removed immediately.
        With replication, `epoch` is above 0 and above that of every earlier run; it is stored with
        every batch and every journal record. With `may_lack_messages`, the data path is recovered
        as after a power loss: numbers that may have been used are skipped. If it raises
        DataPathError, it has changed nothing.
        """
        remover = remover or ImmediateRemover(files)
        lock = lock_data_path(path, files)
        try:
            format_file = verify_data_path(path, files)
            if format_file is None:
                node_id = choose_node_id(files.random_bytes)
                format_file = FormatFile("", is_open=False, node_id=node_id)
            elif format_file.node_id is None:
                shard = maybe_shard(path.rpartition("/")[2]) or 0
                format_file = format_file._replace(node_id=former_node_id(shard))
            if may_lack_messages:
                format_file = format_file._replace(boot_id="", is_open=True)
            data_path = cls(path, settings, files, remover, lock, format_file, epoch, observer)
            data_path._prepare()
        except BaseException:
            lock.close()
            raise
        return data_path

    @property
    def node_id(self) -> int:
        """The node id that the format file has; `change_node_id` stores another one."""
        assert self._format_file.node_id is not None
        return self._format_file.node_id

    @property
    def reserved_below(self) -> int:
        """Above every sequence number that a topic may have used."""
        return self._format_file.reserved_below

    def topics(self) -> list[str]:
        """Names of the topics, sorted."""
        return sorted(self._topics)

    def open_topic(self, name: str, *, wall_ns: int) -> tuple[TopicStore, list[Issue]]:
        """Open a topic, creating it if necessary; also return the issues that were repaired. The
        first message of a new topic gets the number `wall_ns // 1000`, or a higher one if that may
        have been used.

        Raises StorageError.
        """
        assert name not in self._stores or self._stores[name].is_closed
        folder = self._folder(name)
        try:
            store, issues = self._load_or_create(name, folder, wall_ns)
        except OSError as error:
            raise storage_error("open", folder, error) from error
        twin = self._topic_of_log.setdefault(store.log.log_id, name)
        if twin != name:
            store.discard()
            raise StorageError(
                f"{folder} is a copy of topic {twin}: both have log id {store.log.log_id}; "
                "remove one of them"
            )
        self._stores[name] = store
        self._set_recovered(name)
        if self._observer is not None:
            store.observe(self._observer)
            self._observer.topic_created(name, store)
        return store, issues

    def remove_topic(self, name: str) -> None:
        """Delete a topic and all its messages; it may be open. Raises StorageError."""
        store = self._stores.pop(name, None)
        if store is not None:
            self._topic_of_log.pop(store.log.log_id, None)
            store.discard()
        folder = self._folder(name)
        removed = removed_name(folder, self._removal_number + 1)
        try:
            self._files.rename(folder, removed)
            # The topic is now deleted; the remover or the next start removes its files.
            if store is not None:
                self._unreserved_seq = max(self._unreserved_seq, store.log.next_seq)
            self._removal_number += 1
            self._topics.discard(name)
            if self._observer is not None:
                self._observer.topic_removed(name, "" if store is None else store.log.log_id)
            self._files.sync_folder(self._topics_path)
            self._set_recovered(name)
            self._remover.remove_folder(removed)
        except OSError as error:
            raise storage_error("remove", folder, error) from error

    def change_node_id(self, used: Collection[int]) -> None:
        """Choose another node id at random, not one of `used`, and store it. At least one must be
        free. Raises StorageError; then the node id is unchanged."""
        node_id = choose_node_id(self._files.random_bytes, used)
        try:
            self._write_format_file(self._format_file._replace(node_id=node_id))
        except OSError as error:
            raise storage_error("write the node id to", self.path, error) from error

    def close(self) -> None:
        """Close all open topics and unlock the folder. Raises StorageError if a topic could not
        be synced; the others are closed as well."""
        try:
            still_open = [store for store in self._stores.values() if not store.is_closed]
            for failure in close_stores(still_open):
                raise failure
            # If a topic is not synced, the next start must not treat this run as closed cleanly.
            if not self._unrecovered and all(
                store.is_fully_synced for store in self._stores.values()
            ):
                self._close_format_file()
        except OSError as error:
            raise storage_error("close", self.path, error) from error
        finally:
            self._remover.close()
            self._lock.close()

    def _prepare(self) -> None:
        try:
            if self._last_shutdown is LastShutdown.CLEAN:
                self._open_format_file()
            elif self._format_file.version < FORMAT_VERSION:
                # Before any other file is written that an older release would misread.
                self._write_format_file(self._format_file)
            if TOPICS_NAME not in self._files.list_names(self.path):
                self._files.make_folder(self._topics_path)
                self._files.sync_folder(self.path)
            for folder in self._files.list_names(self._topics_path):
                if (number := maybe_removal_number(folder)) is not None:
                    self._removal_number = max(self._removal_number, number)
                    self._remover.remove_folder(f"{self._topics_path}/{folder}")
                elif (name := names.name_of_file(folder)) is not None:
                    self._topics.add(name)
        except OSError as error:
            raise _data_path_error("write to", self.path, error) from error
        if self._last_shutdown is not LastShutdown.CLEAN:
            self._unrecovered = set(self._topics)
            with contextlib.suppress(OSError):  # As in `_finish_recovery`, which writes it later.
                self._write_format_file(self._format_file)  # Stores a new node id.
            self._finish_recovery()

    def _set_recovered(self, name: str) -> None:
        if name in self._unrecovered:
            self._unrecovered.remove(name)
            self._finish_recovery()

    def _finish_recovery(self) -> None:
        """When every topic has been recovered, record the current run in the format file."""
        if not self._unrecovered:
            # Errors are ignored: an old format file only makes the next start more careful.
            with contextlib.suppress(OSError):
                self._open_format_file()

    def _reserve_seqs(self, end: int) -> None:
        """Record that all numbers below `end` may be used. Raises OSError."""
        reserved = self._format_file.reserved_below
        if end <= reserved - _RESERVED_SEQS // 2:
            return
        try:
            raised = self._format_file._replace(reserved_below=end + _RESERVED_SEQS)
            self._write_format_file(raised)
        except OSError:
            # The next topic that needs numbers tries again, until none is left.
            if end > reserved:
                raise

    def _open_format_file(self) -> None:
        opened = self._format_file._replace(boot_id=self._files.boot_id(), is_open=True)
        if opened.reserved_below == self._unreserved_seq > 0:
            # For the topics that this run creates.
            opened = opened._replace(reserved_below=self._unreserved_seq + _RESERVED_SEQS)
        self._write_format_file(opened)

    def _close_format_file(self) -> None:
        self._write_format_file(self._format_file._replace(is_open=False))

    def _write_format_file(self, format_file: FormatFile) -> None:
        write_format_file(self._files, self.path, format_file)
        self._format_file = format_file._replace(version=FORMAT_VERSION)

    def _folder(self, name: str) -> str:
        return f"{self._topics_path}/{names.file_name(name)}"

    def _load_or_create(
        self, name: str, folder: str, wall_ns: int
    ) -> tuple[TopicStore, list[Issue]]:
        first_seq = max(initial_seq(wall_ns), self._unreserved_seq)
        if name in self._topics:
            return load_store(
                self._pool,
                name,
                folder,
                self._settings,
                self._unreserved_seq,
                first_seq,
                self._reserve_seqs,
                self._last_shutdown,
                self._epoch,
            )
        self._files.make_folder(folder)
        self._topics.add(name)
        store = create_store(
            self._pool,
            name,
            folder,
            self._settings,
            first_seq,
            self._reserve_seqs,
            self._epoch,
        )
        return store, []


def lock_data_path(path: str, files: Files, *, shared: bool = False) -> Lock:
    """Lock the folder. Raises DataPathError."""
    try:
        return files.lock(path, shared=shared)
    except BlockingIOError as error:
        # nsq compat: NSQ's text, which operators search their logs for.
        raise DataPathError(
            f"failed to lock data-path: cannot flock directory {path} - {error.strerror} "
            "(possibly in use by another instance of nsqd)"
        ) from error
    except OSError as error:
        raise _data_path_error("open", path, error) from error


def verify_data_path(path: str, files: Files) -> FormatFile | None:
    """Check that all files in a data path are ours and of a supported format. Returns its format
    file, or None if the folder is not a data path yet. Raises DataPathError."""
    try:
        format_file = read_format_file(files, path)
        for name in files.list_names(path):
            if is_nsq_queue_file(name):
                raise _foreign_file_error(path, name, _HOW_TO_IMPORT.format(path=path))
        if TOPICS_NAME not in files.list_names(path):
            return format_file
        if format_file is None:
            raise _foreign_file_error(path, TOPICS_NAME, "was not made by Penstock")
        for folder in files.list_names(f"{path}/{TOPICS_NAME}"):
            _verify_topic(path, f"{TOPICS_NAME}/{folder}", folder, files)
    except OSError as error:
        raise _data_path_error("read", path, error) from error
    return format_file


def _verify_topic(path: str, relative: str, folder: str, files: Files) -> None:
    if maybe_removal_number(folder) is not None:
        return
    if names.name_of_file(folder) is None:
        raise _foreign_file_error(path, relative, "is not a topic")
    try:
        found = files.list_names(f"{path}/{relative}")
    except NotADirectoryError as error:
        raise _foreign_file_error(path, relative, "is not a topic") from error
    for name in found:
        if not is_topic_file(name):
            raise _foreign_file_error(path, f"{relative}/{name}", "is not part of a log")


def _foreign_file_error(path: str, name: str, why: str) -> DataPathError:
    return DataPathError(f"data path {path} has foreign files: {name} {why}")


def _data_path_error(doing: str, path: str, error: OSError) -> DataPathError:
    return DataPathError(f"cannot {doing} data path {path}: {error.strerror or error}")
