"""File access: the interface, the real file system, background removal, and the pool of open files.

Storage accesses the disk only through `Files` and `File`. Tests replace them with files in memory
that can lose power or fail the nth write (`penstock.testing`). Both raise `OSError`; the callers
convert it with `storage_error`.

Removing a large file takes tens of milliseconds. nsqd therefore removes files in a thread
(`BackgroundRemover`). Before the removal, the log drops the segment, or the topic's folder is
renamed: if the process ends first, the next start removes the remaining files.

`FilePool` limits the number of open files. A `Handle` reopens its file when needed. If too many are
open, the pool closes the one that was opened first: tracking the last use would cost every append
something, and closing a busy file costs only one more open per `open_max` others.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from penstock.common.errors import StorageError

__all__ = [
    "BackgroundRemover",
    "File",
    "FilePool",
    "Files",
    "Handle",
    "ImmediateRemover",
    "Lock",
    "Mode",
    "RealFiles",
    "Remover",
    "append_and_sync",
    "storage_error",
    "write_all",
]

# To read; to read and write; to do that with a file that must not be there yet.
Mode = Literal["read", "write", "create"]

_FLAGS: dict[Mode, int] = {
    "read": os.O_RDONLY,
    "write": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class File(Protocol):
    """An open file."""

    @property
    def write(self) -> Callable[[bytes, int], int]:
        """Writes bytes at a position; returns how many were taken."""

    def write_parts(self, parts: Sequence[bytes], position: int) -> int:
        """The same for several parts, one after the other, in one go."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only where the file ends."""

    def size(self) -> int:
        """How many bytes the file holds now."""

    def truncate(self, size: int) -> None:
        """Cuts the file off after `size` bytes."""

    def reserve(self, position: int, size: int) -> None:
        """Has space set aside for writes to come, if the system can do that; the file's size stays.
        What is not used is given back by `truncate`."""

    def sync(self) -> None:
        """Returns once all that was written is safe from a power loss. Any thread may call it."""

    def close(self) -> None:
        """Gives the file back; it is not used afterwards."""


class Lock(Protocol):
    """A folder that is ours until it is closed."""

    def close(self) -> None:
        """Gives the folder up."""


class Files(Protocol):
    """Folders, and the files in them."""

    def open(self, path: str, mode: Mode) -> File:
        """Opens a file."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted."""

    def make_folder(self, path: str) -> None:
        """Makes a folder in one that is there."""

    def rename(self, path: str, new_path: str) -> None:
        """Renames a file, replacing another, or a folder. Both names are in the same folder."""

    def remove(self, path: str) -> None:
        """Removes a file, or a folder that is empty."""

    def sync_folder(self, path: str) -> None:
        """Returns once the names in a folder are safe from a power loss. Any thread may call it."""

    def lock(self, folder: str, *, shared: bool = False) -> Lock:
        """Takes the folder for this process, or raises BlockingIOError at once."""

    def boot_id(self) -> str:
        """Stays the same while the machine runs: no write is lost between two equal answers."""


def _maybe_fallocate() -> Callable[[int, int, int, int], object] | None:
    """The system call that Python does not offer: its posix_fallocate changes the file's size."""
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except AttributeError:
        return None
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return fallocate


_fallocate = _maybe_fallocate()
_FALLOC_FL_KEEP_SIZE = 1


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "write")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.write = partial(os.pwrite, fd)  # no frame for every append

    def write_parts(self, parts: Sequence[bytes], position: int) -> int:
        return os.pwritev(self._fd, parts, position)

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._fd, size, position)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def reserve(self, position: int, size: int) -> None:
        # That it fails is of no interest: where no space is left, the next write will say so.
        if _fallocate is not None:
            _fallocate(self._fd, _FALLOC_FL_KEEP_SIZE, position, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealFiles:
    """The operating system's files. What it makes is its user's alone, as the reference's is."""

    def open(self, path: str, mode: Mode) -> RealFile:
        return RealFile(os.open(path, _FLAGS[mode] | os.O_CLOEXEC, 0o600))

    def names(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in os.scandir(folder))

    def make_folder(self, path: str) -> None:
        Path(path).mkdir(0o700)

    def rename(self, path: str, new_path: str) -> None:
        Path(path).rename(new_path)

    def remove(self, path: str) -> None:
        target = Path(path)
        try:
            target.unlink()
        except (IsADirectoryError, PermissionError):  # macOS raises the latter for a folder
            target.rmdir()

    def sync_folder(self, path: str) -> None:
        with contextlib.closing(RealFile(_open_folder(path))) as folder:
            folder.sync()

    def lock(self, folder: str, *, shared: bool = False) -> RealFile:
        fd = _open_folder(folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
        except BaseException:
            os.close(fd)
            raise
        return RealFile(fd)

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            # A system that does not tell: no two runs are then known to be of one boot.
            return os.urandom(16).hex()


def write_all(file: File, parts: Sequence[bytes], position: int) -> int:
    """Writes the parts with one write, and with more only if the system takes fewer bytes than it
    is given, as it does when a disk fills up. Returns how many bytes that was."""
    written = file.write_parts(parts, position)
    size = sum(map(len, parts))
    while written < size:
        taken = file.write(b"".join(parts)[written:], position + written)
        if taken == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        written += taken
    return size


def append_and_sync(files: Files, path: str, pieces: Iterable[bytes]) -> None:
    """Adds to a file, which is made if it is not there, and syncs it."""
    try:
        file = files.open(path, "write")
    except FileNotFoundError:
        file = files.open(path, "create")
    with contextlib.closing(file):
        write_all(file, list(pieces), file.size())
        file.sync()


def storage_error(doing: str, path: str, error: OSError) -> StorageError:
    """The error for a failed system call."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"disk full ({reason})"
    return StorageError(f"cannot {doing} {path}: {reason}", reason=reason)


def _open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


# Delay before a failed removal is retried.
RETRY_SECONDS = 10.0


class Remover(Protocol):
    """Removes files that are no longer needed. Missing files are ignored."""

    def remove(self, path: str) -> None:
        """Removes a file."""

    def remove_folder(self, path: str) -> None:
        """Removes a folder with the files in it."""

    def close(self) -> None:
        """Stops removing; the next start removes the remaining files."""


class ImmediateRemover:
    """Removes files before it returns, and raises OSError if it cannot."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in self._files.names(path):
                self._files.remove(f"{path}/{name}")
            self._files.remove(path)

    def close(self) -> None:
        pass


class _Removal(NamedTuple):
    run: Callable[[str], None]
    path: str


class BackgroundRemover:
    """Removes files in a thread, one after the other. If one cannot be removed, `on_failure` is
    called in that thread, and the removal is retried later."""

    def __init__(self, files: Files, on_failure: Callable[[StorageError], object]) -> None:
        self._remover = ImmediateRemover(files)
        self._on_failure = on_failure
        self._removals: queue.SimpleQueue[_Removal | None] = queue.SimpleQueue()
        self._failed: list[_Removal] = []
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def remove(self, path: str) -> None:
        self._add(_Removal(self._remover.remove, path))

    def remove_folder(self, path: str) -> None:
        self._add(_Removal(self._remover.remove_folder, path))

    def close(self) -> None:
        """Ends the thread after the removal in progress."""
        if self._thread is not None:
            self._is_closing = True
            self._removals.put(None)
            self._thread.join()

    def _add(self, removal: _Removal) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="remover", daemon=True)
            self._thread.start()
        self._removals.put(removal)

    # In the thread

    def _work(self) -> None:
        while not self._is_closing:
            try:
                removal = self._removals.get(timeout=RETRY_SECONDS if self._failed else None)
            except queue.Empty:
                failed, self._failed = self._failed, []
                for removal in failed:
                    self._try(removal)
            else:
                if removal is not None:
                    self._try(removal)

    def _try(self, removal: _Removal) -> None:
        try:
            removal.run(removal.path)
        except OSError as error:
            self._failed.append(removal)
            self._on_failure(storage_error("remove", removal.path, error))


class Handle:
    """A file by its path. `file` is the open file or None: use `handle.file or handle.open()`."""

    __slots__ = ("_is_leaving", "_pins", "_pool", "file", "path")

    def __init__(self, pool: "FilePool", path: str) -> None:
        self.path = path
        self.file: File | None = None
        self._pool = pool
        self._pins = 0
        self._is_leaving = False

    @property
    def is_pinned(self) -> bool:
        """Whether another thread may be using the file."""
        return self._pins > 0

    def open(self) -> File:
        """The file, opened if it is not."""
        if self.file is None:
            self.file = self._pool.admit(self, "write")
        return self.file

    def create(self) -> File:
        """The file, which must not be there yet."""
        self.file = self._pool.admit(self, "create")
        return self.file

    def pin(self) -> File:
        """The file, which stays open until `unpin`, so that another thread may use it."""
        file = self.open()
        self._pins += 1
        return file

    def unpin(self) -> None:
        """Takes one `pin` back."""
        self._pins -= 1
        if self._is_leaving:
            self.close()

    def close(self) -> None:
        """Closes the file, now or when the last pin is taken back."""
        self._is_leaving = self.is_pinned
        if self.file is not None and not self.is_pinned:
            self._pool.dismiss(self)


class FilePool:
    """The handles that are open now, the one opened longest ago first."""

    def __init__(self, files: Files, open_max: int, remover: Remover | None = None) -> None:
        """`remover` removes trimmed segments; by default they are removed at once."""
        self.files = files
        self.remover = remover or ImmediateRemover(files)
        self._open_max = open_max
        self._open: dict[Handle, None] = {}

    def __len__(self) -> int:
        """How many files are open."""
        return len(self._open)

    def handle(self, path: str) -> Handle:
        """A handle for a file, which is not opened yet."""
        return Handle(self, path)

    def admit(self, handle: Handle, mode: Mode) -> File:
        """Opens a handle's file, and closes another if there would be too many."""
        if len(self._open) >= self._open_max:
            self._dismiss_oldest()
        file = self.files.open(handle.path, mode)
        self._open[handle] = None
        return file

    def dismiss(self, handle: Handle) -> None:
        """Closes a handle's file."""
        assert handle.file is not None
        del self._open[handle]
        handle.file.close()
        handle.file = None

    def _dismiss_oldest(self) -> None:
        oldest = next((handle for handle in self._open if not handle.is_pinned), None)
        if oldest is not None:
            self.dismiss(oldest)
