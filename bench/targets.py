"""The servers under load, started as programs, each on free ports with a data path of its own.

A command line is a template: `{tcp}` and `{http}` stand for addresses, `{tcp_port}` and
`{http_port}` for their ports, `{data}` for a directory that is deleted afterwards.
"""

import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench import procfs
from bench.figures import OURS
from bench.load import Endpoint, LoadError, Publisher, Reader
from bench.nsq import Nsq
from bench.redis import Redis

__all__ = ["Server", "Target", "Wire", "nsqd", "penstock", "redis", "running", "trial"]

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0
NSQD_FLAGS = ("--tcp-address={tcp}", "--http-address={http}", "--data-path={data}")


class Wire(Protocol):
    """What the scenarios need of a server's protocol: `bench.nsq.Nsq` and `bench.redis.Redis`."""

    def is_ready(self, at: Endpoint) -> bool:
        """True once a server that was just started answers."""

    def create(self, at: Endpoint, topic: str, channels: Sequence[str]) -> None:
        """Make the topic and its channels, so that what is published from now on reaches them."""

    def publisher(
        self, at: Endpoint, topic: str, *, connections: int, requests: int, batch: int
    ) -> Publisher:
        """Each connection sends `requests` requests of `batch` messages, one after the other."""

    def reader(self, at: Endpoint, topic: str, channel: str) -> Reader: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A program that can be put under load."""

    name: str
    command: tuple[str, ...]
    wire: Wire


@dataclass(frozen=True, slots=True)
class Server:
    """A target that is running."""

    wire: Wire
    at: Endpoint
    pid: int
    start_seconds: float

    def cpu_seconds(self) -> float:
        return procfs.cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        return procfs.rss_bytes(self.pid)

    def peak_rss_bytes(self) -> int:
        return procfs.peak_rss_bytes(self.pid)


def penstock() -> Target:
    """Our nsqd, by the interpreter that runs the bench."""
    return Target(OURS, (sys.executable, "-m", "penstock.cli.nsqd", *NSQD_FLAGS), Nsq())


def trial(script: Path) -> Target:
    """A yardstick: a Python script that takes nsqd's flags and does the least a broker must."""
    return Target("trial", (sys.executable, str(script), *NSQD_FLAGS), Nsq())


def nsqd(command_line: str) -> Target:
    """Any other nsqd."""
    return Target("against", tuple(shlex.split(command_line)), Nsq())


def redis(program: str) -> Target:
    """Redis, appending every write to a file that it syncs each second, and doing nothing else."""
    listen = ("--bind", "127.0.0.1", "--port", "{tcp_port}", "--dir", "{data}")
    append = ("--appendonly", "yes", "--appendfsync", "everysec")
    # No snapshots, and no rewriting of the file: either would run beside the load and slow it.
    nothing_else = ("--save", "", "--auto-aof-rewrite-percentage", "0")
    return Target("redis", (program, *listen, *append, *nothing_else), Redis())


@contextmanager
def running(target: Target) -> Iterator[Server]:
    """Start the target, wait until it answers, stop it and delete its data at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as directory:
        data, output = Path(directory, "data"), Path(directory, "output")
        data.mkdir()
        at = _free_endpoint()
        command = _filled_in(target.command, at, data)
        started = time.perf_counter()
        with output.open("wb") as log, _process(target, command, log.fileno()) as process:
            try:
                _wait_until_ready(target, at, process)
                yield Server(target.wire, at, process.pid, time.perf_counter() - started)
            except LoadError as error:
                raise LoadError(f"{error}; {_last_words(output)}") from None


@contextmanager
def _process(
    target: Target, command: Sequence[str], output: int
) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise LoadError(f"{target.name} does not start: {error}") from None
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(target: Target, at: Endpoint, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not target.wire.is_ready(at):
        if process.poll() is not None:
            raise LoadError(f"{target.name} does not start: exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise LoadError(f"{target.name} does not answer after {START_SECONDS_MAX:.0f} s")
        time.sleep(0.002)


def _last_words(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return f"its last output: {lines[-1]}" if lines else "it printed nothing"


def _filled_in(command: Sequence[str], at: Endpoint, data: Path) -> list[str]:
    places = {
        "tcp": "{}:{}".format(*at.tcp),
        "http": "{}:{}".format(*at.http),
        "tcp_port": at.tcp[1],
        "http_port": at.http[1],
        "data": data,
    }
    try:
        return [word.format(**places) for word in command]
    except (KeyError, IndexError, ValueError):
        known = " ".join(f"{{{name}}}" for name in places)
        raise LoadError(f"a command may contain {known}: {shlex.join(command)}") from None


def _free_endpoint() -> Endpoint:
    with ExitStack() as stack:
        # Both are held until both are known, so that they differ.
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        tcp, http = (one.getsockname()[1] for one in sockets)
    return Endpoint(("127.0.0.1", tcp), ("127.0.0.1", http))
