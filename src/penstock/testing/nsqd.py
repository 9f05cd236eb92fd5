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

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock.protocol import commands
from penstock.storage import check_data_path
from penstock.testing.daemon import DaemonProcess, DaemonStartError, HttpAnswer, running
from penstock.testing.raw_client import RawClient

__all__ = ["HttpAnswer", "NsqdProcess", "NsqdStartError", "run_nsqd"]


class NsqdStartError(DaemonStartError):
    """nsqd ended before it was ready; `log` says why."""


@contextmanager
def run_nsqd(*flags: str, data_path: Path | str | None = None) -> Iterator["NsqdProcess"]:
    """Runs nsqd with these flags; `data_path` is a folder of its own unless one is named.

    It serves TCP and HTTP on free ports of 127.0.0.1, unless the flags say otherwise. Raises
    NsqdStartError.
    """
    with ExitStack() as stack:
        if data_path is None:
            data_path = stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-"))
        path = Path(data_path)
        yield stack.enter_context(running(lambda log_fd: NsqdProcess(path, flags, log_fd)))


class NsqdProcess(DaemonProcess):
    """An nsqd; made by `run_nsqd`. It is started again on its old data and new ports."""

    program = "nsqd"
    start_error = NsqdStartError

    def __init__(self, data_path: Path, flags: Sequence[str], log_fd: int) -> None:
        super().__init__([f"--data-path={data_path}", *flags], log_fd)
        self.data_path = data_path
        self._clients: list[RawClient] = []

    def check(self) -> None:
        super().check()
        self.check_data_path()

    def check_data_path(self) -> None:
        """Fails if what it has stored is damaged. It must not be running."""
        damage = [str(finding) for finding in check_data_path(self.data_path) if finding.is_damage]
        assert not damage, damage

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

    def stats(self, topic: str, channel: str = "") -> Any:
        """What /stats says of a topic, or of one of its channels."""
        stats = self.http("GET", f"/stats?format=json&topic={topic}&channel={channel}").json()
        return stats["topics"][0]["channels"][0] if channel else stats["topics"][0]

    def shows(self, topic: str, channel: str, **figures: int) -> bool:
        """Whether /stats has these figures for a channel."""
        stats = self.stats(topic, channel)
        return figures == {name: stats[name] for name in figures}

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()
