"""Writes data paths in the format of NSQ's nsqd."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OldMessage", "meta", "record", "write_metadata", "write_queue"]

PUBLISHED_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class OldMessage:
    """A message, published in the millisecond of its number."""

    number: int
    attempts: int = 0
    body: bytes = b""

    @property
    def timestamp_ns(self) -> int:
        return PUBLISHED_NS + self.number * 1_000_000

    @property
    def content(self) -> bytes:
        return self.body or b"message %d" % self.number


def record(message: OldMessage) -> bytes:
    """[size][timestamp][attempts][id][body]"""
    header = struct.pack(">qH", message.timestamp_ns, message.attempts)
    data = header + b"%016x" % (0xC0FFEE << 22 | message.number) + message.content
    return struct.pack(">i", len(data)) + data


def meta(depth: int, read: tuple[int, int], write: tuple[int, int]) -> str:
    return f"{depth}\n{read[0]},{read[1]}\n{write[0]},{write[1]}\n"


def write_queue(
    folder: Path, name: str, messages: Sequence[OldMessage], *, per_file: int = 0, read: int = 0
) -> None:
    """Write a queue whose first `read` messages were consumed.

    A new file starts after each `per_file` messages; completely consumed files are deleted.
    """
    per_file = per_file or len(messages) + 1
    first_file = read // per_file
    for number in range(first_file, len(messages) // per_file + 1):
        part = messages[number * per_file : (number + 1) * per_file]
        (folder / f"{name}.diskqueue.{number:06}.dat").write_bytes(b"".join(map(record, part)))
    skipped = messages[first_file * per_file : read]
    last_file = len(messages) // per_file
    text = meta(
        len(messages) - read,
        (first_file, sum(len(record(each)) for each in skipped)),
        (last_file, sum(len(record(each)) for each in messages[last_file * per_file :])),
    )
    (folder / f"{name}.diskqueue.meta.dat").write_text(text)


def write_metadata(folder: Path, topics: dict[str, Sequence[str]], *, paused: str = "") -> None:
    """Write `nsqd.dat`; `paused` names a topic or a `topic:channel`."""
    entries = [
        {
            "name": topic,
            "paused": paused == topic,
            "channels": [
                {"name": channel, "paused": paused == f"{topic}:{channel}"} for channel in channels
            ]
            or None,
        }
        for topic, channels in topics.items()
    ]
    content = {"topics": entries or None, "version": "1.3.0"}
    (folder / "nsqd.dat").write_text(json.dumps(content))
