"""A file system is synced as a whole only where that can be relied on."""

import os
import platform
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.files import RealFiles
from penstock.log.volume import RealVolume, maybe_real_volume, start_writing


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[RealVolume]:
    found = maybe_real_volume(str(tmp_path))
    if found is None:
        pytest.skip(f"{tmp_path} is not on an ext4 of Linux 5.17 or later")
    with closing(found):
        yield found


def test_its_files_can_be_told_from_others(volume: RealVolume, tmp_path: Path) -> None:
    with closing(RealFiles().open(str(tmp_path / "file"), "create")) as file:
        assert volume.device == file.device
    with closing(RealFiles().open("/proc/self/status", "read")) as file:
        assert volume.device != file.device


def test_all_of_it_can_be_synced(volume: RealVolume, tmp_path: Path) -> None:
    with closing(RealFiles().open(str(tmp_path / "file"), "create")) as file:
        file.write(0, b"x" * 10_000)
        file.start_sync()
        volume.sync()


@pytest.mark.usefixtures("volume")
def test_what_the_system_refuses_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        start_writing(-1)
    closed = RealVolume(str(tmp_path))
    closed.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.sync()


@pytest.mark.parametrize("release", ["5.16.20", "4.19.0-27-amd64", "3.10"])
def test_an_old_kernel_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    uname = os.uname_result(("Linux", "node", release, "#1", platform.machine()))
    monkeypatch.setattr(os, "uname", lambda: uname)

    assert maybe_real_volume(str(tmp_path)) is None


def test_nor_is_any_other_file_system() -> None:
    assert maybe_real_volume("/dev") is None


@pytest.mark.usefixtures("volume")
def test_nor_where_writing_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise PermissionError(fd)

    monkeypatch.setattr(f"{start_writing.__module__}.start_writing", refuse)

    assert maybe_real_volume(str(tmp_path)) is None
