"""The output files of one topic of nsq_to_file: names, rotation, compression and fsync.

    files.write([b"one", b"two"])      # a line each
    files.sync()                       # after this, they survive a crash

One file is open at a time. `sync` and `close` return after the fsync of the file and of the folders
in which it is new. Files are never overwritten: if a name exists, the next revision number is used;
an old file is continued only without compression and without rotation by time. A completed file of
the work folder is linked into the output folder, then removed from the work folder.

All methods block; call them in a thread.
"""

import os
import os.path
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.common.clock import SECOND_NS, Clock
from penstock.common.errors import ConfigError, StorageError
from penstock.common.logs import Logger
from penstock.tools.nsq_to_file_options import NsqToFileOptions, has_revisions

__all__ = ["FileNames", "RotatingFile", "fill_revision"]

# nsq compat: NSQ's tool replaces only these; all other text stays unchanged.
_STRFTIME = re.compile(r"%([aAbBdHImMpSyYzZ%])")


class FileNames:
    """File names of a topic, relative to the output folder. `at` may return a name with `<REV>`,
    which `fill_revision` replaces."""

    def __init__(self, options: NsqToFileOptions, topic: str, *, hostname: str, pid: int) -> None:
        """Raises ConfigError if the names would lead out of the folder."""
        self._datetime_format = options.datetime_format
        self._format = (
            options.filename_format.replace("<TOPIC>", topic)
            .replace("<HOST>", _host(options.host_identifier, hostname))
            .replace("<PID>", str(pid))
            .lstrip("/")
        )
        if not has_revisions(options):
            self._format = self._format.replace("<REV>", "")
        if options.gzip and not self._format.endswith(".gz"):
            self._format += ".gz"
        # `..` is a valid topic name.
        if os.path.normpath(self._format).split("/")[0] in ("", ".", ".."):
            raise ConfigError(f"topic {topic}: its files would be outside of the output folder")

    def at(self, wall_seconds: float) -> str:
        """The file name for messages written at this time."""
        return self._format.replace("<DATETIME>", _strftime(self._datetime_format, wall_seconds))


def fill_revision(name: str, number: int) -> str:
    """Replace `<REV>` by the revision number."""
    return name.replace("<REV>", f"-{number:06d}")


def _host(identifier: str, hostname: str) -> str:
    short = hostname.split(".", maxsplit=1)[0]
    if not identifier:
        return short
    return identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)


def _strftime(format: str, wall_seconds: float) -> str:
    local = time.localtime(wall_seconds)
    return _STRFTIME.sub(lambda found: time.strftime(found[0], local), format)


FILE_MODE = 0o666
FOLDER_MODE = 0o770

_GZIP_WBITS = 31  # selects the gzip header and trailer


class RotatingFile:
    """The current file of a topic. Methods raise StorageError if the disk fails."""

    def __init__(
        self, options: NsqToFileOptions, names: FileNames, log: Logger, clock: Clock
    ) -> None:
        self._options = options
        self._output_dir = os.path.abspath(options.output_dir)
        self._work_dir = os.path.abspath(options.work_dir or options.output_dir)
        self._names = names
        self._log = log
        self._clock = clock
        self._fd: int | None = None
        self._path = ""
        self._folder_is_synced = False
        self._name = ""  # from FileNames, with <REV>
        self._revision = 0
        self._opened_at_ns = 0
        self._size = 0  # before compression
        self._member: zlib._Compress | None = None  # the gzip member since the last sync
        self._is_empty = True

    def write(self, bodies: Sequence[bytes]) -> bool:
        """Write lines, rotating when due. Returns whether it has rotated."""
        rotated = False
        lines: list[bytes] = []
        name, now_ns = self._current_name(), self._clock.now_ns()
        with self._storage_errors("write to"):
            for body in bodies:
                if self._is_due(name, now_ns):
                    self._put(lines)
                    lines = []
                    self._rotate(name, now_ns)
                    rotated = True
                lines.append(body)
                self._size += len(body) + 1
            self._put(lines)
        return rotated

    def sync(self) -> None:
        """Sync all written lines to disk."""
        with self._storage_errors("sync"):
            self._sync()

    def rotate_if_due(self) -> None:
        """Rotate if due, even if there is nothing to write."""
        name, now_ns = self._current_name(), self._clock.now_ns()
        if not self._is_due(name, now_ns):
            return
        if self._options.skip_empty_files:
            self.close()
            return
        with self._storage_errors("rotate"):
            self._rotate(name, now_ns)

    def close(self) -> None:
        """Complete the open file, if any. The next line starts a new file."""
        with self._storage_errors("complete"):
            self._close()

    # Rotation.

    def _current_name(self) -> str:
        return self._names.at(self._clock.wall_ns() / SECOND_NS)

    def _is_due(self, name: str, now_ns: int) -> bool:
        interval_ns, size_max = self._options.rotate_interval_ns, self._options.rotate_size
        return (
            self._fd is None
            or name != self._name
            or (interval_ns > 0 and now_ns - self._opened_at_ns > interval_ns)
            or (size_max > 0 and self._size > size_max)
        )

    def _rotate(self, name: str, now_ns: int) -> None:
        self._close()
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        self._opened_at_ns = now_ns
        while not self._open():
            self._revision += 1

    # Opening.

    def _open(self) -> bool:
        """Open the file of the current revision. False if it already exists."""
        relative = fill_revision(self._name, self._revision)
        self._path = os.path.join(self._work_dir, relative)
        _make_folder(os.path.dirname(self._path))
        if self._has_work_dir:
            target = os.path.join(self._output_dir, relative)
            _make_folder(os.path.dirname(target))
            if os.path.lexists(target):
                self._log.warning("output file already exists: %s", target)
                return False
        must_be_new = self._options.gzip or self._options.rotate_interval_ns > 0
        how = os.O_EXCL if must_be_new else os.O_APPEND
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | how, FILE_MODE)
        except FileExistsError:
            self._log.warning("working file already exists: %s", self._path)
            return False
        size = os.fstat(fd).st_size
        if 0 < self._options.rotate_size < size:
            os.close(fd)
            return False
        self._log.debug("opening %s", self._path)
        self._fd, self._size, self._is_empty = fd, size, size == 0
        self._folder_is_synced = False
        self._end_torn_line(fd, size)
        return True

    @property
    def _has_work_dir(self) -> bool:
        return self._work_dir != self._output_dir

    def _end_torn_line(self, fd: int, size: int) -> None:
        """End a line that a crash cut off, so that the next line is not appended to it. nsqd
        delivers the message of the cut line again."""
        if size and os.pread(fd, 1, size - 1) != b"\n":
            self._log.warning("%s ends within a line; starting a new line", self._path)
            self._put([b""])
            self._size += 1

    # Writing.

    def _put(self, lines: list[bytes]) -> None:
        if not lines:
            return
        lines.append(b"")
        data = b"\n".join(lines)
        if self._options.gzip:
            if self._member is None:
                self._member = self._new_member()
            data = self._member.compress(data)
        self._write_all(data)

    def _new_member(self) -> "zlib._Compress":
        return zlib.compressobj(self._options.gzip_level, zlib.DEFLATED, _GZIP_WBITS)

    def _write_all(self, data: bytes) -> None:
        assert self._fd is not None
        self._is_empty = self._is_empty and not data
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def _sync(self) -> None:
        if self._fd is None:
            return
        if self._member is not None:
            self._write_all(self._member.flush())
            self._member = None
        os.fsync(self._fd)
        if not self._folder_is_synced:
            _sync_folder(os.path.dirname(self._path))
            self._folder_is_synced = True

    # Completing.

    def _close(self) -> None:
        if self._fd is None:
            return
        if self._options.gzip and self._is_empty and self._member is None:
            self._member = self._new_member()  # an empty file is not valid gzip
        self._sync()
        os.close(self._fd)
        self._fd = None
        if self._has_work_dir:
            self._move()

    def _move(self) -> None:
        while True:
            target = os.path.join(self._output_dir, fill_revision(self._name, self._revision))
            try:
                os.link(self._path, target)
                break
            except FileExistsError:
                self._log.warning("destination file already exists: %s", target)
                self._revision += 1
        _sync_folder(os.path.dirname(target))
        os.unlink(self._path)
        self._log.debug("moved finished file %s to %s", self._path, target)

    @contextmanager
    def _storage_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(f"unable to {what} {self._path}: {reason}") from None


def _make_folder(path: str) -> None:
    """Create a folder and its parents, and sync the new ones to disk."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_folder(parent)
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:  # another topic has created it meanwhile
        if not os.path.isdir(path):
            raise
    _sync_folder(parent)


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
