"""Simulated files: in memory with loss of power, and with injected failures.

Both classes implement `penstock.storage.files.Files`, so that tests can run storage code through
all disk failures in microseconds.

`MemoryFiles` distinguishes written from synced data. `crash` simulates the end of the process:
written data remains. `lose_power` simulates the end of the machine: each write that was not synced
is kept, lost or torn independently, as on a disk; of the unsynced changes to a folder's names, the
first few are kept.

`FaultyFiles` wraps other files. `fail` makes operations of one type fail, optionally after a
partial write; `crash_after` ends the process at the nth change.
"""

import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from penstock.storage.files import File, Files, Lock, Mode

__all__ = ["FaultyFiles", "MemoryFiles", "Operation", "SimulatedCrash"]

Operation = Literal[
    "write", "truncate", "sync", "create", "rename", "remove", "make_folder", "sync_folder"
]


class SimulatedCrash(BaseException):
    """The process ends here. A BaseException, so that no handler catches it."""


class MemoryFiles:
    """A file system in memory. Its root is the empty path."""

    def __init__(self) -> None:
        self._root = _Folder()
        self._boots = 1
        self._random_count = 0
        self.lives = 1
        """Number of processes so far; files opened by earlier ones are closed."""
        self._locks: dict[str, list[bool]] = {}

    def crash(self) -> None:
        """End the process: files are closed, locks released, and written data remains."""
        self.lives += 1
        self._locks.clear()

    def lose_power(self, random: Random) -> None:
        """Simulate a power loss: each unsynced change is kept or lost at random."""
        self.crash()
        self._boots += 1
        self._root.lose_power(random)

    def open(self, path: str, mode: Mode) -> "_MemoryFile":
        folder, name = self._parent(path)
        if mode == "create":
            if name in folder.names:
                raise _os_error(errno.EEXIST)
            folder.change({name: _Content()})
        content = folder.names.get(name)
        if content is None:
            raise _os_error(errno.ENOENT)
        if not isinstance(content, _Content):
            raise _os_error(errno.EISDIR)
        return _MemoryFile(self, content)

    def list_names(self, folder: str) -> list[str]:
        return sorted(self._folder(folder).names)

    def make_folder(self, path: str) -> None:
        folder, name = self._parent(path)
        if name in folder.names:
            raise _os_error(errno.EEXIST)
        folder.change({name: _Folder()})

    def rename(self, path: str, new_path: str) -> None:
        folder, name = self._parent(path)
        new_folder, new_name = self._parent(new_path)
        assert folder is new_folder
        if name not in folder.names:
            raise _os_error(errno.ENOENT)
        taken = folder.names.get(new_name)
        if isinstance(taken, _Folder) and taken.names:
            raise _os_error(errno.ENOTEMPTY)
        folder.change({name: None, new_name: folder.names[name]})

    def remove(self, path: str) -> None:
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if node is None:
            raise _os_error(errno.ENOENT)
        if isinstance(node, _Folder) and node.names:
            raise _os_error(errno.ENOTEMPTY)
        folder.change({name: None})

    def sync_folder(self, path: str) -> None:
        self._folder(path).sync()

    def lock(self, folder: str, *, shared: bool = False) -> Lock:
        self._folder(folder)
        held = self._locks.setdefault(folder, [])
        if held and not (shared and all(held)):
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        held.append(shared)
        return _MemoryLock(held, shared)

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def random_bytes(self, size: int) -> bytes:
        """The same bytes in every run, so that a failure can be repeated."""
        self._random_count += 1
        return hashlib.shake_128(str(self._random_count).encode()).digest(size)

    def _folder(self, path: str) -> "_Folder":
        folder = self._root
        for name in filter(None, path.split("/")):
            node = folder.names.get(name)
            if node is None:
                raise _os_error(errno.ENOENT)
            if not isinstance(node, _Folder):
                raise _os_error(errno.ENOTDIR)
            folder = node
        return folder

    def _parent(self, path: str) -> tuple["_Folder", str]:
        parent, _, name = path.rpartition("/")
        return self._folder(parent), name


class _MemoryFile:
    def __init__(self, files: MemoryFiles, content: "_Content") -> None:
        self._files = files
        self._life = files.lives
        self._content: _Content | None = content

    def write(self, data: bytes, position: int) -> int:
        self._open_content.write(position, data)
        return len(data)

    def write_parts(self, parts: Sequence[bytes], position: int) -> int:
        return self.write(b"".join(parts), position)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._open_content.seen[position : position + size])

    def size(self) -> int:
        return len(self._open_content.seen)

    def truncate(self, size: int) -> None:
        self._open_content.write(size, None)

    def reserve(self, position: int, size: int) -> None:
        pass

    def sync(self) -> None:
        self._open_content.sync()

    def fail_sync(self) -> None:
        """Fail an fsync as Linux does: the next fsync does not write the lost data either."""
        self._open_content.unsynced.clear()

    def close(self) -> None:
        self._content = None

    @property
    def _open_content(self) -> "_Content":
        if self._content is None or self._life != self._files.lives:
            raise _os_error(errno.EBADF)
        return self._content


class _MemoryLock:
    def __init__(self, held: list[bool], shared: bool) -> None:
        self._held = held
        self._shared = shared

    def close(self) -> None:
        if self._shared in self._held:
            self._held.remove(self._shared)


@dataclass(eq=False)
class _Content:
    """A file's bytes: as the process sees them (`seen`) and on disk (`safe`)."""

    seen: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Writes since the last sync, in order; None instead of bytes is a truncation."""

    def write(self, position: int, data: bytes | None) -> None:
        _write(self.seen, position, data)
        self.unsynced.append((position, data))

    def sync(self) -> None:
        for position, data in self.unsynced:
            _write(self.safe, position, data)
        self.unsynced.clear()

    def lose_power(self, random: Random) -> None:
        for position, data in self.unsynced:
            size = len(data or b"")
            kept = random.choice([None, size, random.randint(0, size)])
            if kept is not None:
                _write(self.safe, position, data if data is None else data[:kept])
        self.unsynced.clear()
        self.seen = bytearray(self.safe)


def _write(image: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del image[position:]
    if data != b"":
        image.extend(bytes(max(0, position - len(image))))
    if data:
        image[position : position + len(data)] = data


@dataclass(eq=False)
class _Folder:
    """A folder's names: as the process sees them (`names`) and on disk (`safe`)."""

    names: "dict[str, _Content | _Folder]" = field(default_factory=dict)
    safe: "dict[str, _Content | _Folder]" = field(default_factory=dict)
    unsynced: "list[dict[str, _Content | _Folder | None]]" = field(default_factory=list)
    """Changes since the last sync, in order: the new node of each name, or None."""

    def change(self, change: "dict[str, _Content | _Folder | None]") -> None:
        _rename(self.names, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.safe = dict(self.names)
        self.unsynced.clear()

    def lose_power(self, random: Random) -> None:
        for change in self.unsynced[: random.randint(0, len(self.unsynced))]:
            _rename(self.safe, change)
        self.unsynced.clear()
        self.names = dict(self.safe)
        for node in self.names.values():
            node.lose_power(random)


def _rename(
    names: dict[str, _Content | _Folder], change: dict[str, _Content | _Folder | None]
) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _os_error(number: int) -> OSError:
    # OSError selects the subclass, such as FileNotFoundError, by errno.
    return OSError(number, os.strerror(number))


class FaultyFiles:
    """A wrapper that injects failures."""

    def __init__(self, files: Files) -> None:
        self.changes = 0
        """Number of operations so far at which a crash is possible."""
        self.struck: list[tuple[Operation, str]] = []
        """Operations that failed, with their paths."""
        self.files = files
        self._faults: list[tuple[Operation, _Fault]] = []
        self._crash: _Fault | None = None
        self._crash_at = 0

    def fail(
        self,
        operation: Operation,
        *,
        skip: int = 0,
        times: int | None = 1,
        error: int | None = errno.EIO,
        written: int = 0,
    ) -> None:
        """Make `times` operations of a type fail with the errno `error`, after `skip` successful
        ones; if `times` is None, all of them fail.

        A write first writes `written` bytes. If `error` is None, it raises nothing and reports this
        short length. A failed sync syncs nothing, and later syncs do not sync its data either.
        """
        self._faults.append((operation, _Fault(skip, times, error, written)))

    def heal(self) -> None:
        """Remove all injected failures."""
        self._faults.clear()
        self._crash = None

    def crash_after(self, changes: int, *, written: int = 0) -> None:
        """Let this many further changes succeed; every change after them raises SimulatedCrash. If
        the first of these is a write, `written` bytes are written before the crash."""
        self._crash_at = self.changes + changes
        self._crash = _Fault(written=written, is_crash=True)

    def open(self, path: str, mode: Mode) -> "_FaultyFile":
        if mode == "create":
            self._before("create", path)
        return _FaultyFile(self, self.files.open(path, mode), path)

    def list_names(self, folder: str) -> list[str]:
        return self.files.list_names(folder)

    def make_folder(self, path: str) -> None:
        self._before("make_folder", path)
        self.files.make_folder(path)

    def rename(self, path: str, new_path: str) -> None:
        self._before("rename", path)
        self.files.rename(path, new_path)

    def remove(self, path: str) -> None:
        self._before("remove", path)
        self.files.remove(path)

    def sync_folder(self, path: str) -> None:
        self._before("sync_folder", path)
        self.files.sync_folder(path)

    def lock(self, folder: str, *, shared: bool = False) -> Lock:
        return self.files.lock(folder, shared=shared)

    def boot_id(self) -> str:
        return self.files.boot_id()

    def random_bytes(self, size: int) -> bytes:
        return self.files.random_bytes(size)

    @property
    def has_faults(self) -> bool:
        """Whether a failure or crash is still pending."""
        return self._crash is not None or any(fault.may_strike for _, fault in self._faults)

    def _before(self, operation: Operation, path: str) -> None:
        fault = self.next_fault(operation, path)
        if fault is not None:
            fault.strike()

    def next_fault(self, operation: Operation, path: str) -> "_Fault | None":
        """The failure of the next operation; None if it succeeds."""
        fault = self._next_fault(operation)
        if fault is not None:
            self.struck.append((operation, path))
        return fault

    def _next_fault(self, operation: Operation) -> "_Fault | None":
        if self._crash is not None and self.changes >= self._crash_at:
            crash, self._crash = self._crash, _Fault(is_crash=True)
            return crash
        self.changes += 1
        ours = (fault for operation_, fault in self._faults if operation_ == operation)
        return next((fault for fault in ours if fault.is_next()), None)


@dataclass
class _Fault:
    skip: int = 0
    times: int | None = None
    error: int | None = None
    written: int = 0
    is_crash: bool = False

    def is_next(self) -> bool:
        """Count an operation; returns whether it fails."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return self.times is None or self.times >= 0

    @property
    def may_strike(self) -> bool:
        return self.times is None or self.times > 0

    def strike(self) -> None:
        if self.is_crash:
            raise SimulatedCrash
        if self.error is not None:
            raise _os_error(self.error)


class _FaultyFile:
    def __init__(self, files: FaultyFiles, file: File, path: str) -> None:
        self._files = files
        self._file = file
        self._path = path

    def write(self, data: bytes, position: int) -> int:
        fault = self._files.next_fault("write", self._path)
        if fault is None:
            return self._file.write(data, position)
        written = self._file.write(data[: fault.written], position)
        fault.strike()
        return written

    def write_parts(self, parts: Sequence[bytes], position: int) -> int:
        return self.write(b"".join(parts), position)

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        fault = self._files.next_fault("truncate", self._path)
        if fault is not None:
            fault.strike()
        self._file.truncate(size)

    def reserve(self, position: int, size: int) -> None:
        self._file.reserve(position, size)

    def sync(self) -> None:
        fault = self._files.next_fault("sync", self._path)
        if fault is not None:
            if isinstance(self._file, _MemoryFile) and not fault.is_crash:
                self._file.fail_sync()
            fault.strike()
        self._file.sync()

    def close(self) -> None:
        self._file.close()
