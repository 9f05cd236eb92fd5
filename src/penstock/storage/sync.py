"""What has to be synced, cut in three so that only the slow part leaves the owner's thread."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from penstock.common.errors import StorageError
from penstock.storage.files import storage_error

__all__ = ["SyncJob", "Syncable", "run_job", "run_sync", "try_syncs"]

# A file system puts the fsyncs that it is given at the same time together. Each of these keeps its
# files open meanwhile, so there is a limit to how many that can be.
_SYNCS_AT_ONCE = 64
_THREADS = 16


class SyncJob(Protocol):
    """The slow part."""

    @property
    def path(self) -> str:
        """What is synced, for the error's text."""

    def run(self) -> None:
        """Fsyncs, in any thread; raises OSError or StorageError."""


class Syncable(Protocol):
    """What can be synced: a log, or the journal of its cursors."""

    def begin_sync(self) -> SyncJob:
        """Takes down, in the owner's thread, what there is to sync now."""

    def end_sync(self, job: SyncJob, error: StorageError | None) -> None:
        """Draws, in the owner's thread, the conclusions from how the job ended."""

    @property
    def needs_sync(self) -> bool:
        """Whether there is anything that a sync would make safe."""

    @property
    def needs_retry(self) -> bool:
        """Whether a sync failed and what it was to cover is still there to be made safe."""


def run_job(job: SyncJob) -> StorageError | None:
    """Runs a job; returns what went wrong."""
    try:
        job.run()
    except OSError as error:
        return storage_error("sync", job.path, error)
    except StorageError as error:
        return error
    return None


def run_sync(target: Syncable) -> None:
    """Syncs here and now; raises StorageError if it cannot."""
    job = target.begin_sync()
    error = run_job(job)
    target.end_sync(job, error)
    if error is not None:
        raise error


def try_syncs(targets: Sequence[Syncable]) -> None:
    """Fsyncs all targets, several at a time, and waits for the results. A target whose fsync fails
    still needs one: closing it syncs once more, and raises."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sync") as threads:
        for at in range(0, len(targets), _SYNCS_AT_ONCE):
            begun: list[tuple[Syncable, SyncJob]] = []
            for target in targets[at : at + _SYNCS_AT_ONCE]:
                with suppress(Exception):
                    begun.append((target, target.begin_sync()))
            futures = [threads.submit(run_job, job) for _, job in begun]
            for (target, job), future in zip(begun, futures, strict=True):
                with suppress(Exception):
                    target.end_sync(job, future.result())
