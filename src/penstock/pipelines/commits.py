"""How a batch gets into a lake: whole, and once. No Spark here.

A batch is written into `staging`, where nobody looks. Then `committed.json` is replaced by one that
says how far the archive has come with it, and which files are to be moved where: from that moment
on the batch is in the lake. Then the files are moved. Who is killed before that moment has done
nothing, and who is killed after it finds in `committed.json` what is left to be moved.

How far it has come is the number of the next message of each node: a message below it is in the
lake, any other is not. Spark's checkpoint may be behind that, if it was killed in between, or gone:
the messages that it brings again are known by their numbers.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.common.errors import LakeError
from penstock.pipelines.durable import remove_folder, sync, write_durably
from penstock.pipelines.lake import TopicFolder

__all__ = ["Commits", "Committed"]


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """What `committed.json` says. Paths are relative to the lake."""

    next_seqs: dict[str, int] = {}
    """By node id."""
    messages: int = 0
    rejected: int = 0
    moves: list[tuple[str, str]] = []


class Commits:
    """Of one topic."""

    def __init__(self, topic: TopicFolder) -> None:
        """Ends what a process before this one has not ended. Raises LakeError."""
        self._topic = topic
        self.state = self.state_of(topic)
        self._move()
        remove_folder(self._batch)

    @staticmethod
    def state_of(topic: TopicFolder) -> Committed:
        """For those who only read. Raises LakeError."""
        path = topic.committed
        try:
            return msgspec.json.decode(path.read_bytes(), type=Committed)
        except FileNotFoundError:
            return Committed()
        except (OSError, msgspec.DecodeError) as failure:
            raise LakeError(f"cannot read {path}: {failure}") from None

    @property
    def staged_messages(self) -> Path:
        """Where a batch's messages are written to, in folders by date and hour."""
        return self._batch / "messages"

    @property
    def staged_rejected(self) -> Path:
        """Where those that do not fit the schema are."""
        return self._batch / "rejected"

    def begin(self) -> None:
        """A new batch; whatever was staged and not committed is forgotten."""
        remove_folder(self._batch)
        self._batch.mkdir(parents=True)

    def commit(self, next_seqs: dict[str, int], *, messages: int, rejected: int) -> None:
        """Add the staged files to the lake, which then has all messages below `next_seqs`. A node's
        number never decreases, even if the node joins again without a checkpoint."""
        staged = [
            *_files(self.staged_messages, self._topic.messages),
            *_files(self.staged_rejected, self._topic.rejected),
        ]
        _sync(source for source, _ in staged)
        lake = self._topic.lake
        self.state = Committed(
            next_seqs=_maximum(self.state.next_seqs, next_seqs),
            messages=self.state.messages + messages,
            rejected=self.state.rejected + rejected,
            moves=[
                (str(source.relative_to(lake)), str(to.relative_to(lake))) for source, to in staged
            ],
        )
        write_durably(self._topic.committed, msgspec.to_builtins(self.state))
        self._move()
        remove_folder(self._batch)

    def hours(self) -> list[Path]:
        """The folders that the last batch has added messages to."""
        folders = {(self._topic.lake / target).parent for _, target in self.state.moves}
        return sorted(each for each in folders if each.is_relative_to(self._topic.messages))

    def _move(self) -> None:
        """A file that is not in staging any more has been moved before, and since then maybe merged
        with others."""
        lake, folders = self._topic.lake, set()
        for source, target in self.state.moves:
            if (lake / source).exists():
                (lake / target).parent.mkdir(parents=True, exist_ok=True)
                (lake / source).rename(lake / target)
                folders.add((lake / target).parent)
        for folder in folders:
            sync(folder)
            sync(folder.parent)

    @property
    def _batch(self) -> Path:
        return self._topic.staging / "batch"


def _maximum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """The larger number of each node."""
    return {node: max(one.get(node, 0), other.get(node, 0)) for node in one | other}


def _files(staged: Path, target: Path) -> list[tuple[Path, Path]]:
    """Each staged file, and where it belongs."""
    return [(file, target / file.relative_to(staged)) for file in sorted(staged.rglob("*.parquet"))]


def _sync(files: Iterable[Path]) -> None:
    """Files, and the folders that lead to them, stay after a power loss."""
    folders = set()
    for file in files:
        sync(file)
        folders |= {file.parent, file.parent.parent, file.parent.parent.parent}
    for folder in folders:
        sync(folder)
