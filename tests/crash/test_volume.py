"""What we rely on when a file system is synced as a whole, on the system that runs this."""

import os
from contextlib import ExitStack, closing

import pytest
from tests.crash.disks import DISK_BYTES, Disk

from penstock.log.files import RealFiles
from penstock.log.volume import RealVolume, maybe_real_volume

pytestmark = pytest.mark.crash


def volume_of(disk: Disk) -> RealVolume:
    volume = maybe_real_volume(str(disk.path))
    if volume is None:
        pytest.skip("no ext4 of Linux 5.17 or later")
    return volume


def test_a_loss_is_told(thin_disk: Disk) -> None:
    with ExitStack() as stack:
        volume = stack.enter_context(closing(volume_of(thin_disk)))
        loser = stack.enter_context(
            closing(RealFiles().open(str(thin_disk.path / "loser"), "create"))
        )
        volume.sync()
        loser.write(0, os.urandom(DISK_BYTES // 2))
        loser.start_sync()

        with pytest.raises(OSError, match=r"Input/output error|No space left on device"):
            volume.sync()
        assert 1 == volume.losses


def test_a_file_system_that_has_given_up_is_not_taken_for_synced(disk: Disk) -> None:
    with closing(volume_of(disk)) as volume:
        (disk.path / "file").write_bytes(b"x")
        disk.break_down()

        with pytest.raises(OSError, match=r"Read-only file system|Input/output error"):
            volume.sync()
