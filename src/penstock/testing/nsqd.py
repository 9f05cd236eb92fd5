"""An nsqd for the length of a test: the real program, in its own process, on free ports.

    with run_nsqd() as nsqd:
        nsqd.publish("orders", b"one", b"two")
        nsqd.kill()
        nsqd.restart()
        message = nsqd.consumer("orders", "billing").message()

It is ready when `run_nsqd` returns, and gone when the block is left: stopped cleanly after a test
that went well, killed after one that did not. A clean stop that is not clean fails the test, and so
do a traceback in the log and damage in the data path.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from penstock.log import check_data_path
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until
from penstock.wire import commands

__all__ = ["HttpAnswer", "NsqdDidNotStart", "NsqdProcess", "run_nsqd", "starved_seconds"]

READY_SECONDS = 20.0
STOP_SECONDS = 20.0

_FREE_PORT = "127.0.0.1:0"
_LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")


class NsqdDidNotStart(Exception):
    """nsqd ended before it was ready; `log` says why."""

    def __init__(self, exit_code: int, log: str) -> None:
        super().__init__(f"nsqd ended with exit code {exit_code}:\n{log}")
        self.exit_code = exit_code
        self.log = log


class HttpAnswer(NamedTuple):
    """An HTTP answer, read whole."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)


@contextmanager
def run_nsqd(*flags: str, data_path: Path | str | None = None) -> Iterator["NsqdProcess"]:
    """Runs nsqd with these flags; `data_path` is a folder of its own unless one is named.

    It serves TCP and HTTP on free ports of 127.0.0.1, unless the flags say otherwise. Raises
    NsqdDidNotStart.
    """
    with ExitStack() as stack:
        if data_path is None:
            data_path = stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-"))
        log_file = stack.enter_context(tempfile.TemporaryFile())
        nsqd = NsqdProcess(Path(data_path), flags, log_file.fileno())
        stack.callback(nsqd.release)
        nsqd.start()
        yield nsqd
        if nsqd.is_running:
            nsqd.terminate()
        nsqd.check_log()
        nsqd.check_data_path()


class NsqdProcess:
    """An nsqd; made by `run_nsqd`."""

    def __init__(self, data_path: Path, flags: Sequence[str], log_fd: int) -> None:
        self.data_path = data_path
        self.tcp_address = ""
        self.http_address = ""
        self._flags = flags
        self._log_fd: int | None = log_fd
        self._log_start = 0  # where the log of the present process begins
        self._last_log = ""  # all of it, once the file is gone
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[RawClient] = []

    # Its life.

    def start(self) -> None:
        """Starts the program and returns once it serves. Raises NsqdDidNotStart."""
        assert not self.is_running, "it is running already"
        assert self._log_fd is not None, "its block has been left"
        self._log_start = os.fstat(self._log_fd).st_size
        self._process = subprocess.Popen(  # noqa: S603 (our own program)
            self._command(), stdout=self._log_fd, stderr=self._log_fd, env=_environment()
        )
        wait_until(self._is_ready, "nsqd to serve", seconds=READY_SECONDS)

    def kill(self) -> None:
        """Ends it without a warning, as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._close_clients()

    def release(self) -> None:
        """Ends it, and lets go of its log file; what was in there can still be read."""
        self.kill()
        self._last_log = self.log
        self._log_fd = None

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stops it cleanly, and fails unless it ends with exit code 0."""
        self._close_clients()
        self.send_signal(number)
        exit_code = self.wait()
        assert exit_code == 0, f"nsqd ended with exit code {exit_code}:\n{self.log}"

    def restart(self) -> None:
        """Starts it again, on its old data and new ports; stops it cleanly first if it runs."""
        if self.is_running:
            self.terminate()
        self.start()

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, and does not wait for what comes of it."""
        self._running().send_signal(number)

    def wait(self, *, seconds: float = STOP_SECONDS) -> int:
        """Waits for it to end, and returns its exit code."""
        try:
            return self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"nsqd did not end within {seconds:g} s:\n{self.log}") from None

    def check_log(self) -> None:
        """Fails if something happened that it did not expect."""
        assert "Traceback" not in self.log, f"nsqd has a bug:\n{self.log}"

    def check_data_path(self) -> None:
        """Fails if what it has stored is damaged. It must not be running."""
        damage = [str(finding) for finding in check_data_path(self.data_path) if finding.is_damage]
        assert not damage, damage

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._process is not None and self._process.poll() is None

    # Talking to it.

    def connect(self, **options: Any) -> RawClient:
        """A TCP client, with the options of `RawClient`. It need not be closed."""
        client = RawClient(self.tcp_address, **options)
        self._clients.append(client)
        return client

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publishes messages one by one, over a connection of their own."""
        with RawClient(self.tcp_address) as producer:
            for body in bodies:
                producer.call(commands.pub(topic, body))

    def consumer(self, topic: str, channel: str, *, rdy: int = 1) -> RawClient:
        """A subscribed client. It need not be closed."""
        client = self.connect()
        client.subscribe(topic, channel, rdy=rdy)
        return client

    def http(self, method: str, target: str, body: bytes = b"") -> HttpAnswer:
        """Makes one HTTP request."""
        connection = HTTPConnection(self.http_address, timeout=READY_SECONDS)
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read())
        finally:
            connection.close()

    def post(self, target: str, body: bytes = b"") -> None:
        """A POST that must succeed."""
        answer = self.http("POST", target, body)
        assert answer.status == 200, f"POST {target}: {answer}"

    def stats(self, topic: str, channel: str = "") -> Any:
        """What /stats says of a topic, or of one of its channels."""
        stats = self.http("GET", f"/stats?format=json&topic={topic}&channel={channel}").json()
        return stats["topics"][0]["channels"][0] if channel else stats["topics"][0]

    def shows(self, topic: str, channel: str, **figures: int) -> bool:
        """Whether /stats has these figures for a channel."""
        stats = self.stats(topic, channel)
        return figures == {name: stats[name] for name in figures}

    # Looking at it.

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What the present process, or the last one, has logged."""
        if self._log_fd is None:
            return self._last_log
        size = os.fstat(self._log_fd).st_size - self._log_start
        return os.pread(self._log_fd, size, self._log_start).decode(errors="replace")

    def resident_bytes(self) -> int:
        """The memory it takes now. Linux only."""
        resident_pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """The CPU time it has used so far, all threads together. Linux only."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_bytes().split()[0]) for task in tasks) / 1e9

    def starved_seconds(self) -> float:
        """How long it could have run so far and had no core to run on. Linux only."""
        return starved_seconds(self.pid)

    # Within.

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "penstock.cli.nsqd"),
            f"--tcp-address={_FREE_PORT}",
            f"--http-address={_FREE_PORT}",
            f"--data-path={self.data_path}",
            *self._flags,
        ]

    def _is_ready(self) -> bool:
        log = self.log
        addresses = dict(_LISTENING.findall(log))
        self.tcp_address = addresses.get("TCP", "")
        self.http_address = addresses.get("HTTP", "")
        serves_http = not any(re.fullmatch("--?http-address=", flag) for flag in self._flags)
        if self.tcp_address and (self.http_address or not serves_http):
            return True
        exit_code = self._running().poll()
        if exit_code is not None:
            raise NsqdDidNotStart(exit_code, self.log)
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it has not been started"
        return self._process

    def _close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()


def _environment() -> dict[str, str]:
    """Ours, with the Penstock that runs here, installed or not."""
    source = str(Path(penstock.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def starved_seconds(pid: int) -> float:
    """How long a process could have run so far and had no core to run on. Linux only."""
    return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
