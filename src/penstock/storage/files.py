"""File access: the interface, the real file system, background removal, and the file pool.

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

# "create" opens for reading and writing, and fails if the file exists.
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
        """Write bytes at a position and return the number of bytes written."""

    def write_parts(self, parts: Sequence[bytes], position: int) -> int:
        """Write several parts one after the other with one system call."""

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes from `position` on; fewer only at the end of the file."""

    def size(self) -> int:
        """Size of the file in bytes."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes."""

    def reserve(self, position: int, size: int) -> None:
        """Preallocate space for later writes, if the system supports it. The size of the file does
        not change; `truncate` frees unused space."""

    def sync(self) -> None:
        """Fsync the file. May be called in any thread."""

    def close(self) -> None:
        """Close the file."""


class Lock(Protocol):
    """A lock on a folder."""

    def close(self) -> None:
        """Release the lock."""


class Files(Protocol):
    """A file system."""

    def open(self, path: str, mode: Mode) -> File:
        """Open a file."""

    def list_names(self, folder: str) -> list[str]:
        """List the names in a folder, sorted."""

    def make_folder(self, path: str) -> None:
        """Create a folder; its parent must exist."""

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or a folder within its parent folder. An existing file of the new name is
        replaced."""

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder."""

    def sync_folder(self, path: str) -> None:
        """Fsync a folder, so that the names in it survive a power loss. May be called in any
        thread."""

    def lock(self, folder: str, *, shared: bool = False) -> Lock:
        """Lock the folder for this process. Raises BlockingIOError if another process holds the
        lock."""

    def boot_id(self) -> str:
        """ID of the current boot. If it has not changed, no write was lost to a power loss."""

    def random_bytes(self, size: int) -> bytes:
        """Random bytes for an id."""


def _maybe_fallocate() -> Callable[[int, int, int, int], object] | None:
    """The system call `fallocate`; None if there is none. Python only has `posix_fallocate`, which
    changes the size of the file."""
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
        self.write = partial(os.pwrite, fd)  # saves one Python call per append

    def write_parts(self, parts: Sequence[bytes], position: int) -> int:
        return os.pwritev(self._fd, parts, position)

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._fd, size, position)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def reserve(self, position: int, size: int) -> None:
        # Errors are ignored: if the disk is full, the next write fails.
        if _fallocate is not None:
            _fallocate(self._fd, _FALLOC_FL_KEEP_SIZE, position, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealFiles:
    """The file system of the operating system. Files and folders are private to the user, as in
    nsqd."""

    def open(self, path: str, mode: Mode) -> RealFile:
        return RealFile(os.open(path, _FLAGS[mode] | os.O_CLOEXEC, 0o600))

    def list_names(self, folder: str) -> list[str]:
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
            # Without a boot ID, every start counts as a new boot.
            return os.urandom(16).hex()

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)


def write_all(file: File, parts: Sequence[bytes], position: int) -> int:
    """Write all parts and return their size. One write suffices unless the system writes fewer
    bytes, as it does when the disk fills up."""
    written = file.write_parts(parts, position)
    size = sum(map(len, parts))
    while written < size:
        taken = file.write(b"".join(parts)[written:], position + written)
        if taken == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        written += taken
    return size


def replace_file(files: Files, path: str, new_path: str, content: bytes) -> None:
    """Replace a file: a crash leaves the old content or the new. `new_path`, in the same folder, is
    where the new file is written. Raises OSError; the old file is then unchanged."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(new_path)
    with contextlib.closing(files.open(new_path, "create")) as file:
        write_all(file, [content], 0)
        file.sync()
    files.rename(new_path, path)
    files.sync_folder(path.rpartition("/")[0])


def append_and_sync(files: Files, path: str, pieces: Iterable[bytes]) -> None:
    """Append to a file, creating it if it does not exist, and fsync it."""
    try:
        file = files.open(path, "write")
    except FileNotFoundError:
        file = files.open(path, "create")
    with contextlib.closing(file):
        write_all(file, list(pieces), file.size())
        file.sync()


def storage_error(doing: str, path: str, error: OSError) -> StorageError:
    """A StorageError with the text `cannot DOING PATH: REASON`, for an error of a system call."""
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
        """Remove a file."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder and the files in it."""

    def close(self) -> None:
        """Stop; the next start removes the remaining files."""


class ImmediateRemover:
    """Removes files before it returns. Raises OSError."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in self._files.list_names(path):
                self._files.remove(f"{path}/{name}")
            self._files.remove(path)

    def close(self) -> None:
        pass


class _Removal(NamedTuple):
    run: Callable[[str], None]
    path: str


class BackgroundRemover:
    """Removes files in a thread, one after the other. If a removal fails, `on_failure` is called in
    that thread, and the removal is retried later."""

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
        """End the thread after the removal in progress."""
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
    """A file of the pool. `file` is the open file or None; use `handle.file or handle.open()`."""

    __slots__ = ("_is_close_pending", "_pins", "_pool", "file", "path")

    def __init__(self, pool: "FilePool", path: str) -> None:
        self.path = path
        self.file: File | None = None
        self._pool = pool
        self._pins = 0
        self._is_close_pending = False

    @property
    def is_pinned(self) -> bool:
        """Whether another thread may be using the file."""
        return self._pins > 0

    def open(self) -> File:
        """Return the file, opening it if necessary."""
        if self.file is None:
            self.file = self._pool.open_handle(self, "write")
        return self.file

    def create(self) -> File:
        """Create the file, which must not exist."""
        self.file = self._pool.open_handle(self, "create")
        return self.file

    def pin(self) -> File:
        """Open the file and keep it open until `unpin`, so that another thread can use it."""
        file = self.open()
        self._pins += 1
        return file

    def unpin(self) -> None:
        """Undo one `pin`."""
        self._pins -= 1
        if self._is_close_pending:
            self.close()

    def close(self) -> None:
        """Close the file, or after the last `unpin` if it is pinned."""
        self._is_close_pending = self.is_pinned
        if self.file is not None and not self.is_pinned:
            self._pool.close_handle(self)


class FilePool:
    """Limits the number of open files: closes the file that was opened first when there are too
    many. A `Handle` opens its file again when necessary."""

    def __init__(self, files: Files, open_max: int, remover: Remover | None = None) -> None:
        """`remover` removes trimmed segments; by default they are removed immediately."""
        self.files = files
        self.remover = remover or ImmediateRemover(files)
        self._open_max = open_max
        self._open: dict[Handle, None] = {}

    def __len__(self) -> int:
        """Number of open files."""
        return len(self._open)

    def handle(self, path: str) -> Handle:
        """Return a handle for a file, without opening it."""
        return Handle(self, path)

    def open_handle(self, handle: Handle, mode: Mode) -> File:
        """Open the file of a handle; close another one if too many are open."""
        if len(self._open) >= self._open_max:
            self._close_oldest()
        file = self.files.open(handle.path, mode)
        self._open[handle] = None
        return file

    def close_handle(self, handle: Handle) -> None:
        """Close the file of a handle."""
        assert handle.file is not None
        del self._open[handle]
        handle.file.close()
        handle.file = None

    def _close_oldest(self) -> None:
        oldest = next((handle for handle in self._open if not handle.is_pinned), None)
        if oldest is not None:
            self.close_handle(oldest)
