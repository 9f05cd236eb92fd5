"""One topic's log. (Signatures first; the inside is being written.)"""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["READ_BYTES", "Run", "SegmentInfo", "TopicLog"]

READ_BYTES = 256 * 1024


class Run(NamedTuple):
    """A run of consecutive messages as read back."""

    first_seq: int
    frames: list[bytes]
    due_ns: int
    """Wall time before which they must not be delivered; 0 is at once."""


class SegmentInfo(NamedTuple):
    """What `TopicLog.segments` tells of one segment."""

    first_seq: int
    next_seq: int
    byte_size: int
    first_timestamp_ns: int
    last_timestamp_ns: int


class TopicLog:
    """The messages of one topic. One thread owns it; sequence numbers are "next to read"."""

    next_seq: int
    synced_seq: int
    error: str | None

    @property
    def first_seq(self) -> int:
        """The oldest message kept; `next_seq` when there is none."""
        raise NotImplementedError

    @property
    def byte_size(self) -> int:
        raise NotImplementedError

    @property
    def unsynced(self) -> int:
        """How many messages were appended since a sync was last asked for."""
        raise NotImplementedError

    @property
    def segments(self) -> list[SegmentInfo]:
        raise NotImplementedError

    def append(self, frames: list[bytes], timestamp_ns: int, due_ns: int = 0) -> None:
        """Stores one batch with one write, or raises StorageError and has stored nothing."""
        raise NotImplementedError

    def read(self, seq: int, max_bytes: int = READ_BYTES) -> list[Run]:
        """What is stored from `seq` on, about `max_bytes` of it but at least one batch.

        Consecutive batches without a due time come as one run. Numbers that are not stored are
        stepped over; [] when there is nothing from `seq` on.
        """
        raise NotImplementedError

    def gaps(self, first: int, next: int) -> list[tuple[int, int]]:
        """The parts of `[first, next)` that are not stored (trimmed, damaged, skipped after a power
        loss). A channel that is created or reset should finish them, or they count as depth;
        `DataPath.open_topic` has done so for all channels there are."""
        raise NotImplementedError

    def seq_at_time(self, timestamp_ns: int) -> int:
        """The first message stored at or after this time; `next_seq` when there is none."""
        raise NotImplementedError

    def trim(self, is_needed: Callable[[int, int], bool], wall_ns: int) -> int:
        """Deletes what neither `is_needed(first, next)` nor retention asks for; returns bytes."""
        raise NotImplementedError

    def sync(self) -> None:
        """Fsyncs in the calling thread. `GroupCommit` does the same without blocking."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
