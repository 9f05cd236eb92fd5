"""nsqadmin as a process for tests, on a free port.

    with run_nsqd() as nsqd, run_nsqadmin(f"--nsqd-http-address={nsqd.http_address}") as nsqadmin:
        assert nsqadmin.http("GET", "/ping").body == b"OK"

At the end of the block it is stopped cleanly, or killed if the test failed. An unclean stop and a
traceback in the log fail the test.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.testing.daemon import DaemonProcess, DaemonStartError, running

__all__ = ["NsqadminProcess", "NsqadminStartError", "run_nsqadmin"]


class NsqadminStartError(DaemonStartError):
    """nsqadmin exited before it was ready; `log` contains the reason."""


@contextmanager
def run_nsqadmin(*flags: str) -> Iterator["NsqadminProcess"]:
    """Run nsqadmin with these flags. Raises NsqadminStartError."""
    with running(lambda log_fd: NsqadminProcess(flags, log_fd)) as nsqadmin:
        yield nsqadmin


class NsqadminProcess(DaemonProcess):
    """An nsqadmin, started by `run_nsqadmin`."""

    program = "nsqadmin"
    start_error = NsqadminStartError
    serves_tcp = False

    @property
    def url(self) -> str:
        """URL of the web pages."""
        return f"http://{self.http_address}"

    def close_clients(self) -> None:
        """Does nothing: there are no permanent connections."""
