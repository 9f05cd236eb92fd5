"""What a user can choose about the logs of a data path."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LogSettings", "Retention"]


class Retention(NamedTuple):
    """How long what every channel has finished is kept: until one of the limits that are set is
    exceeded. With neither set, it goes at once."""

    time_ns: int | None = None
    size_bytes: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether anything is kept at all."""
        return self != NO_RETENTION


NO_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The choices that hold for every topic of a data path; the defaults are nsqd's."""

    max_bytes_per_file: int = 100 * 1024 * 1024
    retention_time_ns: int | None = None
    retention_bytes: int | None = None
    # Well below the 1,024 descriptors that a process has at least.
    open_files_max: int = 256

    @property
    def retention(self) -> Retention:
        """What holds for a topic that has no retention of its own."""
        return Retention(self.retention_time_ns, self.retention_bytes)
