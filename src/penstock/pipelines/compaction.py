"""Small files of an hour become few large ones, and no reader sees a message twice or not at all.

The folder of an hour is replaced as a whole. Its successor is made in `staging`, from the small
files merged and the large ones linked; then the two change places in one system call. Killed before
that, nothing has happened; after that, all has. Where the file system cannot do it, the old folder
is moved away and the new one into its place: between the two the hour is not there, which whoever
archives next sees, and mends.

Must not run while the topic is written to: it belongs to the process that archives.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from penstock.common.errors import LakeError
from penstock.pipelines.durable import maybe_json, remove_folder, sync, write_durably
from penstock.pipelines.lake import TopicFolder

__all__ = ["Compaction", "Merge", "rows_in"]

FILE_BYTES = 128 << 20
"""What a merged file should have."""

SMALL_FILES = 8
"""So many in one hour are worth the work."""

_AT_FDCWD = -100 if sys.platform == "linux" else -2
_EXCHANGE = 2

Merge = Callable[[Sequence[Path], Path, int], None]
"""Writes the rows of some files into a new folder, as so many files."""


class Compaction:
    """Of one topic's folders."""

    def __init__(self, topic: TopicFolder, merge: Merge) -> None:
        """Ends what a process before this one has not ended."""
        self._topic = topic
        self._merge = merge
        self._folder = topic.staging / "compaction"
        self._recover()

    def run(self, hours: Iterable[Path] | None = None, *, small_files: int = SMALL_FILES) -> int:
        """Each of these hours, or of all, that has so many small files; how many files there are
        less. Raises LakeError if what was merged is not what there was."""
        looked_at = self._topic.hours() if hours is None else hours
        return sum(self._compact(hour, small_files) for hour in looked_at)

    def _compact(self, hour: Path, small_files: int) -> int:
        files = sorted(hour.glob("[!._]*.parquet"))
        small = [file for file in files if file.stat().st_size < FILE_BYTES // 2]
        if len(small) < max(small_files, 2):
            return 0
        remove_folder(self._folder)
        self._folder.mkdir(parents=True)
        size_bytes = sum(file.stat().st_size for file in small)
        self._merge(small, self._new, -(-size_bytes // FILE_BYTES))
        _check(small, self._new)
        for file in set(files) - set(small):
            (self._new / file.name).hardlink_to(file)
        self._replace(hour)
        return len(files) - len(list(hour.glob("[!._]*.parquet")))

    def _replace(self, hour: Path) -> None:
        for file in self._new.iterdir():
            if file.name.startswith(("_", ".")):
                file.unlink()
            else:
                sync(file)
        sync(self._new)
        write_durably(self._plan, str(hour.relative_to(self._topic.lake)))
        if not _exchange(self._new, hour):
            hour.rename(self._folder / "old")
            self._new.rename(hour)
        sync(hour.parent)
        remove_folder(self._folder)

    def _recover(self) -> None:
        name = maybe_json(self._plan)
        if name is not None and not (self._topic.lake / name).exists():
            self._new.rename(self._topic.lake / name)
            sync((self._topic.lake / name).parent)
        remove_folder(self._folder)

    @property
    def _new(self) -> Path:
        return self._folder / "new"

    @property
    def _plan(self) -> Path:
        return self._folder / "plan.json"


def rows_in(files: Sequence[Path]) -> int:
    """By what the files say themselves."""
    return sum(pq.read_metadata(file).num_rows for file in files)


def _check(before: Sequence[Path], merged: Path) -> None:
    expected, actual = rows_in(before), rows_in(sorted(merged.glob("*.parquet")))
    if expected != actual:
        raise LakeError(f"{expected} messages became {actual} when files were merged: left alone")


def _exchange(one: Path, other: Path) -> bool:
    """Two folders change places, at once; whether the system can do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        return not libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE)
    if hasattr(libc, "renamex_np"):
        return not libc.renamex_np(*paths, _EXCHANGE)
    return False
