"""A disk of its own for a test: an ext4 in a file, which the kernel can be told to spoil.

That takes Linux, root, a loop device and e2fsprogs; where there is none of it, the test is skipped,
and says why.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.testing.waiting import wait_until

__all__ = ["UNMOUNT_COPIES", "Disk", "disk"]

# Shell commands for the start of a process with its own mount namespace. Such a namespace has a
# copy of each mounted disk, and the copy keeps the loop device in use when its test unmounts it.
UNMOUNT_COPIES = """
while read -r device path rest; do
    case $path in */pytest-*/disk) umount -l "$path" ;; esac
done </proc/mounts
"""

DISK_BYTES = 16 * 1024 * 1024


class Disk:
    """An ext4, mounted at `path`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        self._device = ""

    def make(self) -> None:
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        run("mkfs.ext4", "-q", "-F", str(self._image))
        self.path.mkdir()
        self.mount()
        shutil.rmtree(self.path / "lost+found")

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))
        self._device = run("findmnt", "-no", "SOURCE", str(self.path)).strip()

    def unmount(self) -> None:
        run("umount", str(self.path))
        # The kernel lets go of the device a moment later, and what is mounted before that is seen
        # through what the device still remembers: errors that have been repaired, for one.
        image = str(self._image)
        wait_until(lambda: not run("losetup", "--associated", image), "the device to be let go")

    def repair(self) -> None:
        """What an administrator does with a file system that has given up."""
        self.unmount()
        # 1: there was something to be put right, and it was.
        code = subprocess.run(["e2fsck", "-fy", self._image], check=False, capture_output=True)
        assert code.returncode in (0, 1), code.stdout.decode()
        self.mount()

    def fill(self) -> Path:
        """Leaves no room for anything. Returns the file that took it."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            for piece in (bytes(1 << 16), b"x"):
                try:
                    while file.write(piece):
                        pass
                except OSError:
                    continue
        return filler

    def set_writable(self, is_writable: bool) -> None:
        """Fails while somebody has a file open for writing."""
        run("mount", "-o", f"remount,{'rw' if is_writable else 'ro'}", str(self.path))

    def break_down(self) -> None:
        """The kernel finds the file system damaged, and lets nobody write to it any more."""
        trigger = Path("/sys/fs/ext4", Path(self._device).name, "trigger_fs_error")
        trigger.write_text("1\n", encoding="ascii")

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Every write and every fsync waits until the block is left."""
        run("fsfreeze", "--freeze", str(self.path))
        try:
            yield
        finally:
            run("fsfreeze", "--unfreeze", str(self.path))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        # Only the system's administrator may mount; `make test` installs e2fsprogs.
        pytest.skip("a disk of its own takes Linux, root and e2fsprogs")
    made = Disk(tmp_path)
    try:
        made.make()
    except subprocess.CalledProcessError as failure:
        # A container can keep this even from root, and what is tested is nsqd, not the host.
        pytest.skip(f"no disk of its own here: {failure.stderr.strip()}")
    yield made
    made.unmount()


def run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout
