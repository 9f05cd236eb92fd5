"""The layout of a lake: an archive of topics as Parquet files. No Spark here.

    LAKE/
      _lake.json                                  marks a lake, with the version of its format
      topic=orders/date=2026-11-15/hour=08/       UTC, by the messages' timestamps
        part-....parquet                          node, seq, id, timestamp, timestamp_ns, body,
                                                  and value, if there is a schema
      _rejected/topic=orders/date=.../hour=../    messages that violate the schema, with a reason
      _topics/topic=orders/                       state of the archive
        schema.json                               schema of the bodies, if any: column `value`
        committed.json                            next sequence number of each node
        checkpoint/                               Spark's checkpoint
        staging/                                  files being written
        lock                                      held by the process that writes
      _replays/                                   state of replays

Tools that read the folder as a table ignore names that begin with `_`. Topic names are
case-sensitive, but some file systems are not: a capital letter is written as `%4F`, which Spark and
other readers of partitioned folders decode.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock.common import names
from penstock.common.errors import LakeError

__all__ = [
    "Lake",
    "TopicFolder",
    "fsync",
    "maybe_read_json",
    "maybe_topic_name",
    "remove_folder",
    "topic_folder_name",
    "write_json",
]

VERSION = 1

MARKER_NAME = "_lake.json"
STATE_NAME = "_topics"
REJECTED_NAME = "_rejected"
REPLAYS_NAME = "_replays"

# How Hive, and so Spark, writes that there is no value.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

# A single slash, because Path collapses double ones.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class Lake:
    """A folder that has been found to be a lake, or has been made one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, folder: str | Path) -> "Lake":
        """Raises LakeError if it is none."""
        path = _local_path(folder)
        if not path.is_dir():
            raise LakeError(f"{folder} is no lake: there is no such folder")
        _check_marker(path)
        return cls(path)

    @classmethod
    def check_usable(cls, folder: str | Path) -> None:
        """Raises LakeError unless it is a lake, or can be made one. Changes nothing."""
        path = _local_path(folder)
        if path.is_dir() and any(path.iterdir()):
            _check_marker(path)
        elif path.exists() and not path.is_dir():
            raise LakeError(f"{folder} is no folder")

    @classmethod
    def create(cls, folder: str | Path) -> "Lake":
        """Makes a folder that is empty, or not there yet, a lake; one that is a lake stays as it
        is. Raises LakeError."""
        cls.check_usable(folder)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / MARKER_NAME).exists():
                write_json(path / MARKER_NAME, {"penstock_lake": VERSION})
        except OSError as failure:
            raise LakeError(f"cannot make a lake of {folder} - {failure.strerror}") from None
        return cls(path)

    def topics(self) -> list[str]:
        """Those that it has messages of."""
        found = (maybe_topic_name(each.name) for each in self.path.iterdir() if each.is_dir())
        return sorted(topic for topic in found if topic is not None)

    def topic(self, topic: str) -> "TopicFolder":
        """Where everything of a topic is. Raises LakeError if a lake can have no such topic."""
        if topic == _NO_VALUE:
            raise LakeError(f"{topic} means no topic at all in a lake")
        return TopicFolder(self.path, topic)

    def existing_topic(self, topic: str) -> "TopicFolder":
        """The same, of one that there is. Raises LakeError."""
        folder = self.topic(topic)
        if not folder.messages.is_dir():
            known = ", ".join(self.topics()) or "no topic at all"
            raise LakeError(f"there is no topic {topic} in {self.path}, which has {known}")
        return folder

    @property
    def replays(self) -> Path:
        """The folder for the state of replays."""
        return self.path / REPLAYS_NAME


class TopicFolder:
    """The folders and files of one topic."""

    def __init__(self, lake: Path, topic: str) -> None:
        folder = topic_folder_name(topic)
        self.name = topic
        self.lake = lake
        self.messages = lake / folder
        self.rejected = lake / REJECTED_NAME / folder
        self.state = lake / STATE_NAME / folder
        self.checkpoint = self.state / "checkpoint"
        self.staging = self.state / "staging"
        self.committed = self.state / "committed.json"
        self.schema = self.state / "schema.json"

    def files(self) -> list[Path]:
        """The Parquet files of its messages, in order of date and hour."""
        return sorted(self.messages.glob("date=*/hour=*/[!._]*.parquet"))

    def rejected_files(self) -> list[Path]:
        """Those of what does not fit the schema."""
        return sorted(self.rejected.glob("date=*/hour=*/[!._]*.parquet"))

    def hours(self) -> list[Path]:
        """The folders with messages, the oldest first."""
        return sorted(self.messages.glob("date=*/hour=*"))

    def body_schema(self) -> dict[str, Any] | None:
        """The schema of its bodies, as Spark writes one in JSON. Raises LakeError."""
        schema: dict[str, Any] | None = maybe_read_json(self.schema)
        return schema

    def set_body_schema(self, schema: dict[str, Any]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        write_json(self.schema, schema)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For the one process that writes. Raises LakeError if there is another."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LakeError(f"another process archives {self.name} to {self.lake}") from None
            yield


def _local_path(folder: str | Path) -> Path:
    """Raises LakeError for a URL, which would otherwise become a folder with the scheme's name."""
    if _URL.match(str(folder)):
        raise LakeError(f"{folder} is a URL, and a lake is a folder: mount it and pass its path")
    return Path(folder)


def topic_folder_name(topic: str) -> str:
    """`Orders` becomes `topic=%4Frders`."""
    return "topic=" + re.sub("[A-Z]", lambda match: f"%{ord(match[0]):02X}", topic)


def maybe_topic_name(folder: str) -> str | None:
    """The topic whose folder has this name, if it is one's."""
    topic = unquote(folder.removeprefix("topic="))
    is_its_folder = names.is_valid(topic) and topic_folder_name(topic) == folder
    return topic if is_its_folder else None


def _check_marker(path: Path) -> None:
    marker = maybe_read_json(path / MARKER_NAME)
    version = marker.get("penstock_lake") if isinstance(marker, dict) else None
    if not isinstance(version, int):
        raise LakeError(
            f"{path} is no lake: there is no {MARKER_NAME}, which penstock archive makes"
        )
    if version > VERSION:
        raise LakeError(f"{path} is a lake of version {version}, made by a newer Penstock")


# Durable files.


def write_json(path: Path, content: Any) -> None:
    """JSON, in a file that is the old one or the new one, whatever happens. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content, indent=1))
    fsync(new)
    new.replace(path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """What was written to a file; what was made, renamed or removed in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def maybe_read_json(path: Path) -> Any:
    """None if there is no such file. Raises LakeError if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        raise LakeError(f"cannot read {path}: {failure}") from None


def remove_folder(folder: Path) -> None:
    """With all that is in it, if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
