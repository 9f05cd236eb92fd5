"""Fsyncs, in one thread of their own, so that their owner never waits for a disk.

All state is the owner's: the thread takes jobs from one queue and puts outcomes into another, and
that is all it touches. Requests that come in while a round of fsyncs is under way share the next
round, so the slower the disk is, the more messages each fsync covers. The logs of a round that is
large share one sync of their file system (`BulkSync`).

What could not be synced is tried again every second, asked for or not, until it has healed.
"""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from penstock.errors import StorageError
from penstock.log.bulk_sync import BulkSync, Outcomes
from penstock.log.sync import Syncable, SyncJob
from penstock.log.volume import Volume

__all__ = ["RETRY_SECONDS", "Done", "GroupCommit", "Watch"]

RETRY_SECONDS = 1.0

Done = Callable[[StorageError | None], None]
Watch = Callable[[float], None]


class GroupCommit:
    """Syncs logs and cursors for their owner. Close it before closing what it syncs."""

    def __init__(
        self,
        schedule: Callable[[Callable[[], None]], object],
        watch: Watch = lambda _seconds: None,
        volume: Volume | None = None,
    ) -> None:
        """`schedule` has a function run in the owner's thread, as `loop.call_soon_threadsafe`.
        `watch` is told there how long each sync took. `volume` is what the logs are on."""
        self._schedule = schedule
        self._watch = watch
        self._waiting: dict[Syncable, list[Done]] = {}
        self._running: dict[SyncJob, tuple[Syncable, list[Done]]] = {}
        self._failed: set[Syncable] = set()
        self._bulk = BulkSync(volume)
        self._rounds: queue.SimpleQueue[list[SyncJob] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[Outcomes, float]] = queue.SimpleQueue()
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
        self._rounds.put(None)
        self._thread.join()

    # In the owner's thread

    def _start_round(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for log, dones in waiting.items():
            try:
                job = log.begin_sync()
            except StorageError as error:
                self._fail(dones, error)
            else:
                self._running[job] = log, dones
        if self._running:
            self._rounds.put([*self._running])

    def _fail(self, dones: list[Done], error: StorageError) -> None:
        # Not at once: what `done` does may well be another request.
        for done in dones:
            self._schedule(partial(done, error))

    def _take_outcomes(self) -> None:
        while not self._outcomes.empty():
            self._conclude(*self._outcomes.get())

    def _conclude(self, outcomes: Outcomes, seconds: float) -> None:
        self._watch(seconds)
        for job, error in outcomes.items():
            log, dones = self._running.pop(job)
            log.end_sync(job, error)
            if log.needs_retry:
                self._failed.add(log)
            for done in dones:
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
                jobs = self._rounds.get(timeout=timeout)
            except queue.Empty:
                retry_at = None
                self._schedule(self._retry_failed)
                continue
            if jobs is None:
                return
            if not self._run_round(jobs) and retry_at is None:
                retry_at = time.monotonic() + RETRY_SECONDS

    def _run_round(self, jobs: list[SyncJob]) -> bool:
        """Whether all went well."""
        is_well = True
        started_at = time.monotonic()
        for outcomes in self._bulk.run(jobs):
            ended_at = time.monotonic()
            self._outcomes.put((outcomes, ended_at - started_at))
            self._schedule(self._take_outcomes)
            is_well = is_well and not any(outcomes.values())
            started_at = ended_at
        return is_well
