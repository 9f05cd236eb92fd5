"""`penstock check` reports whether a data path is intact, by its output and exit code."""

import shutil
from pathlib import Path

import pytest
from tests.storage.frames import WALL_NS, frames

from penstock.cli.penstock import main
from penstock.storage import DataPath, LogSettings, RealFiles
from penstock.storage.batch import SEGMENT_HEADER_BYTES

SEGMENT = f"topics/t/{WALL_NS // 1000:020}.log"


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    data_path = DataPath.open(str(tmp_path), LogSettings())
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    for body in "abc":
        store.log.append(frames(body), WALL_NS)
    data_path.close()
    return tmp_path


def test_an_intact_data_path_exits_with_0(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["check", str(filled)])
    assert f"{filled} is sound\n" == capsys.readouterr().out


@pytest.mark.usefixtures("damaged_on_purpose")
def test_a_damaged_data_path_exits_with_1(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((filled / SEGMENT).read_bytes())
    size = (len(data) - SEGMENT_HEADER_BYTES) // 3
    second_at = SEGMENT_HEADER_BYTES + size
    data[second_at + 60] ^= 1
    (filled / SEGMENT).write_bytes(data)
    seq = WALL_NS // 1000 + 1

    where = f"bytes {second_at} to {second_at + size - 1}, messages {seq} to {seq}"
    problem = f"{filled / SEGMENT}: the frames do not match their checksum ({where})"
    assert 1 == main(["check", str(filled)])
    assert [f"DAMAGE: {problem}", f"{filled} is damaged: 1 finding"] == (
        capsys.readouterr().out.splitlines()
    )


def test_all_data_paths_of_penstock_up_are_checked(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    node = filled.rename(tmp_path_factory.mktemp("penstock-data") / "nsqd-1")

    assert 0 == main(["check", str(node.parent)])
    assert f"{node} is sound\n" == capsys.readouterr().out


def test_all_data_paths_of_shards_are_checked(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = filled / "shard-1"
    shutil.copytree(filled, shard)
    (shard / SEGMENT).with_suffix(".index").write_bytes(b"")

    assert 0 == main(["check", str(filled)])
    sound, note, also_sound = capsys.readouterr().out.splitlines()
    assert [f"{filled} is sound", f"{shard} is sound"] == [sound, also_sound]
    assert note.startswith(f"note: {shard}/")


def test_leftovers_of_a_crash_are_notes(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (filled / SEGMENT).with_suffix(".index").unlink()
    with (filled / SEGMENT).open("r+b") as file:
        file.truncate((filled / SEGMENT).stat().st_size - 1)

    assert 0 == main(["check", str(filled)])
    note, verdict = capsys.readouterr().out.splitlines()
    assert note.startswith(f"note: {filled / SEGMENT}: incomplete batch (bytes ")
    assert f"{filled} is sound" == verdict


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "penstock: cannot open data path {path}: No such file or directory"),
        ("empty", "penstock: {path} is not a data path: it has no penstock.format"),
    ],
)
def test_a_folder_that_is_not_a_data_path_is_an_error(
    tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    path = tmp_path / name

    assert 1 == main(["check", str(path)])
    assert ("", message.format(path=path) + "\n") == capsys.readouterr()


def test_a_data_path_in_use_is_reported(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RealFiles().lock(str(filled))

    assert 1 == main(["check", str(filled)])
    assert capsys.readouterr().err.startswith("penstock: failed to lock data-path: ")
    lock.close()
