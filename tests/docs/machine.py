"""A machine to follow the docs on, where nothing but the docs has happened yet.

It is this one, seen through namespaces of the kernel: a network of its own, in which the default
ports are free and 10.0.0.* is this machine as well, and folders of the system's that are empty. So
commands can be run as they stand in the docs, beside whatever else runs here.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Machine", "NoNamespacesError", "new_machine"]

# A disk that a test beside us has mounted is let go of: with its copy here it would not be gone
# when that test unmounts it.
_SET_UP = """
set -e
mount --make-rprivate /
while read -r device path rest; do
    case $path in */pytest-*/disk) umount -l "$path" ;; esac
done </proc/mounts
ip link set lo up
ip address add 10.0.0.1/24 dev lo
for folder in /mnt /var/lib /var/log; do mount -t tmpfs none $folder; done
echo ready
exec sleep infinity
"""


class NoNamespacesError(Exception):
    """This machine does not let us make them; the text says why."""


class Machine:
    """Runs commands in the namespaces of a process, for as long as that lives."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def inside(self, *command: str) -> list[str]:
        """The command that runs `command` there, and becomes it: the process is the same."""
        return ["nsenter", "--target", str(self._pid), "--net", "--mount", "--", *command]


@contextmanager
def new_machine() -> Iterator[Machine]:
    """Raises NoNamespacesError where that is not allowed."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise NoNamespacesError("namespaces take Linux, root, util-linux and iproute2")
    command = ["unshare", "--net", "--mount", "sh", "-c", _SET_UP]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "ready\n":
                raise NoNamespacesError(f"no namespaces here: {holder.stderr.read().strip()}")
            yield Machine(holder.pid)
        finally:
            holder.kill()
