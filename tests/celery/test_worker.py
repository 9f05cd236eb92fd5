"""Real Celery workers with a real nsqd. `TASKS=10000` makes the first test longer."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]

TASKS = int(os.environ.get("TASKS", "300"))
SECONDS_MAX = 60 + TASKS / 50


class Work:
    """An nsqd, workers of `tests.celery.work`, and the tasks that they have done."""

    def __init__(self, nsqd: NsqdProcess, folder: Path, stack: ExitStack) -> None:
        self.nsqd = nsqd
        self._done = folder / "done"
        self._log = folder / "log"
        self._stack = stack
        self._environment = {
            **os.environ,
            "BROKER_URL": f"nsq://{nsqd.tcp_address}",
            "DONE": str(self._done),
        }

    def start_worker(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is ready."""
        before = self.log.count(" ready.")
        with self._log.open("ab") as log:
            worker = subprocess.Popen(
                [*CELERY, "worker", "--loglevel=INFO", "--concurrency=2", *flags],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        self._stack.callback(self._stop, worker)
        wait_until(
            lambda: self.log.count(" ready.") > before, f"a worker:\n{self.log}", seconds=120
        )
        return worker

    def celery(self, *arguments: str) -> str:
        """The output of a celery command."""
        return self._run([*CELERY, *arguments])

    def do(self, call: str) -> None:
        """Call a function of the application in another process."""
        self._run([sys.executable, "-c", f"from tests.celery import work; work.{call}"])

    @property
    def done(self) -> Counter[str]:
        return Counter(self._done.read_text().splitlines() if self._done.exists() else [])

    def has_done(self, tasks: set[str]) -> bool:
        """Whether all these tasks are done. Compares the count first, because it is
        called often.
        """
        lines = self._done.read_bytes().count(b"\n") if self._done.exists() else 0
        return lines >= len(tasks) and tasks <= self.done.keys()

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=SECONDS_MAX,
        )
        return done.stdout

    def _stop(self, worker: subprocess.Popen[bytes]) -> None:
        worker.terminate()
        try:
            worker.wait(120)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


CELERY = [sys.executable, "-m", "celery", "--app=tests.celery.work"]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with run_nsqd() as nsqd, ExitStack() as stack:
        yield Work(nsqd, tmp_path, stack)


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    print(f"{what}: {TASKS} tasks in {seconds:.1f} s, {TASKS / seconds:.0f} a second")


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS_MAX + 60)
def test_every_task_runs_although_a_worker_is_killed(work: Work) -> None:
    count = TASKS // 3
    expected = {f"{kind} {n}" for kind in ("plain", "retried", "later") for n in range(count)}
    first = work.start_worker("--hostname=first")
    with timed("publishing and working"):
        with timed("publishing"):
            work.do(f"publish({count})")
        wait_until(lambda: len(work.done) > TASKS / 4, "some of the tasks", seconds=SECONDS_MAX)
        first.kill()
        first.wait()
        assert expected - work.done.keys(), "it was killed too late for this test"
        work.start_worker("--hostname=second")
        wait_until(lambda: work.has_done(expected), f"all tasks:\n{work.log}", seconds=SECONDS_MAX)

    assert expected == work.done.keys()  # and none of them ran early
    print(f"done more than once: {sum(times > 1 for times in work.done.values())}")
    wait_until(
        lambda: work.nsqd.shows("celery", "celery", depth=0, in_flight_count=0, deferred_count=0),
        "the last answers",
    )


def test_remote_control_works_and_a_warm_shutdown_finishes_the_task(work: Work) -> None:
    worker = work.start_worker("--hostname=w1", "--pool=threads", "-E")

    assert "w1: OK" in work.celery("inspect", "ping")  # as does `celery status`
    work.do("asleep.delay(0.5)")
    wait_until(lambda: "asleep" in work.done, "the task", seconds=120)
    worker.terminate()

    assert 0 == worker.wait(120)
    assert {"asleep": 1, "awake": 1} == work.done
    wait_until(
        lambda: work.nsqd.shows("celery", "celery", depth=0, in_flight_count=0), "the last answer"
    )
    assert "Traceback" not in work.log


def test_a_solo_worker_may_be_busy_for_longer_than_nsqds_timeout(tmp_path: Path) -> None:
    with run_nsqd("--msg-timeout=5s") as nsqd, ExitStack() as stack:
        work = Work(nsqd, tmp_path, stack)
        work.start_worker("--pool=solo")
        work.do("asleep.delay(6.5)")
        wait_until(lambda: "awake" in work.done, "the task", seconds=120)

        assert {"asleep": 1, "awake": 1} == work.done
        assert nsqd.shows("celery", "celery", timeout_count=0)
