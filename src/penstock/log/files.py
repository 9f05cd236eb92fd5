"""The few things the log asks of a file system, and the real one.

Everything that the log does to a disk goes through `Files` and `File`; that they are so few is what
lets a test keep files in memory, pull the plug, or fail the nth write (`penstock.testing`). Both
raise `OSError`, as the system does; turning that into an `Error` is their caller's work.
"""

import contextlib
import fcntl
import os
from typing import Protocol

__all__ = ["File", "Files", "RealFiles"]


class File(Protocol):
    """An open file that grows at its end and can be read anywhere."""

    def append(self, *parts: bytes) -> int:
        """Writes the parts at the end in one go and returns how many bytes were taken."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only where the file ends."""

    def size(self) -> int:
        """How many bytes the file holds now."""

    def truncate(self, size: int) -> None:
        """Cuts the file off after `size` bytes."""

    def sync(self) -> None:
        """Returns once all that was written is safe from a power loss. Any thread may call it."""

    def close(self) -> None:
        """Gives the file back; it is not used afterwards."""


class Lock(Protocol):
    """A folder that is ours until `close`."""

    def close(self) -> None: ...


class Files(Protocol):
    """Folders, and the files in them."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Opens a file; `create` asks for one that is not there yet."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted."""

    def make_folder(self, path: str) -> None: ...

    def rename(self, path: str, new_path: str) -> None:
        """Gives a file or folder a new name; a file that has that name is replaced."""

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None:
        """Returns once the names in a folder are safe from a power loss."""

    def lock(self, folder: str, *, shared: bool = False) -> Lock:
        """Takes the folder for this process, or raises BlockingIOError at once."""

    def boot_id(self) -> str:
        """Names the time since the machine started: while it stays, no write can have been lost."""


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def append(self, *parts: bytes) -> int:
        return os.writev(self._fd, parts)

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._fd, size, position)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealFiles:
    """The operating system's files."""

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return RealFile(os.open(path, flags, 0o600))

    def names(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        with contextlib.closing(RealFile(os.open(path, os.O_RDONLY | os.O_DIRECTORY))) as folder:
            folder.sync()

    def lock(self, folder: str, *, shared: bool = False) -> RealFile:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
        except BaseException:
            os.close(fd)
            raise
        return RealFile(fd)

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            # Not told by this system: no two runs are then known to be of one boot.
            return os.urandom(16).hex()
