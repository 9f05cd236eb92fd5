"""Checks of the data path and its disk: permissions, file system, free space, fsync time."""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from penstock.common.errors import DataPathError
from penstock.storage.data_dir import lock_data_path, verify_data_path
from penstock.storage.files import RealFiles
from penstock.storage.layout import FORMAT_NAME
from penstock.tools.doctor.diagnosis import Diagnosis, fail, ok, warn

__all__ = [
    "data_path",
    "file_system",
    "free_space",
    "fsync",
    "judge_file_system",
    "judge_free_space",
    "judge_fsync",
]

_GIB = 1 << 30
FREE_MIN_BYTES = _GIB // 10
FREE_GOOD_BYTES = 2 * _GIB
FSYNC_GOOD_SECONDS = 0.02
_FSYNCS = 5

# Locks and fsync depend on a server.
_REMOTE = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}
_IN_MEMORY = {"ramfs", "tmpfs"}


def data_path(path: str) -> Diagnosis:
    folder = _existing(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        return fail(f"{folder} is not writable", f"chown {_user()} {folder}")
    if not Path(path).exists():
        return ok(f"{path}, does not exist yet", f"penstock up creates it; for nsqd: mkdir {path}")
    files = RealFiles()
    try:
        lock_data_path(path, files, shared=True).close()
        is_ours = verify_data_path(path, files) is not None
    except DataPathError as error:
        if isinstance(error.__cause__, BlockingIOError):
            return ok(f"{path}, in use by a running nsqd")
        return fail(str(error), "choose another folder with --data-path")
    if is_ours or any(Path(path).glob(f"*/{FORMAT_NAME}")):
        return ok(f"{path}, a Penstock data path")
    return ok(f"{path}, empty or not yet a data path")


def file_system(path: str) -> Diagnosis:
    mount, kind = _mount_of(_existing(path))
    return judge_file_system(kind, mount)


def judge_file_system(kind: str, mount: str) -> Diagnosis:
    found = f"{kind} at {mount}"
    if kind in _IN_MEMORY:
        return warn(found, "file system in memory: a reboot loses all messages")
    if kind in _REMOTE or kind.startswith("fuse."):
        return warn(found, "use a local disk: locks and fsync may be unreliable over a network")
    if kind == "overlay":
        return warn(found, "deleted with its container: mount a volume for the data path")
    return ok(found)


def free_space(path: str) -> Diagnosis:
    usage = shutil.disk_usage(_existing(path))
    return judge_free_space(usage.free, usage.total)


def judge_free_space(free: int, total: int) -> Diagnosis:
    found = f"{free / _GIB:.1f} GiB of {total / _GIB:.1f} GiB"
    hint = "free some space: nsqd refuses publishes when the disk is full"
    if free < FREE_MIN_BYTES:
        return fail(found, hint)
    return warn(found, hint) if free < FREE_GOOD_BYTES else ok(found)


def fsync(path: str) -> Diagnosis:
    """Measure the time of an fsync, which is the cost of --sync-every=1."""
    with tempfile.TemporaryFile(dir=_existing(path)) as file:
        return judge_fsync(statistics.median(_timed_write(file.fileno()) for _ in range(_FSYNCS)))


def judge_fsync(seconds: float) -> Diagnosis:
    found = f"{seconds * 1000:.1f} ms"
    if seconds > FSYNC_GOOD_SECONDS:
        return warn(found, "slow: with --sync-every=1, each publish waits this long")
    return ok(found)


def _timed_write(descriptor: int) -> float:
    began = time.perf_counter()
    os.write(descriptor, bytes(4096))
    os.fsync(descriptor)
    return time.perf_counter() - began


def _existing(path: str) -> str:
    """The folder, or its nearest existing parent."""
    folder = Path(path).absolute()
    while not folder.is_dir():
        folder = folder.parent
    return str(folder)


def _mount_of(folder: str) -> tuple[str, str]:
    """Mount point and type of the file system of a folder."""
    real = os.path.realpath(folder)
    mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    best = ("/", "unknown")
    for line in mounts.splitlines():
        _, mount, kind = line.split()[:3]
        is_above = os.path.commonpath([real, mount]) == mount
        if is_above and len(mount) >= len(best[0]):
            best = mount, kind
    return best


def _user() -> str:
    return str(os.geteuid())
