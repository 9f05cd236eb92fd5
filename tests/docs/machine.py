"""A fresh machine for the commands of the docs.

It is this machine with its own network and mount namespace: the default ports are free, 10.0.0.*
is local, and /mnt, /var/lib and /var/log are empty. So the commands run unchanged, and other tests
can run at the same time.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.crash.disks import UNMOUNT_COPIES

__all__ = ["Machine", "NoNamespacesError", "new_machine"]

_SET_UP = f"""
set -e
mount --make-rprivate /
{UNMOUNT_COPIES}
ip link set lo up
ip address add 10.0.0.1/24 dev lo
for folder in /mnt /var/lib /var/log; do mount -t tmpfs none $folder; done
echo ready
exec sleep infinity
"""


class NoNamespacesError(Exception):
    """This process cannot create namespaces; the text says why."""


class Machine:
    """Runs commands in the namespaces of a running process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def inside(self, *command: str) -> list[str]:
        """The command line that runs `command` there; `command` keeps the process id."""
        return ["nsenter", "--target", str(self._pid), "--net", "--mount", "--", *command]


@contextmanager
def new_machine() -> Iterator[Machine]:
    """Raises NoNamespacesError if that is not possible."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise NoNamespacesError("namespaces need Linux, root, util-linux and iproute2")
    command = ["unshare", "--net", "--mount", "sh", "-c", _SET_UP]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "ready\n":
                raise NoNamespacesError(f"cannot create namespaces: {holder.stderr.read().strip()}")
            yield Machine(holder.pid)
        finally:
            holder.kill()
