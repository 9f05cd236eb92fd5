"""Retention of finished messages, and the other settings of the logs."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LogSettings", "Retention"]

# Retention deletes whole segments. So that few messages are kept longer than requested, a segment
# covers at most a quarter of the retention; but not less than the minimum, to limit the number of
# files.
_SEGMENT_SHARE = 4
_SEGMENT_BYTES_MIN = 1024 * 1024
_SEGMENT_TIME_MIN_NS = 60 * 1_000_000_000


class Retention(NamedTuple):
    """How long messages are kept after every channel has finished them: until one of the limits
    is exceeded. If no limit is set, they are deleted immediately."""

    time_ns: int | None = None
    size_bytes: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether finished messages are kept at all."""
        return self != NO_RETENTION

    def keeps(self, last_timestamp_ns: int, size_after: int, wall_ns: int) -> bool:
        """Whether a segment is kept. `size_after` is the size of the log without the segment."""
        if self.time_ns is None and self.size_bytes is None:
            return False
        is_young = self.time_ns is None or last_timestamp_ns + self.time_ns > wall_ns
        is_within = self.size_bytes is None or size_after < self.size_bytes
        return is_young and is_within

    def is_segment_complete(self, first_timestamp_ns: int, wall_ns: int) -> bool:
        """Whether a segment covers enough time for a new one to be started."""
        if self.time_ns is None:
            return False
        share_ns = max(self.time_ns // _SEGMENT_SHARE, _SEGMENT_TIME_MIN_NS)
        return first_timestamp_ns + share_ns <= wall_ns

    def limit_segment_bytes(self, max_bytes: int) -> int:
        """Maximum size of a segment: `max_bytes`, or less if retention by size is set, because
        only whole segments are deleted."""
        if self.size_bytes is None:
            return max_bytes
        return min(max_bytes, max(self.size_bytes // _SEGMENT_SHARE, _SEGMENT_BYTES_MIN))


NO_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of all topics of a data path. The defaults are those of nsqd."""

    max_bytes_per_file: int = 100 * 1024 * 1024
    retention_time_ns: int | None = None
    retention_bytes: int | None = None
    # Well below 1,024, the usual limit of open files per process.
    open_files_max: int = 256

    @property
    def retention(self) -> Retention:
        """Retention of topics that have none of their own."""
        return Retention(self.retention_time_ns, self.retention_bytes)
