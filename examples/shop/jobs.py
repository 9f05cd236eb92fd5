"""The processes that the demo runs beside its brokers: the generator, and Spark's jobs.

Each has a session of its own, so that Ctrl-C reaches the demo alone, which then ends them in good
order: a job is asked first, and what is left of its session is killed.
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

__all__ = ["Generating", "Job", "JobFailed", "running_jobs"]

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 60.0

# Small enough for two of them beside everything else on a small machine. What lives for a minute or
# two is not worth being compiled for hours of work.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = (
    *("--master", "local[2]"),
    *("--spark-conf", "spark.driver.memory=512m"),
    *("--spark-conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"),
)


class JobFailed(Exception):
    """A process has ended that should not have, or not in this way."""


class Job:
    """A `penstock` command that runs on Spark, in the demo's folder; what it says goes to files."""

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
        """Raises JobFailed if it does not."""
        if self._process.poll() is not None:
            raise JobFailed(f"{self.name} has ended: {self.last_line()}")

    def has_ended(self) -> bool:
        """Whether it has done its work. Raises JobFailed if it could not."""
        code = self._process.poll()
        if code:
            raise JobFailed(f"{self.name} has failed: {self.last_line()}")
        return code == 0

    def ask_to_stop(self) -> None:
        """Once: asked again, it would drop everything."""
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """For what has been asked to stop. Raises JobFailed if it does not, or not cleanly."""
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise JobFailed(f"{self.name} does not stop: {self.last_line()}") from None
        if code:
            raise JobFailed(f"{self.name} has failed: {self.last_line()}")

    def kill(self) -> None:
        """With all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_line(self) -> str:
        """What it said last on stderr, where progress and failures are told."""
        return (_lines(self._progress) or ["it said nothing"])[-1]

    def results(self) -> list[str]:
        """What it says that it has done."""
        return _lines(self._output)


class Generating:
    """The generator's process, and the last that it has said."""

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
            stderr=subprocess.DEVNULL,  # it says that a broker is gone
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def check_runs(self) -> None:
        """Raises JobFailed if it has ended before its work was done."""
        if self._process.poll() and self.status.step != "done":
            raise JobFailed("the generator has ended")

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
    """A function that starts jobs. In the end, all are asked to stop, or killed, if something goes
    wrong; none is left."""
    jobs: list[Job] = []

    def start(name: str, args: Sequence[str]) -> Job:
        jobs.append(Job(name, args, folder))
        return jobs[-1]

    try:
        yield start
        for job in jobs:
            job.ask_to_stop()
        for job in jobs:
            job.wait()
    finally:
        for job in jobs:
            job.kill()


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(errors="replace").splitlines() if line.strip()]


def _environment(folder: Path) -> dict[str, str]:
    """Whatever Spark writes down for itself is gone with the folder."""
    scratch = str(folder / "scratch")
    return {**os.environ, "TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch}
