"""The marker says which format a data path has, and how its last run ended."""

import pytest

from penstock.common.errors import DataPathError
from penstock.storage.clean_shutdown import LastEnd, Marker, read_marker, write_marker
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash


@pytest.mark.parametrize("marker", [Marker("boot-1", is_open=True), Marker("b", is_open=False)])
def test_what_is_written_is_read_back(memory_files: MemoryFiles, marker: Marker) -> None:
    write_marker(memory_files, "data", marker)

    assert marker == read_marker(memory_files, "data")
    assert ["penstock.format"] == memory_files.names("data")


def test_without_a_file_there_is_none(memory_files: MemoryFiles) -> None:
    assert None is read_marker(memory_files, "data")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "data/penstock.format is not a Penstock format marker"),
        ("", "data/penstock.format is not a Penstock format marker"),
        (
            "penstock data path\nformat 2\nsomething new\n",
            "data path data has format 2, written by a newer version; this one knows up to 1",
        ),
    ],
)
def test_another_file_or_format_is_refused(
    memory_files: MemoryFiles, text: str, message: str
) -> None:
    memory_files.open("data/penstock.format", "create").write(text.encode(), 0)

    with pytest.raises(DataPathError) as raised:
        read_marker(memory_files, "data")
    assert message == str(raised.value)


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        (Marker("today", is_open=False), LastEnd.CLEAN),
        (Marker("yesterday", is_open=False), LastEnd.CLEAN),
        (Marker("today", is_open=True), LastEnd.CRASH),
        (Marker("yesterday", is_open=True), LastEnd.POWER_LOSS),
    ],
)
def test_it_tells_how_the_last_run_ended(marker: Marker, expected: LastEnd) -> None:
    assert expected is marker.last_end("today")


def test_replacing_it_leaves_a_whole_one_at_every_moment(memory_files: MemoryFiles) -> None:
    old, new = Marker("old", is_open=False), Marker("new", is_open=True)
    files = FaultyFiles(memory_files)
    write_marker(files, "data", old)
    for changes in range(6):
        files.crash_after(changes, written=7)
        try:
            write_marker(files, "data", new)
        except SimulatedCrash:
            files.heal()
        assert read_marker(files, "data") in (old, new)
    assert new == read_marker(files, "data")
