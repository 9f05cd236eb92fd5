"""A disk for one test: an ext4 file system in a file, which can be filled, damaged and suspended.

It needs Linux, root, a loop device and e2fsprogs; otherwise the test is skipped.
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

__all__ = ["UNMOUNT_COPIES", "Disk", "disk", "fill_disk"]

# Shell commands for the start of a process with its own mount namespace. Such a namespace has a
# copy of each mounted disk, and the copy keeps the loop device in use when its test unmounts it.
UNMOUNT_COPIES = """
while read -r device path rest; do
    case $path in */pytest-*/disk) umount -l "$path" ;; esac
done </proc/mounts
"""

DISK_BYTES = 16 * 1024 * 1024


class Disk:
    """An ext4 file system, mounted at `path`."""

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
        # The kernel releases the loop device a moment later. A mount before that would use the
        # cache of the old device, which still contains errors that have been repaired.
        image = str(self._image)
        wait_until(
            lambda: not run("losetup", "--associated", image), "the loop device to be released"
        )

    def repair(self) -> None:
        """Unmount, repair and mount a damaged file system, as an administrator does."""
        self.unmount()
        # Exit code 1: errors were found and repaired.
        code = subprocess.run(["e2fsck", "-fy", self._image], check=False, capture_output=True)
        assert code.returncode in (0, 1), code.stdout.decode()
        self.mount()

    def fill(self) -> Path:
        """Use up all free space. Returns the file that occupies it."""
        return fill_disk(self.path)

    def set_writable(self, is_writable: bool) -> None:
        """Fails if a file is open for writing."""
        run("mount", "-o", f"remount,{'rw' if is_writable else 'ro'}", str(self.path))

    def break_down(self) -> None:
        """Make the kernel detect an error in the file system, which then becomes read-only."""
        trigger = Path("/sys/fs/ext4", Path(self._device).name, "trigger_fs_error")
        trigger.write_text("1\n", encoding="ascii")

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """During the block, writes and fsyncs block."""
        run("fsfreeze", "--freeze", str(self.path))
        try:
            yield
        finally:
            run("fsfreeze", "--unfreeze", str(self.path))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        # `make test` installs e2fsprogs.
        pytest.skip("a test disk needs Linux, root and e2fsprogs")
    made = Disk(tmp_path)
    try:
        made.make()
    except subprocess.CalledProcessError as failure:
        # Containers can forbid mounts even to root.
        pytest.skip(f"cannot mount a test disk:  {failure.stderr.strip()}")
    yield made
    made.unmount()


def run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout


def fill_disk(folder: Path) -> Path:
    """Use up all free space of the file system of a folder. Returns the file that occupies it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for piece in (bytes(1 << 16), b"x"):
            try:
                while file.write(piece):
                    pass
            except OSError:
                continue
    return filler
