"""An nsqlookupd for the length of a test: the real program, in its own process, on free ports.

    with run_nsqlookupd() as nsqlookupd:
        node = nsqlookupd.node("n1.example")
        node.call(lookup_v1.register("orders"))
        assert ["n1.example"] == nsqlookupd.found("orders")

It is ready when `run_nsqlookupd` returns, and gone when the block is left: stopped cleanly after a
test that went well, killed after one that did not. A clean stop that is not clean fails the test,
and so does a traceback in the log.
"""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import penstock
from penstock.testing.nsqd import HttpAnswer
from penstock.testing.waiting import wait_until
from penstock.wire import lookup_v1

__all__ = ["LookupPeer", "NsqlookupdDidNotStart", "NsqlookupdProcess", "run_nsqlookupd"]

READY_SECONDS = 20.0
STOP_SECONDS = 20.0

_FREE_PORT = "127.0.0.1:0"
_LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")
_RECEIVE_BYTES = 64 * 1024


class NsqlookupdDidNotStart(Exception):
    """nsqlookupd ended before it was ready; `log` says why."""

    def __init__(self, exit_code: int, log: str) -> None:
        super().__init__(f"nsqlookupd ended with exit code {exit_code}:\n{log}")
        self.exit_code = exit_code
        self.log = log


@contextmanager
def run_nsqlookupd(*flags: str) -> Iterator["NsqlookupdProcess"]:
    """Runs nsqlookupd with these flags; on free ports of 127.0.0.1, unless they say otherwise.

    Raises NsqlookupdDidNotStart.
    """
    with ExitStack() as stack:
        log_file = stack.enter_context(tempfile.TemporaryFile())
        nsqlookupd = NsqlookupdProcess(flags, log_file.fileno())
        stack.callback(nsqlookupd.release)
        nsqlookupd.start()
        yield nsqlookupd
        if nsqlookupd.is_running:
            nsqlookupd.terminate()
        nsqlookupd.check_log()


class NsqlookupdProcess:
    """An nsqlookupd; made by `run_nsqlookupd`."""

    def __init__(self, flags: Sequence[str], log_fd: int) -> None:
        self.tcp_address = ""
        self.http_address = ""
        self._flags = flags
        self._log_fd: int | None = log_fd
        self._log_start = 0  # where the log of the present process begins
        self._last_log = ""  # all of it, once the file is gone
        self._process: subprocess.Popen[bytes] | None = None
        self._peers: list[LookupPeer] = []

    # Its life.

    def start(self, *, same_ports: bool = False) -> None:
        """Starts the program and returns once it serves. Raises NsqlookupdDidNotStart."""
        assert not self.is_running, "it is running already"
        assert self._log_fd is not None, "its block has been left"
        self._log_start = os.fstat(self._log_fd).st_size
        self._process = subprocess.Popen(  # noqa: S603 (our own program)
            self._command(same_ports=same_ports),
            stdout=self._log_fd,
            stderr=self._log_fd,
            env=_environment(),
        )
        wait_until(self._is_ready, "nsqlookupd to serve", seconds=READY_SECONDS)

    def kill(self) -> None:
        """Ends it without a warning, as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._close_peers()

    def release(self) -> None:
        """Ends it, and lets go of its log file; what was in there can still be read."""
        self.kill()
        self._last_log = self.log
        self._log_fd = None

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stops it cleanly, and fails unless it ends with exit code 0."""
        self.send_signal(number)
        exit_code = self.wait()
        self._close_peers()
        assert exit_code == 0, f"nsqlookupd ended with exit code {exit_code}:\n{self.log}"

    def restart(self) -> None:
        """Starts it again, on its old ports; stops it cleanly first if it runs."""
        if self.is_running:
            self.terminate()
        self.start(same_ports=True)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, and does not wait for what comes of it."""
        self._running().send_signal(number)

    def wait(self, *, seconds: float = STOP_SECONDS) -> int:
        """Waits for it to end, and returns its exit code."""
        try:
            return self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"nsqlookupd did not end in {seconds:g} s:\n{self.log}") from None

    def check_log(self) -> None:
        """Fails if something happened that it did not expect."""
        assert "Traceback" not in self.log, f"nsqlookupd has a bug:\n{self.log}"

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._process is not None and self._process.poll() is None

    # Talking to it.

    def connect(
        self, *, magic: bytes = lookup_v1.MAGIC, tls: ssl.SSLContext | None = None
    ) -> "LookupPeer":
        """A TCP peer that has sent its magic. It need not be closed."""
        peer = LookupPeer(self.tcp_address, tls=tls)
        self._peers.append(peer)
        peer.send(magic)
        return peer

    def node(self, broadcast_address: str, **fields: object) -> "LookupPeer":
        """A peer that has identified itself as an nsqd. It need not be closed."""
        peer = self.connect()
        peer.identify(broadcast_address=broadcast_address, **fields)
        return peer

    def http(self, method: str, target: str) -> HttpAnswer:
        """Makes one HTTP request."""
        connection = HTTPConnection(self.http_address, timeout=READY_SECONDS)
        try:
            connection.request(method, target)
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read())
        finally:
            connection.close()

    def post(self, target: str) -> None:
        """A POST that must succeed."""
        answer = self.http("POST", target)
        assert answer.status == 200, f"POST {target}: {answer}"

    def found(self, topic: str) -> list[str]:
        """The broadcast addresses that /lookup has for a topic; none for one that is not known."""
        answer = self.http("GET", f"/lookup?topic={topic}").json()
        return [producer["broadcast_address"] for producer in answer.get("producers", [])]

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

    # Within.

    def _command(self, *, same_ports: bool) -> list[str]:
        return [
            *(sys.executable, "-m", "penstock.cli.nsqlookupd"),
            f"--tcp-address={self.tcp_address if same_ports else _FREE_PORT}",
            f"--http-address={self.http_address if same_ports else _FREE_PORT}",
            *self._flags,
        ]

    def _is_ready(self) -> bool:
        addresses = dict(_LISTENING.findall(self.log))
        if addresses.keys() == {"TCP", "HTTP"}:
            self.tcp_address, self.http_address = addresses["TCP"], addresses["HTTP"]
            return True
        exit_code = self._running().poll()
        if exit_code is not None:
            raise NsqlookupdDidNotStart(exit_code, self.log)
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it has not been started"
        return self._process

    def _close_peers(self) -> None:
        while self._peers:
            self._peers.pop().close()


class LookupPeer:
    """A raw connection to nsqlookupd's TCP port. Nothing here waits longer than its timeout."""

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None = None, timeout_seconds: float = 10.0
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_seconds)
        if tls is not None:
            self._socket = _encrypted(self._socket, tls, host)
        self._timeout_seconds = timeout_seconds
        self._responses = lookup_v1.ResponseReader()

    @property
    def address(self) -> str:
        """What nsqlookupd calls us."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def send(self, *data: bytes) -> None:
        """Sends commands, or any other bytes."""
        self._socket.sendall(b"".join(data))

    def call(self, command: bytes) -> bytes:
        """Sends a command and returns the data of its answer. Raises ProtocolError if refused."""
        self.send(command)
        return self.response()

    def identify(self, **fields: object) -> Any:
        """Says that we are an nsqd, and returns what nsqlookupd says of itself."""
        stock = {"hostname": "", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
        return json.loads(self.call(lookup_v1.identify({**stock, **fields})))

    def response(self) -> bytes:
        """The data of the next answer. Raises ProtocolError if it is an error, ConnectionError if
        there is none."""
        deadline = time.monotonic() + self._timeout_seconds
        while (data := self._responses.next_response()) is None:
            chunk = self._receive(deadline)
            if not chunk:
                raise ConnectionError("nsqlookupd closed the connection")
            self._responses.receive_data(chunk)
        return data

    def read_to_end(self) -> bytes:
        """All bytes until nsqlookupd closes the connection, which it must do in time."""
        deadline = time.monotonic() + self._timeout_seconds
        data = bytearray()
        while chunk := self._receive(deadline):
            data += chunk
        return bytes(data)

    def end(self) -> None:
        """Ends our side: what nsqlookupd still has to say can be read."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _receive(self, deadline: float) -> bytes:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            return b""


def _encrypted(plain: socket.socket, tls: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _environment() -> dict[str, str]:
    """Ours, with the Penstock that runs here, installed or not."""
    source = str(Path(penstock.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
