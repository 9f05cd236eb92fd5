"""An nsqadmin for the length of a test: the real program, in its own process, on a free port.

    with run_nsqd() as nsqd, run_nsqadmin(f"--nsqd-http-address={nsqd.http_address}") as nsqadmin:
        assert nsqadmin.http("GET", "/ping").body == b"OK"

It is ready when `run_nsqadmin` returns, and gone when the block is left: stopped cleanly after a
test that went well, killed after one that did not. A clean stop that is not clean fails the test,
and so does a traceback in the log.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.testing.daemon import DaemonProcess, DaemonStartError, running

__all__ = ["NsqadminProcess", "NsqadminStartError", "run_nsqadmin"]


class NsqadminStartError(DaemonStartError):
    """nsqadmin ended before it was ready; `log` says why."""


@contextmanager
def run_nsqadmin(*flags: str) -> Iterator["NsqadminProcess"]:
    """Runs nsqadmin with these flags. Raises NsqadminStartError."""
    with running(lambda log_fd: NsqadminProcess(flags, log_fd)) as nsqadmin:
        yield nsqadmin


class NsqadminProcess(DaemonProcess):
    """An nsqadmin; made by `run_nsqadmin`."""

    program = "nsqadmin"
    start_error = NsqadminStartError
    serves_tcp = False

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{self.http_address}"

    def close_clients(self) -> None:
        """It has none that stay."""
