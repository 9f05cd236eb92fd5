"""An nsqd with its data in memory, so that other load on the disk does not affect the test."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.testing.nsqd import NsqdProcess, run_nsqd

__all__ = ["run_nsqd_off_disk"]

_MEMORY = "/dev/shm"

# More than the tests of one module need. The default of a container is 64 MB.
_BYTES_NEEDED = 1 << 30


@contextmanager
def run_nsqd_off_disk(*flags: str) -> Iterator[NsqdProcess]:
    """Run nsqd with its data in memory, or on disk if there is not enough memory."""
    with (
        tempfile.TemporaryDirectory(prefix="nsqd-", dir=_folder()) as data_path,
        run_nsqd(*flags, data_path=data_path) as nsqd,
    ):
        yield nsqd


def _folder() -> str | None:
    with suppress(OSError):
        space = os.statvfs(_MEMORY)
        if space.f_bavail * space.f_frsize > _BYTES_NEEDED and os.access(_MEMORY, os.W_OK):
            return _MEMORY
    return None
