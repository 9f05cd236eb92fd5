"""Pytest fixtures for tests with data paths. Import them into a conftest.py.

`logs_stay_sound` runs for every test: it checks all data paths that the test has opened. A test
that damages one on purpose requests `damaged_on_purpose`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.storage import DataPath, Files, Issue, LogSettings, RealFiles, check_data_path
from penstock.storage.files import Remover
from penstock.testing.files import FaultyFiles, MemoryFiles

__all__ = ["damage_in", "damaged_on_purpose", "data_path", "logs_stay_sound", "memory_files"]


@pytest.fixture(autouse=True)
def logs_stay_sound(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """After the test, check every data path that was opened in this process."""
    opened: dict[tuple[str, int], tuple[str, Files]] = {}
    real_open = DataPath.open

    def recording_open(
        path: str,
        settings: LogSettings,
        files: Files | None = None,
        remover: Remover | None = None,
        **replication: Any,
    ) -> DataPath:
        files = files or RealFiles()
        data_path = real_open(path, settings, files, remover, **replication)
        opened[path, id(files)] = path, files
        return data_path

    monkeypatch.setattr(DataPath, "open", recording_open)
    yield
    if "damaged_on_purpose" not in request.fixturenames:
        damage = [found for path, files in opened.values() for found in damage_in(path, files)]
        assert not damage


def damage_in(path: str, files: Files) -> list[Issue]:
    """Damage in a data path; empty if the path does not exist any more. Open files in memory are
    closed as by a crash."""
    if isinstance(files, FaultyFiles):
        files = files.files
    if isinstance(files, MemoryFiles):
        files.crash()
    try:
        files.list_names(path)
    except FileNotFoundError:
        return []
    return [finding for finding in check_data_path(path, files) if finding.is_damage]


@pytest.fixture
def damaged_on_purpose() -> None:
    """Disable `logs_stay_sound` for a test that damages its data paths."""


@pytest.fixture
def data_path(tmp_path: Path) -> str:
    """An empty folder on the real disk."""
    (tmp_path / "data").mkdir()
    return str(tmp_path / "data")


@pytest.fixture
def memory_files() -> MemoryFiles:
    """Files in memory with an empty folder called `data`."""
    files = MemoryFiles()
    files.make_folder("data")
    files.sync_folder("")
    return files
