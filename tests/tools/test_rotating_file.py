"""The files of a topic on a real disk, with a manual clock."""

import gzip
import os
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.common.clock import SECOND_NS
from penstock.common.errors import ConfigError, StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.testing import ManualClock
from penstock.tools.nsq_to_file_options import NsqToFileOptions
from penstock.tools.rotating_file import FileNames, RotatingFile, fill_revision

QUIET = Logger("", LogLevel.FATAL)


class Folder:
    """Writes files into a folder and reads them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()

    def files(self, **options: Any) -> RotatingFile:
        given = {
            "output_dir": str(self.path / "out"),
            "filename_format": "t<REV>.<DATETIME>.log",
            "datetime_format": "%H",
            **options,
        }
        every = NsqToFileOptions(**given)
        names = FileNames(every, "t", hostname="h", pid=1)
        return RotatingFile(every, names, QUIET, self.clock)

    def found(self, folder: str = "out") -> dict[str, bytes]:
        """Content of the files by name, without the hour."""
        return {
            path.name.replace(f".{self.hour}", ""): path.read_bytes()
            for path in sorted((self.path / folder).iterdir())
        }

    @property
    def hour(self) -> str:
        return FileNames(
            NsqToFileOptions(filename_format="<DATETIME>", datetime_format="%H"),
            "t",
            hostname="",
            pid=0,
        ).at(self.clock.wall_ns() / SECOND_NS)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_lines_are_written_at_once_and_continued(folder: Folder) -> None:
    files = folder.files()

    assert files.write([b"one", b"two"])
    assert not files.write([b"three"])
    assert {"t.log": b"one\ntwo\nthree\n"} == folder.found()
    files.close()
    folder.files().write([b"four"])
    assert {"t.log": b"one\ntwo\nthree\nfour\n"} == folder.found()


def test_a_relative_folder_works(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    files = folder.files(output_dir="out", work_dir="out/")
    files.write([b"one"])
    files.close()

    assert [b"one\n"] == list(folder.found().values())


def test_a_new_hour_starts_a_new_file(folder: Folder) -> None:
    files = folder.files()
    files.write([b"one"])
    first = folder.hour
    folder.clock.advance(3600 * SECOND_NS)

    assert files.write([b"two"])
    assert {f"t.{first}.log": b"one\n", "t.log": b"two\n"} == folder.found()


def test_a_file_is_rotated_above_rotate_size(folder: Folder) -> None:
    files = folder.files(rotate_size=7)
    files.write([b"one", b"two", b"three", b"four"])

    expected = {"t-000000.log": b"one\ntwo\n", "t-000001.log": b"three\nfour\n"}
    assert expected == folder.found()
    # The existing size counts.
    files.close()
    folder.files(rotate_size=7).write([b"five"])
    assert {**expected, "t-000002.log": b"five\n"} == folder.found()


def test_a_file_is_rotated_after_rotate_interval(folder: Folder) -> None:
    files = folder.files(rotate_interval_ns=SECOND_NS)
    files.write([b"one"])
    folder.clock.advance(SECOND_NS)
    assert not files.write([b"two"])
    folder.clock.advance(1)
    assert files.write([b"three"])

    assert {"t-000000.log": b"one\ntwo\n", "t-000001.log": b"three\n"} == folder.found()
    # A file is not continued after a restart.
    folder.files(rotate_interval_ns=SECOND_NS).write([b"four"])
    assert b"four\n" == folder.found()["t-000002.log"]


@pytest.mark.parametrize(("skips", "expected"), [(False, 2), (True, 1)])
def test_an_interval_without_messages_has_an_empty_file_unless_skipped(
    folder: Folder, skips: bool, expected: int
) -> None:
    files = folder.files(rotate_interval_ns=SECOND_NS, skip_empty_files=skips)
    files.write([b"one"])
    folder.clock.advance(2 * SECOND_NS)
    files.rotate_if_due()
    files.rotate_if_due()

    assert expected == len(folder.found())


def test_every_sync_ends_a_gzip_member(folder: Folder) -> None:
    files = folder.files(gzip=True)
    files.write([b"one", b"two"])
    files.sync()
    [first] = folder.found().values()
    files.sync()
    files.write([b"three"])
    files.sync()
    [both] = folder.found().values()
    files.write([b"not synced, and not there for certain"])

    assert b"one\ntwo\n" == gzip.decompress(first)
    assert both.startswith(first)
    assert b"three\n" == gzip.decompress(both.removeprefix(first))


def test_a_compressed_file_is_never_continued(folder: Folder) -> None:
    for body in (b"one", b"two"):
        files = folder.files(gzip=True)
        files.write([body])
        files.close()

    found = {name: gzip.decompress(data) for name, data in folder.found().items()}
    assert {"t-000000.log.gz": b"one\n", "t-000001.log.gz": b"two\n"} == found


def test_an_empty_compressed_file_is_valid_gzip(folder: Folder) -> None:
    files = folder.files(gzip=True)
    files.rotate_if_due()
    files.close()

    assert [b""] == [gzip.decompress(data) for data in folder.found().values()]


def test_a_cut_off_line_is_not_continued(folder: Folder) -> None:
    files = folder.files()
    files.write([b"whole"])
    files.close()
    [path] = (folder.path / "out").iterdir()
    path.write_bytes(b"whole\nhal")

    folder.files().write([b"half"])
    assert {"t.log": b"whole\nhal\nhalf\n"} == folder.found()


class TestWorkDir:
    def files(self, folder: Folder, **options: Any) -> RotatingFile:
        return folder.files(work_dir=str(folder.path / "work"), **options)

    def test_a_finished_file_is_moved(self, folder: Folder) -> None:
        files = self.files(folder)
        files.write([b"one"])
        files.sync()
        assert ({"t-000000.log": b"one\n"}, {}) == (folder.found("work"), folder.found())
        files.close()
        assert ({}, {"t-000000.log": b"one\n"}) == (folder.found("work"), folder.found())

    def test_an_existing_revision_is_skipped(self, folder: Folder) -> None:
        for body in (b"one", b"two"):
            files = self.files(folder)
            files.write([body])
            files.close()

        assert {"t-000000.log": b"one\n", "t-000001.log": b"two\n"} == folder.found()

    def test_a_file_created_meanwhile_is_not_overwritten(self, folder: Folder) -> None:
        files = self.files(folder)
        files.write([b"ours"])
        for number in (0, 1):
            theirs = folder.path / "out" / f"t-00000{number}.{folder.hour}.log"
            theirs.write_bytes(b"theirs")
        files.close()

        expected = {
            "t-000000.log": b"theirs",
            "t-000001.log": b"theirs",
            "t-000002.log": b"ours\n",
        }
        assert expected == folder.found()
        assert {} == folder.found("work")


def test_sync_syncs_the_file_and_the_folders_it_is_new_in(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), folder.path))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    files = folder.files(filename_format="a/b/t.log")
    files.write([b"one"])
    assert [".", "out", "out/a"] == synced
    files.sync()
    files.write([b"two"])
    files.sync()

    assert ["out/a/b/t.log", "out/a/b", "out/a/b/t.log"] == synced[3:]


def test_a_disk_error_is_reported_in_one_line(folder: Folder) -> None:
    (folder.path / "out").write_text("no folder")

    with pytest.raises(StorageError, match=r"unable to write to .*t.*log: File exists"):
        folder.files().write([b"one"])


AT = 1_700_000_000  # 2023-11-14 22:13:20 UTC, a Tuesday


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def names(topic: str = "orders", **options: Any) -> FileNames:
    return FileNames(NsqToFileOptions(**options), topic, hostname="web1.example.com", pid=42)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "orders.web1.2023-11-14_22.log"),
        ({"gzip": True}, "orders.web1<REV>.2023-11-14_22.log.gz"),
        ({"gzip": True, "filename_format": "<TOPIC><REV>.gz"}, "orders<REV>.gz"),
        ({"rotate_size": 1}, "orders.web1<REV>.2023-11-14_22.log"),
        ({"rotate_interval_ns": 1}, "orders.web1<REV>.2023-11-14_22.log"),
        ({"work_dir": "/x"}, "orders.web1<REV>.2023-11-14_22.log"),
        ({"work_dir": "/tmp"}, "orders.web1.2023-11-14_22.log"),
        ({"host_identifier": "h"}, "orders.h.2023-11-14_22.log"),
        (
            {"host_identifier": "<SHORT_HOST>,<HOSTNAME>"},
            "orders.web1,web1.example.com.2023-11-14_22.log",
        ),
        (
            {"filename_format": "<TOPIC>/<DATETIME>/<PID><TOPIC>", "datetime_format": "%Y/%m/%d"},
            "orders/2023/11/14/42orders",
        ),
        (
            {
                "filename_format": "<DATETIME>",
                "datetime_format": "%a %A %b %B %d %H %I %m %M %p %S %y %Y %z %Z %%",
            },
            "Tue Tuesday Nov November 14 22 10 11 13 PM 20 23 2023 +0000 UTC %",
        ),
        # Letters that NSQ's tool does not know are unchanged.
        ({"filename_format": "<DATETIME>", "datetime_format": "%j %%d %"}, "%j %d %"),
    ],
)
def test_names(options: dict[str, Any], expected: str) -> None:
    assert expected == names(**options).at(AT)


def test_a_revision_has_six_digits() -> None:
    assert "a-000007.log" == fill_revision("a<REV>.log", 7)
    assert "a-1234567.log" == fill_revision("a<REV>.log", 1234567)


def test_no_topic_name_leads_out_of_the_folder() -> None:
    for format_ in ("<TOPIC>/<TOPIC>.log", "<TOPIC>", "a/<TOPIC>/<TOPIC>/b"):
        with pytest.raises(ConfigError, match="would be outside of the output folder"):
            names("..", filename_format=format_)
    assert "...web1.2023-11-14_22.log" == names("..").at(AT)
    assert "./..log" == names(".", filename_format="<TOPIC>/<TOPIC>.log").at(AT)
    assert "orders.log" == names(filename_format="/<TOPIC>.log").at(AT)
