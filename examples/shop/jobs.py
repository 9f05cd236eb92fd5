"""Processes of the demo besides the brokers: the event generator and the Spark jobs.

Each runs in its own session, so that Ctrl-C reaches only the demo. The demo first requests each job
to stop, then kills the rest of its session.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from examples.shop.generator import Status

__all__ = ["GeneratorProcess", "Job", "JobError", "running_jobs"]

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 60.0

# Settings for short jobs on a small machine: little memory, and no optimising compiler.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = (
    *("--master", "local[2]"),
    *("--spark-conf", "spark.driver.memory=512m"),
    *("--spark-conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"),
)


class JobError(Exception):
    """A process ended unexpectedly or with an error."""


class Job:
    """A Spark command of `penstock`, run in the demo's folder, with its output in files."""

    def __init__(self, name: str, args: Sequence[str], folder: Path) -> None:
        self.name = name
        self._output, self._progress = folder / f"{name}.out", folder / f"{name}.log"
        command = [sys.executable, "-m", "penstock.cli.penstock", *args, *SPARK]
        with self._output.open("wb") as output, self._progress.open("wb") as progress:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=progress,
                env=_environment(folder),
                start_new_session=True,
            )

    def check_runs(self) -> None:
        """Raises JobError if the job has ended."""
        if self._process.poll() is not None:
            raise JobError(f"{self.name} has ended: {self.last_line()}")

    def has_ended(self) -> bool:
        """Whether the job has ended. Raises JobError if it failed."""
        code = self._process.poll()
        if code:
            raise JobError(f"{self.name} has failed: {self.last_line()}")
        return code == 0

    def request_stop(self) -> None:
        """Send SIGINT. A second one would abort the job."""
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait for a job to stop. Raises JobError if it does not stop or fails."""
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise JobError(f"{self.name} does not stop: {self.last_line()}") from None
        if code:
            raise JobError(f"{self.name} has failed: {self.last_line()}")

    def kill(self) -> None:
        """Kill the job and its child processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_line(self) -> str:
        """Last line on stderr, which has progress and errors."""
        return (_lines(self._progress) or ["no output"])[-1]

    def results(self) -> list[str]:
        """Lines on stdout."""
        return _lines(self._output)


class GeneratorProcess:
    """The process of the generator, and its last status."""

    def __init__(self, ledger: Path, nsqds: Sequence[str], *, rate: float, seconds: float) -> None:
        self.status = Status("open", 0)
        addresses = [f"--nsqd={address}" for address in nsqds]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "examples.shop.generator", str(ledger), *addresses),
                *(f"--rate={rate}", f"--seconds={seconds}"),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # has warnings about the killed broker
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def check_runs(self) -> None:
        """Raises JobError if the process ended too early."""
        if self._process.poll() and self.status.step != "done":
            raise JobError("the generator has ended")

    def close_shop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("close\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.status = msgspec.json.decode(line, type=Status)


@contextmanager
def running_jobs(folder: Path) -> Iterator[Callable[[str, Sequence[str]], Job]]:
    """Yield a function that starts jobs. At the end all jobs are stopped, or killed after an
    error."""
    jobs: list[Job] = []

    def start(name: str, args: Sequence[str]) -> Job:
        jobs.append(Job(name, args, folder))
        return jobs[-1]

    try:
        yield start
        for job in jobs:
            job.request_stop()
        for job in jobs:
            job.wait()
    finally:
        for job in jobs:
            job.kill()


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(errors="replace").splitlines() if line.strip()]


def _environment(folder: Path) -> dict[str, str]:
    """Put Spark's temporary files into the demo's folder."""
    scratch = str(folder / "scratch")
    return {**os.environ, "TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch}
