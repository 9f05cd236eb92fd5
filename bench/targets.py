"""The measured servers. Each runs as a process on free ports with its own data path.

A command line is a template: `{tcp}` and `{http}` are replaced by addresses, `{tcp_port}` and
`{http_port}` by their ports, `{data}` by a temporary directory, `{certificate}` and `{key}` by
files that are created if they are used.
"""

import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trustme

from bench import procfs
from bench.figures import OURS
from bench.load import Endpoint, LoadError, Publisher, Reader
from bench.nsq import Nsq
from bench.redis import Redis

__all__ = ["Program", "Server", "Target", "Wire", "nsqd", "penstock", "redis", "running", "trial"]

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
NSQD_FLAGS = ("--tcp-address={tcp}", "--http-address={http}", "--data-path={data}")


class Wire(Protocol):
    """The operations that scenarios need of a server's protocol: `bench.nsq.Nsq` and
    `bench.redis.Redis`.
    """

    def is_ready(self, at: Endpoint) -> bool:
        """Whether a newly started server responds."""

    def create(self, at: Endpoint, topic: str, channels: Sequence[str]) -> None:
        """Create the topic and its channels, so that they receive messages published
        from now on.
        """

    def publisher(
        self, at: Endpoint, *topics: str, connections: int, requests: int, batch: int
    ) -> Publisher:
        """Each connection sends `requests` requests of `batch` messages, one after the other, to
        the topics in turn.
        """

    def reader(self, at: Endpoint, topic: str, channel: str, *, ahead: int = ...) -> Reader:
        """`ahead` is the maximum number of unfinished messages."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server program to measure."""

    name: str
    command: tuple[str, ...]
    wire: Wire
    is_complete: bool = True
    """Whether it has all features of its protocol."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running target."""

    wire: Wire
    at: Endpoint
    pid: int
    start_seconds: float
    program: "Program"

    def restart(self, by: signal.Signals) -> "Server":
        """Stop it by this signal and start it again with its data. This object is invalid
        afterwards.
        """
        self.program.end(by)
        return self.program.start()

    def cpu_seconds(self) -> float:
        return procfs.cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        return procfs.rss_bytes(self.pid)

    def peak_rss_bytes(self) -> int:
        return procfs.peak_rss_bytes(self.pid)


def penstock() -> Target:
    """Our nsqd, run by the interpreter of the bench."""
    return Target(OURS, (sys.executable, "-m", "penstock.cli.nsqd", *NSQD_FLAGS), Nsq())


def trial(script: Path) -> Target:
    """A reference server: a minimal broker as a Python script that takes nsqd's flags."""
    command = (sys.executable, str(script), *NSQD_FLAGS)
    return Target("trial", command, Nsq(), is_complete=False)


def nsqd(command_line: str) -> Target:
    """Another nsqd, by path."""
    return Target("against", tuple(shlex.split(command_line)), Nsq())


def redis(program: str) -> Target:
    """Redis with an append-only file, synced each second, and no other background work."""
    listen = ("--bind", "127.0.0.1", "--port", "{tcp_port}", "--dir", "{data}")
    append = ("--appendonly", "yes", "--appendfsync", "everysec")
    # No snapshots and no rewriting of the file: either would slow down the load.
    nothing_else = ("--save", "", "--auto-aof-rewrite-percentage", "0")
    return Target("redis", (program, *listen, *append, *nothing_else), Redis())


@contextmanager
def running(target: Target, *flags: str) -> Iterator[Server]:
    """Start the target and wait until it responds; at the end, stop it and delete its data."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        (folder / "data").mkdir()
        at = _free_endpoint()
        command = _filled_in((*target.command, *flags), at, folder)
        program = Program(target, command, at, folder / "output")
        try:
            yield program.start()
        except LoadError as error:
            raise LoadError(f"{error}; {_last_words(program.output)}") from None
        finally:
            program.end(signal.SIGTERM)


@dataclass
class Program:
    """The process of a target, and its earlier processes with the same data."""

    target: Target
    command: Sequence[str]
    at: Endpoint
    output: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> Server:
        started = time.perf_counter()
        try:
            with self.output.open("ab") as output:
                self.process = process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:
            raise LoadError(f"{self.target.name} does not start: {error}") from None
        self._wait_until_ready(process)
        seconds = time.perf_counter() - started
        return Server(self.target.wire, self.at, process.pid, seconds, self)

    def end(self, by: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(by)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        name = self.target.name
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.target.wire.is_ready(self.at):
            if process.poll() is not None:
                raise LoadError(f"{name} does not start: exit code {process.returncode}")
            if time.monotonic() > deadline:
                raise LoadError(f"{name} does not answer after {START_SECONDS_MAX:.0f} s")
            time.sleep(0.002)


def _last_words(output: Path) -> str:
    if not output.exists():
        return "it printed nothing"
    lines = output.read_text(errors="replace").strip().splitlines()
    return f"its last output: {lines[-1]}" if lines else "it printed nothing"


def _filled_in(command: Sequence[str], at: Endpoint, folder: Path) -> list[str]:
    places: dict[str, object] = {
        "tcp": "{}:{}".format(*at.tcp),
        "http": "{}:{}".format(*at.http),
        "tcp_port": at.tcp[1],
        "http_port": at.http[1],
        "data": folder / "data",
        "certificate": folder / "certificate.pem",
        "key": folder / "key.pem",
    }
    if any("{certificate}" in word for word in command):
        _make_certificate(folder / "certificate.pem", folder / "key.pem")
    try:
        return [word.format(**places) for word in command]
    except (KeyError, IndexError, ValueError):
        known = " ".join(f"{{{name}}}" for name in places)
        raise LoadError(f"a command may contain {known}: {shlex.join(command)}") from None


def _make_certificate(certificate: Path, key: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)


def _free_endpoint() -> Endpoint:
    with ExitStack() as stack:
        # Both sockets stay open until both ports are known, so that they differ.
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        tcp, http = (one.getsockname()[1] for one in sockets)
    return Endpoint(("127.0.0.1", tcp), ("127.0.0.1", http))
