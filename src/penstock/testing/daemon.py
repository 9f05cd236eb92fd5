"""Daemons as processes for tests, on free ports: common part of nsqd, nsqlookupd and nsqadmin.

A daemon is ready when its `with` block begins. At the end of the block it is stopped cleanly, or
killed if the test failed. An unclean stop and a traceback in the log fail the test.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import penstock
from penstock.testing.waiting import wait_until

__all__ = [
    "DaemonProcess",
    "DaemonStartError",
    "HttpAnswer",
    "running",
]

# Generous: on a busy machine a start or a stop may take many seconds.
READY_SECONDS = 60.0
STOP_SECONDS = 60.0

_FREE_PORT = "127.0.0.1:0"
_LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")


class DaemonStartError(Exception):
    """A daemon exited before it was ready; `log` contains the reason."""

    def __init__(self, program: str, exit_code: int, log: str) -> None:
        super().__init__(f"{program} ended with exit code {exit_code}:\n{log}")
        self.exit_code = exit_code
        self.log = log


class HttpAnswer(NamedTuple):
    """A complete HTTP response."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)


class DaemonProcess(ABC):
    """A daemon that can be started more than once."""

    program: ClassVar[str]
    start_error: ClassVar[type[DaemonStartError]] = DaemonStartError
    serves_tcp: ClassVar[bool] = True

    def __init__(self, flags: Sequence[str], log_fd: int, program: Sequence[str] = ()) -> None:
        """`program` replaces the program at the start of the command; empty for Penstock's."""
        self.tcp_address = ""
        self.http_address = ""
        self._flags = flags
        self._program = program
        self._log_fd: int | None = log_fd
        self._log_start = 0  # start of the current process's log
        self._last_log = ""  # the whole log, after the file is closed
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def close_clients(self) -> None:
        """Close the connections that this object made."""

    # Lifecycle.

    def start(self, *, seconds: float = READY_SECONDS) -> None:
        """Start the program and wait until it serves. Raises DaemonStartError if it exits, and
        AssertionError if it does not serve within `seconds`."""
        assert not self.is_running, "it is already running"
        assert self._log_fd is not None, "its block has ended"
        self._log_start = os.fstat(self._log_fd).st_size
        self._process = subprocess.Popen(  # noqa: S603 (our own program)
            self._command(), stdout=self._log_fd, stderr=self._log_fd, env=_environment()
        )
        try:
            wait_until(self._is_ready, f"{self.program} to serve", seconds=seconds)
        except AssertionError as timeout:
            raise AssertionError(f"{timeout}:\n{self.log}") from None

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.close_clients()

    def release(self) -> None:
        """Kill the process and release its log file; `log` still returns the content."""
        self.kill()
        self._last_log = self.log
        self._log_fd = None

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the daemon with a signal and wait for its end. Raises AssertionError if the exit
        code is not 0."""
        self.close_clients()
        self.send_signal(number)
        exit_code = self.wait()
        assert exit_code == 0, f"{self.program} ended with exit code {exit_code}:\n{self.log}"

    def restart(self) -> None:
        """Start the daemon. If it is running, stop it cleanly first."""
        if self.is_running:
            self.terminate()
        self.start()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal without waiting for its effect."""
        self._running().send_signal(number)

    def wait(self, *, seconds: float = STOP_SECONDS) -> int:
        """Wait until it exits; returns the exit code."""
        try:
            return self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.program} did not end within {seconds:g} s:\n{self.log}"
            ) from None

    def check(self) -> None:
        """Fail if it logged a traceback or damaged its data. It must not be running."""
        self.check_log()

    def check_log(self) -> None:
        """Fail if the log contains a traceback."""
        assert "Traceback" not in self.log, f"{self.program} has a bug:\n{self.log}"

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    # Requests.

    def http(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send one HTTP request."""
        connection = HTTPConnection(self.http_address, timeout=READY_SECONDS)
        try:
            connection.request(method, target, body, headers or {})
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read())
        finally:
            connection.close()

    def post(self, target: str, body: bytes = b"") -> None:
        """Send a POST; fails if the status is not 200."""
        answer = self.http("POST", target, body)
        assert answer.status == 200, f"POST {target}: {answer}"

    # Inspection.

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    @property
    def log(self) -> str:
        """Log of the current or last process."""
        if self._log_fd is None:
            return self._last_log
        size = os.fstat(self._log_fd).st_size - self._log_start
        return os.pread(self._log_fd, size, self._log_start).decode(errors="replace")

    # Internal.

    def _command(self) -> list[str]:
        return [
            *(self._program or (sys.executable, "-m", f"penstock.cli.{self.program}")),
            *([f"--tcp-address={_FREE_PORT}"] if self.serves_tcp else []),
            f"--http-address={_FREE_PORT}",
            *self._flags,
        ]

    def _is_ready(self) -> bool:
        log = self.log
        addresses = dict(_LISTENING.findall(log))
        serves_http = not any(re.fullmatch("--?http-address=", flag) for flag in self._flags)
        if ("TCP" in addresses or not self.serves_tcp) and ("HTTP" in addresses or not serves_http):
            self.tcp_address = addresses.get("TCP", "")
            self.http_address = addresses.get("HTTP", "")
            return True
        exit_code = self._running().poll()
        if exit_code is not None:
            raise self.start_error(self.program, exit_code, self.log)
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it has not been started"
        return self._process


_Daemon = TypeVar("_Daemon", bound=DaemonProcess)


@contextmanager
def running(make: Callable[[int], _Daemon]) -> Iterator[_Daemon]:
    """Run a daemon for the duration of a block. `make` is called with the descriptor of the log."""
    with tempfile.TemporaryFile() as log_file:
        daemon = make(log_file.fileno())
        try:
            daemon.start()
            yield daemon
            if daemon.is_running:
                daemon.terminate()
            daemon.check()
        finally:
            daemon.release()


def _environment() -> dict[str, str]:
    """This environment, with the Penstock of this process on PYTHONPATH."""
    source = str(Path(penstock.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
