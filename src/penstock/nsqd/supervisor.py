"""The parent of the shards: starts them, forwards signals, restarts dead ones, checks heartbeats.

It holds no message and serves no client. It sleeps until a signal arrives; SIGALRM is its only
timer. Without an event loop and threads it is safe to fork. A restarted shard runs the code that
was loaded at the first start, even if another version has been installed since.

The exit of a shard decides what follows:

- exit code 0: it has stopped on request, or has been drained; it stays down;
- any other exit before it first served: the configuration or the data is at fault; all shards stop;
- any other exit later: it is restarted, after a delay that grows with each crash.

A shard that misses UNRESPONSIVE_BEATS heartbeats is logged as unresponsive, and the other shards
show the number of such shards in their metrics. It is not killed: it may be suspended on purpose,
for a backup or by a debugger, and if it waits for a slow disk, a restart would not help.

A stop is bounded. Shards are first resumed (SIGCONT), so that a suspended one can stop cleanly. A
shard that misses STOP_BEATS heartbeats during the stop is killed, and so is one that still runs
shortly after the third signal. A kill loses no acknowledged message, since those are written; the
next start recovers as after any crash. The supervisor ends with its last shard; if the supervisor
is killed, its shards stop.
"""

import gc
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.common.clock import SECOND_NS, SystemClock
from penstock.common.errors import StorageError
from penstock.common.logs import Logger
from penstock.nsqd.shard_process import (
    FORWARDED,
    HEARTBEAT_SECONDS,
    become_shard,
    unresponsive_count,
)
from penstock.nsqd.shards import Shard

__all__ = ["supervise"]

# Initial and maximum delay before a crashed shard is restarted.
RESTART_DELAY_SECONDS = (0.25, 30.0)

# A shard that has run for this long is restarted with the initial delay again.
STEADY_SECONDS = 60.0

# The first signal stops shards cleanly or drains them; at the third, at the latest, they exit at
# once. All may arrive within a millisecond, so shards get some time before they are killed.
_LAST_STOP = 3
LAST_STOP_SECONDS = 2.0

# Missed heartbeats after which a shard is logged as unresponsive and, during a stop, killed. They
# are counted, not timed: a supervisor that was itself suspended counts only one.
# STOP_BEATS allows for a stop that blocks the event loop while it writes, and is less than the 90 s
# of the systemd unit.
UNRESPONSIVE_BEATS = 10
STOP_BEATS = 60

_SIGNALS = (*FORWARDED, signal.SIGCHLD, signal.SIGALRM)


def supervise(shards: Sequence[Shard], log: Logger) -> int:
    """Runs the shards until all have ended; returns the exit code. Raises StorageError."""
    for shard in shards:
        _make_folder(shard)
    # If the parent process ignores SIGCHLD, so would we, and could not wait for children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    gc.freeze()  # keeps garbage collections in shards from copying shared pages
    return _Supervisor([_ShardWorker(shard) for shard in shards], log).run()


@dataclass(slots=True)
class _ShardWorker:
    """A shard and its current process."""

    shard: Shard
    pid: int = 0
    link: socket.socket | None = None
    started_ns: int = 0
    restart_ns: int = 0  # time of the next start; 0 for none
    delay_seconds: float = RESTART_DELAY_SECONDS[0]
    has_served: bool = False
    missed_beats: int = 0
    is_unresponsive: bool = False

    def send(self, number: int) -> None:
        if self.link is not None:
            with suppress(OSError):  # The shard has just ended.
                self.link.send(bytes([number]))

    def close_link(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    def receive_heartbeats(self) -> bool:
        """Returns whether any heartbeat has arrived since the last call."""
        assert self.link is not None
        try:
            received = bool(self.link.recv(4096))
        except OSError:
            received = False
        self.has_served |= received
        return received

    def on_exit(self) -> None:
        """Resets the state of the ended process."""
        self.receive_heartbeats()
        self.close_link()
        self.pid = self.missed_beats = 0
        self.is_unresponsive = False


class _Supervisor:
    """The main loop of the parent process."""

    def __init__(self, workers: Sequence[_ShardWorker], log: Logger) -> None:
        self._workers = workers
        self._log = log
        self._clock = SystemClock()
        self._has_forwarded = False
        self._stops = 0  # number of signals to stop
        self._kill_ns = 0  # when the remaining shards are killed; 0 for never
        self._check_ns = 0  # time of the next heartbeat check
        self._unresponsive = 0  # shards
        self._exit_code = 0

    def run(self) -> int:
        for worker in self._workers:
            self._start(worker)
        self._check_heartbeats()
        self._set_alarm()
        while any(worker.pid or worker.restart_ns for worker in self._workers):
            match signal.sigwait(_SIGNALS):
                case signal.SIGCHLD:
                    self._reap()
                case signal.SIGALRM:
                    self._on_alarm()
                case number:
                    self._log.info("%s, forwarded to the shards", signal.Signals(number).name)
                    self._forward(number)
        return self._exit_code

    def _start(self, worker: _ShardWorker) -> None:
        worker.started_ns, worker.restart_ns = self._clock.now_ns(), 0
        try:
            self._fork(worker)
        except OSError as failure:
            worker.close_link()
            self._on_crash(worker, f"could not be started ({failure.strerror})")
            return
        self._log.info("shard %d is process %d", worker.shard.number, worker.pid)
        worker.send(unresponsive_count(self._unresponsive))

    def _fork(self, worker: _ShardWorker) -> None:
        worker.link, theirs = socket.socketpair()
        worker.link.setblocking(False)
        with theirs:
            worker.pid = os.fork()
            if worker.pid == 0:
                # The inherited sockets must close when the supervisor ends.
                for each in self._workers:
                    each.close_link()
                become_shard(worker.shard, theirs)

    def _forward(self, number: int) -> None:
        self._has_forwarded = True
        self._stops += number != signal.SIGHUP
        for worker in self._workers:
            worker.send(number)
            if self._stops:
                worker.restart_ns = worker.missed_beats = 0
                if worker.pid:
                    os.kill(worker.pid, signal.SIGCONT)
        if self._stops >= _LAST_STOP and not self._kill_ns:
            self._kill_ns = self._clock.now_ns() + round(LAST_STOP_SECONDS * SECOND_NS)
            self._set_alarm()

    def _reap(self) -> None:
        """Handles the exit of all ended shards. One SIGCHLD may report several children, and some
        children may not be shards."""
        by_pid = {worker.pid: worker for worker in self._workers if worker.pid}
        while by_pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            worker = by_pid.pop(pid, None)
            if worker is not None:
                self._on_shard_exit(worker, os.waitstatus_to_exitcode(status))

    def _on_shard_exit(self, worker: _ShardWorker, exit_code: int) -> None:
        shard, pid = worker.shard, worker.pid
        worker.on_exit()
        if exit_code < 0:
            self._on_crash(worker, f"(process {pid}) was killed by {_signal_name(-exit_code)}")
        elif exit_code > 0:
            self._on_crash(worker, f"(process {pid}) ended with exit code {exit_code}")
        elif shard.is_retiring and not self._has_forwarded:
            folder = shard.options.data_path
            self._log.info("shard %d is drained; %s may be deleted", shard.number, folder)
        else:
            self._log.info("shard %d has ended", shard.number)

    def _on_crash(self, worker: _ShardWorker, what: str) -> None:
        number = worker.shard.number
        if self._stops:
            self._exit_code = 1
            self._log.error("shard %d %s", number, what)
        elif not worker.has_served:
            self._exit_code = 1
            self._log.fatal("shard %d %s before it served: all are stopped", number, what)
            self._forward(signal.SIGINT)
        else:
            delay_seconds = self._next_delay(worker)
            self._log.error("shard %d %s; next start in %g s", number, what, delay_seconds)
            worker.restart_ns = self._clock.now_ns() + round(delay_seconds * SECOND_NS)
            self._set_alarm()

    def _next_delay(self, worker: _ShardWorker) -> float:
        first, longest = RESTART_DELAY_SECONDS
        if self._clock.now_ns() - worker.started_ns > STEADY_SECONDS * SECOND_NS:
            worker.delay_seconds = first
        delay_seconds = worker.delay_seconds
        worker.delay_seconds = min(2 * delay_seconds, longest)
        return delay_seconds

    def _on_alarm(self) -> None:
        now_ns = self._clock.now_ns()
        for worker in self._workers:
            if 0 < worker.restart_ns <= now_ns:
                self._start(worker)
        if self._check_ns <= now_ns:
            self._check_heartbeats()
        if 0 < self._kill_ns <= now_ns:
            self._kill_ns = 0
            for worker in self._workers:
                self._kill(worker, "still runs after the last signal to stop")
        self._set_alarm()

    def _check_heartbeats(self) -> None:
        self._check_ns = self._clock.now_ns() + round(HEARTBEAT_SECONDS * SECOND_NS)
        for worker in self._workers:
            if worker.pid and worker.receive_heartbeats():
                self._on_heartbeat(worker)
            elif worker.pid and (worker.has_served or self._stops):
                self._on_missed_heartbeat(worker)
        unresponsive = sum(worker.is_unresponsive for worker in self._workers)
        if unresponsive != self._unresponsive:
            self._unresponsive = unresponsive
            for worker in self._workers:
                worker.send(unresponsive_count(unresponsive))

    def _on_heartbeat(self, worker: _ShardWorker) -> None:
        worker.missed_beats = 0
        if worker.is_unresponsive:
            worker.is_unresponsive = False
            self._log.info("shard %d (process %d) responds again", worker.shard.number, worker.pid)

    def _on_missed_heartbeat(self, worker: _ShardWorker) -> None:
        worker.missed_beats += 1
        silent_seconds = worker.missed_beats * HEARTBEAT_SECONDS
        if worker.missed_beats >= UNRESPONSIVE_BEATS and not worker.is_unresponsive:
            worker.is_unresponsive = True
            self._log.error(
                "shard %d (process %d) has not responded for %g s: it is suspended or blocked",
                worker.shard.number,
                worker.pid,
                silent_seconds,
            )
        if self._stops and worker.missed_beats >= STOP_BEATS:
            self._kill(worker, f"has not responded for {silent_seconds:g} s while stopping")

    def _kill(self, worker: _ShardWorker, reason: str) -> None:
        if worker.pid:
            number, pid = worker.shard.number, worker.pid
            self._log.error("shard %d (process %d) %s: it is killed", number, pid, reason)
            os.kill(pid, signal.SIGKILL)

    def _set_alarm(self) -> None:
        """Sets the timer for the next restart, kill or heartbeat check."""
        times_ns = [worker.restart_ns for worker in self._workers if worker.restart_ns]
        if self._kill_ns:
            times_ns.append(self._kill_ns)
        left_ns = min([*times_ns, self._check_ns]) - self._clock.now_ns()
        # 0 would disable the timer. The extra millisecond ensures that it does not fire early.
        signal.setitimer(signal.ITIMER_REAL, max(left_ns / SECOND_NS, 0) + 0.001)


def _make_folder(shard: Shard) -> None:
    """Creates the folder of a shard. That of shard 0 is the data path itself, which must exist;
    a replicated node always has a folder of its own."""
    folder = shard.options.data_path
    if shard.number == 0 and shard.preferred_rank is None:
        return
    try:
        with suppress(FileExistsError):
            os.mkdir(folder)
    except OSError as failure:
        raise StorageError(f"cannot make {folder} - {failure.strerror}") from failure


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
