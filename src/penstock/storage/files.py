"""The few things the log asks of a file system, and the real one.

Everything that the log does to a disk goes through `Files` and `File`. That they are so few is what
lets a test keep files in memory, pull the plug, or fail the nth write (`penstock.testing`). They
raise `OSError`, as the system does; turning that into an `Error` is their caller's work.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from penstock.common.errors import StorageError

__all__ = ["File", "Files", "Lock", "Mode", "RealFiles", "append_to", "storage_error", "write_all"]


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


def append_to(files: Files, path: str, pieces: Iterable[bytes]) -> None:
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
