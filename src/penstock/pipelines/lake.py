"""The layout of a lake: an archive of topics as Parquet files. No Spark here.

    LAKE/
      _lake.json                                  marks a lake, with the version of its format
      topic=orders/date=2026-11-15/hour=08/       UTC, by the messages' timestamps
        part-....parquet                          log, node, seq, id, timestamp, timestamp_ns,
                                                  body, and value, if there is a schema
      _rejected/topic=orders/date=.../hour=../    messages that violate the schema, with a reason
      _topics/topic=orders/                       state of the archive
        schema.json                               schema of the bodies, if any: column `value`
        committed.json                            next sequence number of each log
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

# Null value in the names of partition folders of Hive and Spark.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

# A single slash, because Path collapses double ones.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class Lake:
    """A lake at a local path. Use `open` or `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, folder: str | Path) -> "Lake":
        """Raises LakeError if the folder is not a lake."""
        path = _local_path(folder)
        if not path.is_dir():
            raise LakeError(f"{folder} is not a Penstock lake (no such folder)")
        _check_marker(path)
        return cls(path)

    @classmethod
    def check_usable(cls, folder: str | Path) -> None:
        """Raises LakeError unless the folder is a lake, empty or missing. No side effects."""
        path = _local_path(folder)
        if path.is_dir() and any(path.iterdir()):
            _check_marker(path)
        elif path.exists() and not path.is_dir():
            raise LakeError(f"{folder} is not a folder")

    @classmethod
    def create(cls, folder: str | Path) -> "Lake":
        """Create a lake in an empty or missing folder, or open an existing lake. Raises
        LakeError."""
        cls.check_usable(folder)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / MARKER_NAME).exists():
                write_json(path / MARKER_NAME, {"penstock_lake": VERSION})
        except OSError as failure:
            raise LakeError(f"cannot create a lake in {folder} - {failure.strerror}") from None
        return cls(path)

    def topics(self) -> list[str]:
        """Names of the topics in the lake."""
        found = (maybe_topic_name(each.name) for each in self.path.iterdir() if each.is_dir())
        return sorted(topic for topic in found if topic is not None)

    def topic(self, topic: str) -> "TopicFolder":
        """Folders of a topic. Raises LakeError if a lake cannot store a topic of this name."""
        if topic == _NO_VALUE:
            raise LakeError(f"{topic} is reserved in a lake: it means null")
        return TopicFolder(self.path, topic)

    def existing_topic(self, topic: str) -> "TopicFolder":
        """Folders of a topic that the lake contains. Raises LakeError if it does not."""
        folder = self.topic(topic)
        if not folder.messages.is_dir():
            known = ", ".join(self.topics()) or "none"
            raise LakeError(f"topic {topic} is not in {self.path}; topics: {known}")
        return folder

    @property
    def replays(self) -> Path:
        """Folder for the state of replays."""
        return self.path / REPLAYS_NAME


class TopicFolder:
    """Folders and files of one topic."""

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
        """Parquet files of the messages, by date and hour."""
        return sorted(self.messages.glob("date=*/hour=*/[!._]*.parquet"))

    def rejected_files(self) -> list[Path]:
        """Parquet files of the rejected messages."""
        return sorted(self.rejected.glob("date=*/hour=*/[!._]*.parquet"))

    def hours(self) -> list[Path]:
        """Folders with messages, oldest first."""
        return sorted(self.messages.glob("date=*/hour=*"))

    def body_schema(self) -> dict[str, Any] | None:
        """Schema of the bodies, in Spark's JSON form. Raises LakeError."""
        schema: dict[str, Any] | None = maybe_read_json(self.schema)
        return schema

    def set_body_schema(self, schema: dict[str, Any]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        write_json(self.schema, schema)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the topic for writing. Raises LakeError if another process has the lock."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LakeError(
                    f"another process is archiving {self.name} to {self.lake}"
                ) from None
            yield


def _local_path(folder: str | Path) -> Path:
    """Raises LakeError for a URL, which would otherwise become a folder with the scheme's name."""
    if _URL.match(str(folder)):
        raise LakeError(
            f"a lake must be a local folder, not the URL {folder}: mount it and pass its path"
        )
    return Path(folder)


def topic_folder_name(topic: str) -> str:
    """`Orders` becomes `topic=%4Frders`."""
    return "topic=" + re.sub("[A-Z]", lambda match: f"%{ord(match[0]):02X}", topic)


def maybe_topic_name(folder: str) -> str | None:
    """The topic of a folder; None if the name is not that of a topic's folder."""
    topic = unquote(folder.removeprefix("topic="))
    is_its_folder = names.is_valid(topic) and topic_folder_name(topic) == folder
    return topic if is_its_folder else None


def _check_marker(path: Path) -> None:
    marker = maybe_read_json(path / MARKER_NAME)
    version = marker.get("penstock_lake") if isinstance(marker, dict) else None
    if not isinstance(version, int):
        raise LakeError(f"{path} is not a Penstock lake (no {MARKER_NAME})")
    if version > VERSION:
        raise LakeError(f"{path} is a lake of version {version}: upgrade Penstock to read it")


# Durable files.


def write_json(path: Path, content: Any) -> None:
    """Replace a file atomically and durably by JSON. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content, indent=1))
    fsync(new)
    new.replace(path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Call fsync on a file, or on a folder after files in it were created, renamed or removed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def maybe_read_json(path: Path) -> Any:
    """Read a JSON file; None if it does not exist. Raises LakeError if it is unreadable."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        raise LakeError(f"cannot read {path}: {failure}") from None


def remove_folder(folder: Path) -> None:
    """Remove a folder and its contents, if it exists."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
