"""Fsyncs, in one thread of their own, so that their owner never waits for a disk.

All state is the owner's: the thread takes jobs from one queue and puts outcomes into another, and
that is all it touches. Requests that come in while a round of fsyncs is under way share the next
round, so the slower the disk is, the more messages each fsync covers.

The files of what is being synced stay open, so a round takes so many logs and no more: those that
are left come first in the next.

What could not be synced is tried again every second, asked for or not, until it has healed.
"""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from penstock.errors import StorageError
from penstock.log.sync import Syncable, SyncJob, run_job

__all__ = ["RETRY_SECONDS", "ROUND_LOGS_MAX", "Done", "GroupCommit", "Watch"]

RETRY_SECONDS = 1.0

ROUND_LOGS_MAX = 64

Done = Callable[[StorageError | None], None]
Watch = Callable[[float], None]


class GroupCommit:
    """Syncs logs and cursors for their owner. Close it before closing what it syncs."""

    def __init__(
        self,
        schedule: Callable[[Callable[[], None]], object],
        watch: Watch = lambda _seconds: None,
    ) -> None:
        """`schedule` has a function run in the owner's thread, as `loop.call_soon_threadsafe`.
        `watch` is told there how long each sync took."""
        self._schedule = schedule
        self._watch = watch
        self._waiting: dict[Syncable, list[Done]] = {}
        self._running: dict[Syncable, list[Done]] = {}
        self._failed: set[Syncable] = set()
        self._jobs: queue.SimpleQueue[tuple[Syncable, SyncJob] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[Syncable, SyncJob, StorageError | None, float]]
        self._outcomes = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="group-commit", daemon=True)
        self._thread.start()

    def request(self, log: Syncable, done: Done | None = None) -> None:
        """Has a log, or a topic's cursors, synced. `done` then runs in the owner's thread: with
        None if all that was written before this call is safe, else with what went wrong."""
        dones = self._waiting.setdefault(log, [])
        if done is not None:
            dones.append(done)
        if not self._running:
            self._start_round()

    def close(self) -> None:
        """Finishes what is under way and what is waiting, and ends the thread."""
        while self._running:
            self._conclude(*self._outcomes.get())
        self._jobs.put(None)
        self._thread.join()

    # In the owner's thread

    def _start_round(self) -> None:
        while self._waiting and len(self._running) < ROUND_LOGS_MAX:
            log = next(iter(self._waiting))
            dones = self._waiting.pop(log)
            try:
                job = log.begin_sync()
            except StorageError as error:
                self._fail(dones, error)
            else:
                self._running[log] = dones
                self._jobs.put((log, job))

    def _fail(self, dones: list[Done], error: StorageError) -> None:
        # Not at once: what `done` does may well be another request.
        for done in dones:
            self._schedule(partial(done, error))

    def _take_outcomes(self) -> None:
        while not self._outcomes.empty():
            self._conclude(*self._outcomes.get())

    def _conclude(
        self, log: Syncable, job: SyncJob, error: StorageError | None, seconds: float
    ) -> None:
        self._watch(seconds)
        log.end_sync(job, error)
        if log.needs_retry:
            self._failed.add(log)
        for done in self._running.pop(log):
            done(error)
        if not self._running:
            self._start_round()

    def _retry_failed(self) -> None:
        failed, self._failed = self._failed, set()
        for log in failed:
            if log.needs_retry:
                self.request(log)

    # In the thread

    def _work(self) -> None:
        retry_at: float | None = None
        while True:
            timeout = None if retry_at is None else max(0.0, retry_at - time.monotonic())
            try:
                item = self._jobs.get(timeout=timeout)
            except queue.Empty:
                retry_at = None
                self._schedule(self._retry_failed)
                continue
            if item is None:
                return
            log, job = item
            started_at = time.monotonic()
            error = run_job(job)
            seconds = time.monotonic() - started_at
            if error is not None and retry_at is None:
                retry_at = time.monotonic() + RETRY_SECONDS
            self._outcomes.put((log, job, error, seconds))
            self._schedule(self._take_outcomes)
