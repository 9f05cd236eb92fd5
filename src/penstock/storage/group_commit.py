"""Group commit: fsyncs run in worker threads, so that the owner's thread never waits for a disk.

A log has at most one fsync under way. Requests for it that arrive meanwhile share the next one, so
the slower the disk is, the more messages each fsync covers. Different logs are fsynced at the same
time, because a file system commits concurrent fsyncs together.

All state belongs to the owner's thread: a worker takes a job from one queue, puts its result into
another, and touches nothing else.

A failed fsync is retried every second until it succeeds, also without further requests.
"""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from penstock.common.errors import InternalError, StorageError
from penstock.storage.sync import Syncable, SyncJob, run_job

__all__ = ["RETRY_SECONDS", "RUNNING_MAX", "CallLater", "Done", "GroupCommit", "SyncResult"]

RETRY_SECONDS = 1.0

# On all disks that were tried, more concurrent fsyncs than this gave no higher rate.
_THREADS_MAX = 16

# Maximum logs queued or running in the threads: more than there are threads, so that no thread
# waits for the owner. The files of these logs stay open.
RUNNING_MAX = 2 * _THREADS_MAX

Done = Callable[[StorageError | None], None]
CallLater = Callable[[float, Callable[[], None]], object]


class SyncResult(NamedTuple):
    """Result of one fsync. An error that is not a StorageError is a bug."""

    log: Syncable
    job: SyncJob
    error: Exception | None
    seconds: float


class GroupCommit:
    """Syncs logs and cursors for their owner. Close it before closing what it syncs."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        *,
        observe_seconds: Callable[[float], None] = lambda _seconds: None,
        report_bug: Callable[[str, Exception], None] = lambda _where, _error: None,
    ) -> None:
        """`call_soon` can be called from any thread and runs a function in the owner's thread, as
        `loop.call_soon_threadsafe` does; `call_later` is called in the owner's thread.
        `report_bug` is called with unexpected exceptions; each fails only its own request."""
        self._call_soon = call_soon
        self._call_later = call_later
        self._observe_seconds = observe_seconds
        self._report_bug = report_bug
        self._running: dict[Syncable, list[Done]] = {}
        self._ready: dict[Syncable, list[Done]] = {}  # not running; in the order of their requests
        self._again: dict[Syncable, list[Done]] = {}  # running, and requested once more
        self._failed: set[Syncable] = set()
        self._jobs: queue.SimpleQueue[tuple[Syncable, SyncJob] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[SyncResult] = queue.SimpleQueue()
        self._is_applying_soon = False
        self._is_retrying_later = False
        self._is_closing = False
        self._unended: list[SyncResult] = []
        self._threads: list[threading.Thread] = []
        self._start_thread()

    def request(self, log: Syncable, done: Done | None = None) -> None:
        """Has a log, or a topic's cursors, synced. `done` then runs in the owner's thread: with
        None if everything written before this call is safe, else with the error."""
        dones = (self._again if log in self._running else self._ready).setdefault(log, [])
        if done is not None:
            dones.append(done)
        self._start_ready()

    def close(self) -> None:
        """Completes all requests and ends the threads."""
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
            log = next(iter(self._ready))
            dones = self._ready.pop(log)
            try:
                job = log.begin_sync()
            except Exception as error:  # noqa: BLE001 (handed to the requests; a bug is reported)
                self._fail(dones, self._storage_error("beginning a sync", error))
            else:
                self._running[log] = dones
                self._submit(log, job)

    def _submit(self, log: Syncable, job: SyncJob) -> None:
        self._jobs.put((log, job))
        if len(self._threads) < min(len(self._running), _THREADS_MAX):
            # If the system allows no more threads, the existing ones take the job.
            with suppress(RuntimeError):
                self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="group-commit", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _fail(self, dones: list[Done], error: StorageError) -> None:
        # Later, because `done` may make another request.
        for done in dones:
            self._call_soon(partial(self._call_done, done, error))

    def _apply_results(self) -> None:
        self._is_applying_soon = False
        while not self._results.empty():
            self._apply(self._results.get())
        self._start_ready()

    def _apply(self, result: SyncResult) -> None:
        """Passes the result of an fsync to the log, and then to the requests that wait for it."""
        log, dones = result.log, self._running[result.log]
        self._observe_seconds(result.seconds)
        error = None if result.error is None else self._storage_error("syncing", result.error)
        try:
            log.end_sync(result.job, error)
        except Exception as bug:  # noqa: BLE001 (reported; counts as a failed fsync)
            error = self._storage_error("ending a sync", bug)
            self._end_later(result._replace(error=error))
        else:
            self._end(log)
        for done in dones:
            self._call_done(done, error)

    def _end(self, log: Syncable) -> None:
        del self._running[log]
        if log in self._again:
            self._ready[log] = self._again.pop(log)
        if log.needs_retry:
            self._retry_later(log)

    def _end_later(self, result: SyncResult) -> None:
        """After `end_sync` has raised: calls it again later, with the fsync reported as failed."""
        if self._is_closing:
            self._end(result.log)
        else:
            self._running[result.log] = []
            self._unended.append(result)
            self._call_later(RETRY_SECONDS, self._apply_unended)

    def _apply_unended(self) -> None:
        unended, self._unended = self._unended, []
        for result in unended:
            self._apply(result)
        self._start_ready()

    def _call_done(self, done: Done, error: StorageError | None) -> None:
        try:
            done(error)
        except Exception as bug:  # noqa: BLE001 (reported; the other requests are answered)
            self._report_bug("answering after a sync", bug)

    def _storage_error(self, where: str, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        self._report_bug(where, error)
        return InternalError(where, error)

    def _retry_later(self, log: Syncable) -> None:
        self._failed.add(log)
        if not self._is_retrying_later:
            self._is_retrying_later = True
            self._call_later(RETRY_SECONDS, self._retry_failed)

    def _retry_failed(self) -> None:
        self._is_retrying_later = False
        failed, self._failed = self._failed, set()
        for log in failed:
            if log.needs_retry:
                self.request(log)

    # In a worker's thread

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            self._run(*item)

    def _run(self, log: Syncable, job: SyncJob) -> None:
        started_at = time.monotonic()
        error: Exception | None
        try:
            error = run_job(job)
        except Exception as bug:  # noqa: BLE001 (handed to the owner's thread, and reported there)
            error = bug
        self._results.put(SyncResult(log, job, error, time.monotonic() - started_at))
        # The owner clears this flag before it takes the results, so no result is missed.
        if not self._is_applying_soon:
            self._is_applying_soon = True
            self._call_soon(self._apply_results)
