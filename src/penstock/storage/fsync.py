"""Fsyncs of logs and cursor journals, and group commit.

An fsync has three steps. `begin_sync` and `end_sync` of the log or journal run in the thread of its
owner; the slow step between them, `FsyncJob.run`, may run in any thread.

`GroupCommit` runs the slow step in worker threads, so that the event loop never waits for a disk. A
log has at most one fsync in progress. Requests that arrive meanwhile share the next one: the slower
the disk, the more messages each fsync covers. Different logs are fsynced concurrently, because a
file system commits concurrent fsyncs together. A failed fsync is retried every second until it
succeeds, also without further requests.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from penstock.common.errors import InternalError, StorageError
from penstock.storage.files import Files, Handle, storage_error
from penstock.storage.segment import Segment

__all__ = [
    "RETRY_SECONDS",
    "RUNNING_MAX",
    "CallLater",
    "FsyncCallback",
    "FsyncJob",
    "FsyncResult",
    "FsyncTarget",
    "GroupCommit",
    "JournalFsync",
    "LogFsync",
    "fsync_in_parallel",
    "fsync_now",
    "run_job",
]

RETRY_SECONDS = 1.0

# On all disks that were tried, more concurrent fsyncs than this gave no higher rate.
_THREADS_MAX = 16

# Maximum logs queued or running in the threads: more than there are threads, so that no thread
# waits for the owner. The files of these logs stay open.
RUNNING_MAX = 2 * _THREADS_MAX

# Maximum targets of one step of `fsync_in_parallel`. Their files stay open during the step.
_PARALLEL_MAX = 64

FsyncCallback = Callable[[StorageError | None], None]
CallLater = Callable[[float, Callable[[], None]], object]


class FsyncJob(Protocol):
    """The slow step of an fsync."""

    @property
    def path(self) -> str:
        """The file or folder to name in an error."""

    def run(self) -> None:
        """Fsync, in any thread. Raises OSError or StorageError."""


class FsyncTarget(Protocol):
    """A topic's log, or the journal of its cursors."""

    def begin_sync(self) -> FsyncJob:
        """Start an fsync of everything written so far; called in the owner's thread."""

    def end_sync(self, job: FsyncJob, error: StorageError | None) -> None:
        """Apply the result of an fsync; called in the owner's thread."""

    @property
    def needs_sync(self) -> bool:
        """Whether anything was written that no fsync has covered."""

    @property
    def needs_retry(self) -> bool:
        """Whether the last fsync failed."""


# Jobs


class LogFsync:
    """Fsyncs the unsynced segments of a log. The files stay open until `release`."""

    def __init__(
        self,
        files: Files,
        path: str,
        segments: list[Segment],
        folders: list[str],
        *,
        new_file_count: int,
        next_seq: int,
        is_rewrite: bool,
    ) -> None:
        self.path = path
        self.parts: list[tuple[Segment, int]] = []
        """Each segment with the end of the part that the fsync covers."""
        self._pinned: list[Segment] = []
        self.new_file_count = new_file_count
        self.next_seq = next_seq
        self._files = files
        self._folders = folders
        self._is_rewrite = is_rewrite
        for segment in segments:
            self._pin(segment)

    def run(self) -> None:
        """Fsync the segments, then the folders with their names."""
        for segment, end in self.parts:
            if self._is_rewrite:
                segment.rewrite_unsynced(end)
            segment.handle.open().sync()
        for folder in self._folders:
            self._files.sync_folder(folder)

    def release(self) -> None:
        """Unpin the files, so that the pool may close them. Idempotent."""
        while self._pinned:
            self._pinned.pop().handle.unpin()

    def _pin(self, segment: Segment) -> None:
        try:
            segment.handle.pin()
        except OSError as error:
            self.release()
            raise storage_error("open", segment.handle.path, error) from error
        self._pinned.append(segment)
        self.parts.append((segment, segment.end))


class JournalFsync:
    """Fsyncs a cursor journal. The file stays open until `release`."""

    def __init__(
        self,
        files: Files,
        folder: str,
        handle: Handle,
        *,
        new_file_count: int,
        stale: tuple[str, ...],
    ) -> None:
        self.path = handle.path
        self.new_file_count = new_file_count
        self.stale = stale
        """Older journal files, to be removed after a successful fsync."""
        self._files = files
        self._folder = folder
        self._handle = handle
        try:
            handle.pin()
        except OSError as error:
            raise storage_error("open", handle.path, error) from error
        self._is_pinned = True

    def run(self) -> None:
        """Fsync the journal and, if the file is new, its folder and the folder of the topics."""
        self._handle.open().sync()
        if self.new_file_count:
            self._files.sync_folder(self._folder)
            self._files.sync_folder(self._folder.rpartition("/")[0])

    def release(self) -> None:
        """Unpin the file, so that the pool may close it. Idempotent."""
        if self._is_pinned:
            self._is_pinned = False
            self._handle.unpin()


def run_job(job: FsyncJob) -> StorageError | None:
    """Run a job and return its error, if any."""
    try:
        job.run()
    except OSError as error:
        return storage_error("sync", job.path, error)
    except StorageError as error:
        return error
    return None


# Blocking fsyncs, for startup and shutdown


def fsync_now(target: FsyncTarget) -> None:
    """Fsync and wait for it. Raises StorageError."""
    job = target.begin_sync()
    error = run_job(job)
    target.end_sync(job, error)
    if error is not None:
        raise error


def fsync_in_parallel(targets: Sequence[FsyncTarget]) -> None:
    """Fsync many targets and wait for all of them. Errors are ignored: a target whose fsync fails
    still needs one, and `close` retries it and raises the error."""
    with ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="sync") as threads:
        for at in range(0, len(targets), _PARALLEL_MAX):
            begun: list[tuple[FsyncTarget, FsyncJob]] = []
            for target in targets[at : at + _PARALLEL_MAX]:
                with suppress(Exception):
                    begun.append((target, target.begin_sync()))
            futures = [threads.submit(run_job, job) for _, job in begun]
            for (target, job), future in zip(begun, futures, strict=True):
                with suppress(Exception):
                    target.end_sync(job, future.result())


# Group commit


class FsyncResult(NamedTuple):
    """Result of one fsync. An error that is not a StorageError is a bug."""

    target: FsyncTarget
    job: FsyncJob
    error: Exception | None
    seconds: float


class GroupCommit:
    """Fsyncs logs and cursor journals in worker threads. Close it before closing its targets.

    All state belongs to the owner's thread. A worker takes a job from one queue, puts the result
    into another, and touches nothing else.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        *,
        sync_every: int = sys.maxsize,
        observe_seconds: Callable[[float], None] = lambda _seconds: None,
        report_bug: Callable[[str, Exception], None] = lambda _where, _error: None,
    ) -> None:
        """`call_soon` can be called from any thread and runs a function in the owner's thread, as
        `loop.call_soon_threadsafe` does; `call_later` is called in the owner's thread.
        `sync_every` is the number of unsynced messages at which the publisher requests an fsync.
        `report_bug` is called with unexpected exceptions; each fails only its own request."""
        self.sync_every = sync_every
        self._call_soon = call_soon
        self._call_later = call_later
        self._observe_seconds = observe_seconds
        self._report_bug = report_bug
        self._running: dict[FsyncTarget, list[FsyncCallback]] = {}
        # Not running, in the order of their requests.
        self._ready: dict[FsyncTarget, list[FsyncCallback]] = {}
        # Running, and requested again meanwhile.
        self._again: dict[FsyncTarget, list[FsyncCallback]] = {}
        self._failed: set[FsyncTarget] = set()
        self._jobs: queue.SimpleQueue[tuple[FsyncTarget, FsyncJob] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[FsyncResult] = queue.SimpleQueue()
        self._is_applying_soon = False
        self._is_retrying_later = False
        self._is_closing = False
        self._unended: list[FsyncResult] = []
        self._threads: list[threading.Thread] = []
        self._start_thread()

    def request(self, target: FsyncTarget, done: FsyncCallback | None = None) -> None:
        """Request an fsync of everything written so far. `done` runs later in the owner's thread,
        with the error, or with None if the fsync succeeded."""
        dones = (self._again if target in self._running else self._ready).setdefault(target, [])
        if done is not None:
            dones.append(done)
        self._start_ready()

    def request_in_background(self, target: FsyncTarget) -> bool:
        """Request an fsync that no reply waits for; to be called at `sync_every` unsynced messages.
        If `sync_every` is 1, replies must wait for the fsync: returns False and requests none."""
        if self.sync_every == 1:
            return False
        self.request(target)
        return True

    def request_if_unsynced(self, *targets: FsyncTarget) -> None:
        """Request an fsync of each target that needs one; to be called every sync timeout."""
        for target in targets:
            if target.needs_sync:
                self.request(target)

    def close(self) -> None:
        """Complete all requests and end the threads."""
        self._is_closing = True
        self._apply_unended()
        while self._running:
            self._apply(self._results.get())
            self._start_ready()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    # In the owner's thread

    def _start_ready(self) -> None:
        while self._ready and len(self._running) < RUNNING_MAX:
            target = next(iter(self._ready))
            dones = self._ready.pop(target)
            try:
                job = target.begin_sync()
            except Exception as error:  # noqa: BLE001 (passed to the requests; a bug is reported)
                self._fail(dones, self._storage_error("beginning a sync", error))
            else:
                self._running[target] = dones
                self._submit(target, job)

    def _submit(self, target: FsyncTarget, job: FsyncJob) -> None:
        self._jobs.put((target, job))
        if len(self._threads) < min(len(self._running), _THREADS_MAX):
            # If the system allows no more threads, the existing ones take the job.
            with suppress(RuntimeError):
                self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="group-commit", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _fail(self, dones: list[FsyncCallback], error: StorageError) -> None:
        # Later, because `done` may make another request.
        for done in dones:
            self._call_soon(partial(self._call_done, done, error))

    def _apply_results(self) -> None:
        self._is_applying_soon = False
        while not self._results.empty():
            self._apply(self._results.get())
        self._start_ready()

    def _apply(self, result: FsyncResult) -> None:
        """Pass the result of an fsync to its target, then to the requests that wait for it."""
        target, dones = result.target, self._running[result.target]
        self._observe_seconds(result.seconds)
        error = None if result.error is None else self._storage_error("syncing", result.error)
        try:
            target.end_sync(result.job, error)
        except Exception as bug:  # noqa: BLE001 (reported; counts as a failed fsync)
            error = self._storage_error("ending a sync", bug)
            self._end_later(result._replace(error=error))
        else:
            self._end(target)
        for done in dones:
            self._call_done(done, error)

    def _end(self, target: FsyncTarget) -> None:
        del self._running[target]
        if target in self._again:
            self._ready[target] = self._again.pop(target)
        if target.needs_retry:
            self._retry_later(target)

    def _end_later(self, result: FsyncResult) -> None:
        """After `end_sync` has raised: call it again later, with the fsync reported as failed."""
        if self._is_closing:
            self._end(result.target)
        else:
            self._running[result.target] = []
            self._unended.append(result)
            self._call_later(RETRY_SECONDS, self._apply_unended)

    def _apply_unended(self) -> None:
        unended, self._unended = self._unended, []
        for result in unended:
            self._apply(result)
        self._start_ready()

    def _call_done(self, done: FsyncCallback, error: StorageError | None) -> None:
        try:
            done(error)
        except Exception as bug:  # noqa: BLE001 (reported; the other requests are answered)
            self._report_bug("answering after a sync", bug)

    def _storage_error(self, where: str, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        self._report_bug(where, error)
        return InternalError(where, error)

    def _retry_later(self, target: FsyncTarget) -> None:
        self._failed.add(target)
        if not self._is_retrying_later:
            self._is_retrying_later = True
            self._call_later(RETRY_SECONDS, self._retry_failed)

    def _retry_failed(self) -> None:
        self._is_retrying_later = False
        failed, self._failed = self._failed, set()
        for target in failed:
            if target.needs_retry:
                self.request(target)

    # In a worker thread

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            self._run(*item)

    def _run(self, target: FsyncTarget, job: FsyncJob) -> None:
        started_at = time.monotonic()
        error: Exception | None
        try:
            error = run_job(job)
        except Exception as bug:  # noqa: BLE001 (passed to the owner's thread, and reported there)
            error = bug
        self._results.put(FsyncResult(target, job, error, time.monotonic() - started_at))
        # The owner clears this flag before it takes the results, so no result is missed.
        if not self._is_applying_soon:
            self._is_applying_soon = True
            self._call_soon(self._apply_results)
