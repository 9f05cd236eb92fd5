"""etcd as a process for tests, on free ports of 127.0.0.1.

    with run_etcd() as etcd:
        config = EtcdConfig((etcd.url,))
        etcd.kill()
        etcd.start()  # on the same ports, with the same data

At the end of the block it is killed, and its data is deleted.
"""

import http.client
import json
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock.testing.addresses import reserved_address
from penstock.testing.waiting import wait_until

__all__ = ["EtcdProcess", "EtcdTls", "has_etcd", "run_etcd"]

_PROGRAM = "etcd"
_REQUEST_SECONDS = 60.0


def has_etcd() -> bool:
    """Whether the program is installed; Debian has it in the package etcd-server."""
    return shutil.which(_PROGRAM) is not None


class EtcdTls(NamedTuple):
    """Certificate and key of the server, for 127.0.0.1, and a context that trusts it."""

    cert_file: Path
    key_file: Path
    context: ssl.SSLContext


@contextmanager
def run_etcd(tls: EtcdTls | None = None) -> Iterator["EtcdProcess"]:
    """Run etcd for the duration of a block; with `tls`, it serves HTTPS only."""
    with (
        tempfile.TemporaryDirectory(prefix="etcd-") as folder,
        reserved_address() as client_address,
        reserved_address() as peer_address,
    ):
        etcd = EtcdProcess(Path(folder), client_address, peer_address, tls)
        try:
            etcd.start()
            yield etcd
        finally:
            etcd.kill()


class EtcdProcess:
    """An etcd, started by `run_etcd`. It restarts on the same ports, with the same data."""

    def __init__(
        self,
        folder: Path,
        client_address: str,
        peer_address: str,
        tls: EtcdTls | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` starts a command in another network namespace."""
        self._prefix = prefix
        self.url = f"{'https' if tls else 'http'}://{client_address}"
        self._tls = tls
        self._client_address = client_address
        self._peer_url = f"http://{peer_address}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    # Lifecycle.

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert self._process is None, "it is already running"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (a fixed program)
                self._command(), stdout=log, stderr=log
            )
        wait_until(self._is_ready, "etcd to serve")

    def kill(self) -> None:
        """Kill it (SIGKILL), also if it is suspended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def suspend(self) -> None:
        """Send SIGSTOP: connections stay open, and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    def delete_data(self) -> None:
        """Delete all data. It must not be running."""
        assert self._process is None, "it is still running"
        shutil.rmtree(self._data_folder)

    # Requests.

    def call(self, path: str, **request: object) -> Any:
        """Send a request to the JSON gateway; returns the answer. Fails if the status is not
        200."""
        connection = self._connection()
        try:
            connection.request("POST", path, json.dumps(request))
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        assert response.status == 200, f"POST {path}: {response.status} {body!r}"
        return json.loads(body)

    def enable_authentication(self, password: str) -> None:
        """Create the user root with this password, and require authentication."""
        self.call("/v3/auth/user/add", name="root", password=password)
        self.call("/v3/auth/role/add", name="root")
        self.call("/v3/auth/user/grant", user="root", role="root")
        self.call("/v3/auth/enable")

    # Internal.

    @property
    def _data_folder(self) -> Path:
        return self._folder / "data"

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._client_address, timeout=_REQUEST_SECONDS)
        return http.client.HTTPSConnection(
            self._client_address, timeout=_REQUEST_SECONDS, context=self._tls.context
        )

    def _command(self) -> list[str]:
        tls = self._tls
        return [
            *self._prefix,
            _PROGRAM,
            "--name=test",
            f"--data-dir={self._data_folder}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={self._peer_url}",
            f"--initial-advertise-peer-urls={self._peer_url}",
            f"--initial-cluster=test={self._peer_url}",
            *([f"--cert-file={tls.cert_file}", f"--key-file={tls.key_file}"] if tls else []),
        ]

    def _is_ready(self) -> bool:
        process = self._running()
        log = (self._folder / "log").read_text(errors="replace")
        assert process.poll() is None, f"etcd ended with exit code {process.poll()}:\n{log}"
        connection = self._connection()
        try:
            connection.request("GET", "/health")
            body = connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return b'"true"' in body

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it is not running"
        return self._process
