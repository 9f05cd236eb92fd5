"""What a user can choose about the logs of a data path."""

from dataclasses import dataclass

__all__ = ["LogSettings"]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The choices that hold for every topic of a data path; the defaults are nsqd's.

    A consumed segment is deleted once one of the two retentions that are set no longer asks for
    it; with neither set, at once.
    """

    max_bytes_per_file: int = 100 * 1024 * 1024
    sync_every: int = 2500
    sync_timeout_ns: int = 2_000_000_000
    retention_time_ns: int | None = None
    retention_bytes: int | None = None
    # Well below the 1,024 descriptors a process usually gets: the rest is for connections.
    open_files_max: int = 256
