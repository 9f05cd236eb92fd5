"""Writing to a lake: commits of batches, and compaction of small files. No Spark here.

Commit: a batch is written to `staging`. Then `committed.json` is replaced; it contains the next
sequence number of each log, and the files to move into the lake. This replacement is the commit.
Then the files are moved. A crash before the commit changes nothing; after a later crash, the
next process moves the remaining files. The lake has exactly the messages below the committed
sequence numbers, so messages that Spark reads again from an older checkpoint are recognised.

Compaction: a new folder for the hour is built in `staging`, with the small files merged and the
large ones hard-linked, and exchanged with the old folder in one system call. Where the system lacks
this call, the folders are renamed one after the other; after a crash between the two renames the
hour is missing until the next archive process restores it. Compaction must not run while another
process writes the topic.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from penstock.common.errors import LakeError
from penstock.pipelines.lake import TopicFolder, fsync, maybe_read_json, remove_folder, write_json

__all__ = ["CommitState", "Commits", "Compaction", "MergeFiles", "count_rows"]

FILE_BYTES = 128 << 20
"""Target size of a merged file."""

SMALL_FILES = 8
"""Minimum number of small files in an hour for a compaction."""

_AT_FDCWD = -100 if sys.platform == "linux" else -2
_EXCHANGE = 2

MergeFiles = Callable[[Sequence[Path], Path, int], None]
"""Function that writes the rows of files to a new folder, as the given number of files."""


class CommitState(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `committed.json`. Paths are relative to the lake."""

    next_seqs: dict[str, int] = {}
    """Next sequence number, by log id. Earlier versions wrote node ids."""
    messages: int = 0
    rejected: int = 0
    moves: list[tuple[str, str]] = []


class Commits:
    """Commits batches of one topic."""

    def __init__(self, topic: TopicFolder) -> None:
        """Completes a commit that a previous process started. Raises LakeError."""
        self._topic = topic
        self.state = self.load_state(topic)
        self._move()
        remove_folder(self._batch)

    @staticmethod
    def load_state(topic: TopicFolder) -> CommitState:
        """Read the state without recovery. Raises LakeError."""
        path = topic.committed
        try:
            return msgspec.json.decode(path.read_bytes(), type=CommitState)
        except FileNotFoundError:
            return CommitState()
        except (OSError, msgspec.DecodeError) as failure:
            raise LakeError(f"cannot read {path}: {failure}") from None

    @property
    def staged_messages(self) -> Path:
        """Folder to write a batch's messages to, in folders by date and hour."""
        return self._batch / "messages"

    @property
    def staged_rejected(self) -> Path:
        """Folder to write rejected messages to."""
        return self._batch / "rejected"

    def begin(self) -> None:
        """Start a batch; discard staged files that were not committed."""
        remove_folder(self._batch)
        self._batch.mkdir(parents=True)

    def commit(self, next_seqs: dict[str, int], *, messages: int, rejected: int) -> None:
        """Add the staged files to the lake, which then has all messages below `next_seqs`.

        The sequence number of a log never decreases, even if its node joins again without a
        checkpoint.
        """
        staged = [
            *_files(self.staged_messages, self._topic.messages),
            *_files(self.staged_rejected, self._topic.rejected),
        ]
        _sync(source for source, _ in staged)
        lake = self._topic.lake
        self.state = CommitState(
            next_seqs=_maximum(self.state.next_seqs, next_seqs),
            messages=self.state.messages + messages,
            rejected=self.state.rejected + rejected,
            moves=[
                (str(source.relative_to(lake)), str(to.relative_to(lake))) for source, to in staged
            ],
        )
        write_json(self._topic.committed, msgspec.to_builtins(self.state))
        self._move()
        remove_folder(self._batch)

    def rename_logs(self, next_seqs: dict[str, int]) -> None:
        """Store the same sequence numbers by log id instead of node id."""
        if next_seqs != self.state.next_seqs:
            self.state = msgspec.structs.replace(self.state, next_seqs=next_seqs)
            write_json(self._topic.committed, msgspec.to_builtins(self.state))

    def hours(self) -> list[Path]:
        """Folders to which the last batch added messages."""
        folders = {(self._topic.lake / target).parent for _, target in self.state.moves}
        return sorted(each for each in folders if each.is_relative_to(self._topic.messages))

    def _move(self) -> None:
        """Move staged files to the lake. Files that are not in staging were moved before, and may
        have been compacted since."""
        lake, folders = self._topic.lake, set()
        for source, target in self.state.moves:
            if (lake / source).exists():
                (lake / target).parent.mkdir(parents=True, exist_ok=True)
                (lake / source).rename(lake / target)
                folders.add((lake / target).parent)
        for folder in folders:
            fsync(folder)
            fsync(folder.parent)

    @property
    def _batch(self) -> Path:
        return self._topic.staging / "batch"


def _maximum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """The larger sequence number of each log."""
    return {log_id: max(one.get(log_id, 0), other.get(log_id, 0)) for log_id in one | other}


def _files(staged: Path, target: Path) -> list[tuple[Path, Path]]:
    """Staged files with their targets."""
    return [(file, target / file.relative_to(staged)) for file in sorted(staged.rglob("*.parquet"))]


def _sync(files: Iterable[Path]) -> None:
    """Call fsync on the files and their parent folders."""
    folders = set()
    for file in files:
        fsync(file)
        folders |= {file.parent, file.parent.parent, file.parent.parent.parent}
    for folder in folders:
        fsync(folder)


# Compaction.


class Compaction:
    """Compacts the folders of one topic."""

    def __init__(self, topic: TopicFolder, merge: MergeFiles) -> None:
        """Completes a compaction that a previous process started."""
        self._topic = topic
        self._merge = merge
        self._folder = topic.staging / "compaction"
        self._recover()

    def run(self, hours: Iterable[Path] | None = None, *, small_files: int = SMALL_FILES) -> int:
        """Compact the given hours, or all, that have at least `small_files` small files.

        Returns by how many the number of files decreased. Raises LakeError if the merged files do
        not have all messages.
        """
        candidates = self._topic.hours() if hours is None else hours
        return sum(self._compact(hour, small_files) for hour in candidates)

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
                fsync(file)
        fsync(self._new)
        write_json(self._plan, str(hour.relative_to(self._topic.lake)))
        if not _exchange(self._new, hour):
            hour.rename(self._folder / "old")
            self._new.rename(hour)
        fsync(hour.parent)
        remove_folder(self._folder)

    def _recover(self) -> None:
        name = maybe_read_json(self._plan)
        if name is not None and not (self._topic.lake / name).exists():
            self._new.rename(self._topic.lake / name)
            fsync((self._topic.lake / name).parent)
        remove_folder(self._folder)

    @property
    def _new(self) -> Path:
        return self._folder / "new"

    @property
    def _plan(self) -> Path:
        return self._folder / "plan.json"


def count_rows(files: Sequence[Path]) -> int:
    """Number of rows, from the metadata of the files."""
    return sum(pq.read_metadata(file).num_rows for file in files)


def _check(before: Sequence[Path], merged: Path) -> None:
    expected, actual = count_rows(before), count_rows(sorted(merged.glob("*.parquet")))
    if expected != actual:
        raise LakeError(f"merging {expected} messages gave {actual}: keeping the original files")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically. Returns False if the system does not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        return not libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE)
    if hasattr(libc, "renamex_np"):
        return not libc.renamex_np(*paths, _EXCHANGE)
    return False
