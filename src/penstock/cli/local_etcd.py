"""An etcd for the replicated node of `penstock up`: one server, on free ports of 127.0.0.1."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

from penstock.common.errors import ConfigError, ReplicationError
from penstock.replication.etcd import read_cluster
from penstock.replication.etcd_client import EtcdConfig

__all__ = ["LocalEtcd", "free_port"]

PROGRAM = "etcd"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class LocalEtcd:
    """A running etcd. Its data stays in the folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` is created if necessary. Raises ConfigError if etcd is not installed."""
        program = shutil.which(PROGRAM)
        if program is None:
            raise ConfigError(
                "--replicas needs etcd, which is not installed: run apt-get install etcd-server, "
                "or get it from https://github.com/etcd-io/etcd/releases"
            )
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log_path = folder.with_suffix(".log")
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start etcd, and wait until it answers. Raises ReplicationError."""
        peer_url = f"http://127.0.0.1:{free_port()}"
        command = [
            self._program,
            "--name=local",
            f"--data-dir={self._folder}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=local={peer_url}",
        ]
        try:
            # etcd does not get the Ctrl-C of the terminal: the members stop first, and tell it.
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: ASYNC220, S603 (returns at once; fixed)
                    command, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise ReplicationError(f"cannot start etcd: {error.strerror}") from error
        await self._wait_until_ready(self._process)

    async def stop(self) -> None:
        """Stop etcd; kill it if it does not stop."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        config = EtcdConfig((self.url,))
        while loop.time() < deadline:
            if process.poll() is not None:
                raise ReplicationError(
                    f"etcd has ended with exit code {process.returncode}: see {self.log_path}"
                )
            with contextlib.suppress(ReplicationError):
                await read_cluster(config, "local")
                return
            await asyncio.sleep(POLL_SECONDS)
        raise ReplicationError(
            f"etcd does not answer after {START_SECONDS:g} s: see {self.log_path}"
        )
