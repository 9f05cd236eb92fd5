"""The fsyncs of many logs and journals, shared where they can be.

An fsync costs the disk a write of its own. So from some number of jobs on, the writing of all their
files is started, and then their file system is synced once. A few are better off with fsyncs, which
do not wait for what other programs have written.
"""

from collections.abc import Iterator, Sequence

from penstock.errors import StorageError
from penstock.log.files import storage_error
from penstock.log.sync import SyncJob, run_job
from penstock.log.volume import Volume

__all__ = ["MANY", "BulkSync", "Outcomes"]

MANY = 32
"""So many jobs share a sync."""

Outcomes = dict[SyncJob, StorageError | None]


class BulkSync:
    """Runs jobs. One thread uses it."""

    def __init__(self, volume: Volume | None, many: int = MANY) -> None:
        """`volume` is where the files are; those that are elsewhere are fsynced."""
        self._volume = volume
        self._many = many

    def run(self, jobs: Sequence[SyncJob]) -> Iterator[Outcomes]:
        """Runs the jobs, and yields how they ended; together those that ended together."""
        sharing: list[SyncJob] = []
        if self._volume is not None and len(jobs) >= self._many:
            sharing = [job for job in jobs if _is_on(job, self._volume.device)]
        # First those that do not share: after a shared sync that failed, no fsync proves anything.
        alone = set(jobs).difference(sharing)
        for job in jobs:
            if job in alone:
                yield {job: run_job(job)}
        if self._volume is not None and sharing:
            yield _run_together(sharing, self._volume)


def _is_on(job: SyncJob, device: int) -> bool:
    files = job.files
    return bool(files) and all(file.device == device for file in files)


def _run_together(jobs: Sequence[SyncJob], volume: Volume) -> Outcomes:
    outcomes: Outcomes = {job: _start(job) for job in jobs}
    try:
        volume.sync()
    except OSError as error:
        # Whose loss it was is not known, so it was everybody's.
        return {job: storage_error("sync", job.path, error) for job in jobs}
    return outcomes


def _start(job: SyncJob) -> StorageError | None:
    try:
        for file in job.files:
            file.start_sync()
    except OSError as error:
        return storage_error("sync", job.path, error)
    return None
