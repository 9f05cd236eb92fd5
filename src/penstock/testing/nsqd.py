"""nsqd as a process for tests, on free ports.

    with run_nsqd() as nsqd:
        nsqd.publish("orders", b"one", b"two")
        nsqd.kill()
        nsqd.restart()
        message = nsqd.consumer("orders", "billing").message()

At the end of the block it is stopped cleanly, or killed if the test failed. An unclean stop, a
traceback in the log and damage in the data path fail the test.
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
    """nsqd exited before it was ready; `log` contains the reason."""


@contextmanager
def run_nsqd(
    *flags: str, data_path: Path | str | None = None, program: Sequence[str] = ()
) -> Iterator["NsqdProcess"]:
    """Run nsqd with these flags, by default on free ports of 127.0.0.1 and with a temporary data
    path. `program` replaces the program at the start of the command. Raises
    NsqdStartError.
    """
    with ExitStack() as stack:
        if data_path is None:
            data_path = stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-"))
        path = Path(data_path)
        yield stack.enter_context(running(lambda log_fd: NsqdProcess(path, flags, log_fd, program)))


class NsqdProcess(DaemonProcess):
    """An nsqd, started by `run_nsqd`. It restarts on the same data path and other ports."""

    program = "nsqd"
    start_error = NsqdStartError

    def __init__(
        self, data_path: Path, flags: Sequence[str], log_fd: int, program: Sequence[str] = ()
    ) -> None:
        super().__init__([f"--data-path={data_path}", *flags], log_fd, program)
        self.data_path = data_path
        self._clients: list[RawClient] = []

    def check(self) -> None:
        super().check()
        self.check_data_path()

    def check_data_path(self) -> None:
        """Fail if the data path is damaged. nsqd must not be running."""
        damage = [str(finding) for finding in check_data_path(self.data_path) if finding.is_damage]
        assert not damage, damage

    def connect(self, **options: Any) -> RawClient:
        """A TCP client with the options of `RawClient`. Closed automatically."""
        client = RawClient(self.tcp_address, **options)
        self._clients.append(client)
        return client

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish messages one by one on a new connection."""
        with RawClient(self.tcp_address) as producer:
            for body in bodies:
                producer.call(commands.pub(topic, body))

    def consumer(self, topic: str, channel: str, *, rdy: int = 1) -> RawClient:
        """A subscribed client. Closed automatically."""
        client = self.connect()
        client.subscribe(topic, channel, rdy=rdy)
        return client

    def stats(self, topic: str, channel: str = "") -> Any:
        """Statistics of a topic, or of one of its channels."""
        stats = self.http("GET", f"/stats?format=json&topic={topic}&channel={channel}").json()
        return stats["topics"][0]["channels"][0] if channel else stats["topics"][0]

    def shows(self, topic: str, channel: str, **figures: int) -> bool:
        """Whether the statistics of a channel have these values."""
        stats = self.stats(topic, channel)
        return figures == {name: stats[name] for name in figures}

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()
