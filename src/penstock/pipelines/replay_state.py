"""How far a replay has come, in a file that outlives it. No Spark here.

Messages are replayed in one order, by time, node and number: so one key says what is done. What a
replay is about to publish is written down before, and that it is confirmed after: who is killed in
between, or does not hear from nsqd, can find out from nsqd's log which it was.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.common.errors import ConfigError, LakeError
from penstock.pipelines.durable import sync, write_durably

__all__ = ["Key", "ReplayFile", "ReplayState", "Sending"]


class Key(NamedTuple):
    """What messages are sorted by."""

    timestamp_ns: int
    node: int
    seq: int


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that may have been published, or not."""

    node_id: int
    """Of the nsqd that they were sent to."""
    from_seq: int
    """If it has them, then from this number on."""
    count: int


class ReplayState(msgspec.Struct, frozen=True, kw_only=True):
    """`ends` are the numbers, by node, from which on nothing is replayed: what is archived while
    a replay is under way, or before it is resumed, is not part of it."""

    ends: dict[str, int]
    from_ns: int | None = None
    to_ns: int | None = None
    messages: int = 0
    """All there is to do."""
    size_bytes: int = 0
    done: int = 0
    key: Key | None = None
    """Of the last message that is confirmed."""
    sending: Sending | None = None


class ReplayFile:
    """The state of the one replay that is asked for by these words."""

    def __init__(self, folder: Path, words: dict[str, str]) -> None:
        """Replays that are asked for in the same words are the same."""
        digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:16]}.json"
        self._words = words

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises LakeError if the same replay runs already, or if there is no place for it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("wb")
        except OSError as failure:
            raise LakeError(f"cannot write {self.path.parent} - {failure.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LakeError("this replay is running already") from None
            yield
            if not self.path.exists():
                self.path.with_suffix(".lock").unlink(missing_ok=True)

    def load(self) -> ReplayState | None:
        """None if there is nothing to resume. Raises ConfigError."""
        try:
            stored = msgspec.json.decode(self.path.read_bytes(), type=dict[str, msgspec.Raw])
            return msgspec.json.decode(stored["state"], type=ReplayState)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, msgspec.DecodeError) as failure:
            raise ConfigError(
                f"cannot read {self.path}: {failure}; --restart does without"
            ) from None

    def save(self, state: ReplayState) -> None:
        """Write this state durably in place of the old one. Raises LakeError.

        It must survive a power loss: with an older state, chunks that are already published would
        be published again.
        """
        try:
            write_durably(self.path, msgspec.to_builtins({"replay": self._words, "state": state}))
        except OSError as failure:
            raise LakeError(f"cannot write {self.path} - {failure.strerror}") from None

    def remove(self) -> None:
        """It is over."""
        self.path.unlink(missing_ok=True)
        if self.path.parent.is_dir():
            sync(self.path.parent)
