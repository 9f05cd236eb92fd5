"""A file system that can be synced as a whole, which for many files is cheaper than one by one.

Linux's `syncfs` promises less than an fsync. It is used where what is missing can be made up for;
docs/decisions/0008-one-sync-for-many-files.md says more.

- Only on ext4, and from Linux 5.17 on, which is the first to tell of everything that went wrong.
- An fsync of the folder follows. It has the disk empty its own cache, which ext4 without a journal
  fills once more after that, and it fails on a file system that was made read-only by an error,
  which `syncfs` passes over.
- The writing of every file is started first. If there turns out to be no place for what was
  written, only who starts it is told, and `syncfs` leaves starting to threads of the system's.
- What is lost is told once to each open folder, if it was open by then. So one is kept open.
- After that, the fsync of a file that has lost something may well succeed. So it proves nothing,
  and whatever was not safe before is written again: `losses` tells when.
"""

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Protocol

__all__ = ["RealVolume", "Volume", "maybe_real_volume", "start_writing"]

_RELEASE_MIN = (5, 17)
_SYNC_FILE_RANGE_WAIT_BEFORE = 1
_SYNC_FILE_RANGE_WRITE = 2


class Volume(Protocol):
    """A file system."""

    @property
    def device(self) -> int:
        """Its files are those whose `device` is the same."""

    def sync(self) -> None:
        """Returns once every name, and all that was written to files whose sync was started, is
        safe from a power loss. Any thread may call it.

        Raises OSError if something was lost since the last call. That can be anybody's, and no sync
        need ever tell of it again: all that was not safe before is to be written once more.
        """

    @property
    def losses(self) -> int:
        """How often `sync` has failed."""

    def close(self) -> None:
        """Gives it back; it is not used afterwards."""


class RealVolume:
    """The file system of a folder."""

    def __init__(self, folder: str) -> None:
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.device = os.fstat(self._fd).st_dev
        self.losses = 0

    def sync(self) -> None:
        try:
            _call("syncfs", ctypes.c_int(self._fd))
            os.fsync(self._fd)
        except OSError:
            self.losses += 1
            raise

    def close(self) -> None:
        os.close(self._fd)

    @property
    def is_reliable(self) -> bool:
        """Whether this system, and the file system, are such that all of the above is so."""
        if _release() < _RELEASE_MIN or not _is_ext4(self.device):
            return False
        try:
            start_writing(self._fd)
        except OSError:
            return False  # Some sandboxes do not let it pass.
        return True


def maybe_real_volume(folder: str) -> RealVolume | None:
    """The file system of a folder, if it can be relied on. Raises OSError."""
    volume = RealVolume(folder)
    if volume.is_reliable:
        return volume
    volume.close()
    return None


def start_writing(fd: int) -> None:
    """Has all that was written to a file brought to the disk, without waiting for it; but for what
    is on its way already, since that would be passed over if it has been changed meanwhile."""
    flags = _SYNC_FILE_RANGE_WAIT_BEFORE | _SYNC_FILE_RANGE_WRITE
    start, to_the_end = ctypes.c_int64(0), ctypes.c_int64(0)
    _call("sync_file_range", ctypes.c_int(fd), start, to_the_end, ctypes.c_uint(flags))


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """A system call that Python does not offer. Raises OSError."""
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _release() -> tuple[int, ...]:
    """The system's, of which a name may be "6.1.0-18-amd64"."""
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


def _is_ext4(device: int) -> bool:
    """What matters is not how it is formatted, but whose code runs it."""
    try:
        disk = os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    except OSError:
        return False
    return Path("/proc/fs/ext4", Path(disk).name).exists()
