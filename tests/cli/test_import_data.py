"""`penstock import` says what it found, and what became of it."""

from pathlib import Path

import pytest
from tests.migration.reference_files import OldMessage, record, write_metadata, write_queue

from penstock.cli.penstock import main


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    write_metadata(folder, {"orders": ["billing"]})
    write_queue(folder, "orders", [OldMessage(number) for number in range(5)])
    write_queue(folder, "orders:billing", [OldMessage(number) for number in range(1200)], read=100)
    return folder


def test_a_dry_run_counts(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["import", str(old), "--dry-run"])
    assert [
        "topic   channel  depth  found   bytes",
        "orders  -            5      5      45",
        "orders  billing  1,100  1,100  12,300",
        "1,105 messages of 1 topic and 1 channel can be imported; nothing has been written",
    ] == capsys.readouterr().out.splitlines()


def test_what_is_whole_ends_well(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = old.parent / "new"

    assert 0 == main(["import", str(old), "--data-path", str(new)])
    assert (
        f"1,105 messages of 1 topic and 1 channel imported into {new}, read back and compared"
    ) == capsys.readouterr().out.splitlines()[-1]


def test_what_is_damaged_or_missing_is_named(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, new = old / "orders.diskqueue.000000.dat", old.parent / "new"
    size = len(record(OldMessage(0)))
    file.write_bytes(file.read_bytes()[: 2 * size] + bytes(size) + record(OldMessage(3)))

    assert 1 == main(["import", str(old), "--data-path", str(new)])
    said = capsys.readouterr().out.splitlines()
    stretch = f"{file.name}: bytes {2 * size} to {3 * size - 1} are no record"
    assert [
        f"DAMAGE: {stretch}; kept in {new}/import-damage",
        "MISSING: orders should have 2 messages more than could be found",
    ] == said[3:5]
    assert said[5].endswith("read back and compared; what is missing or damaged stands above")


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ([], 2, "Error: where to? name --data-path, or look first with --dry-run"),
        (["--data-path", "{old}"], 2, "Error: --data-path must be another folder than"),
        (["--data-path", "{old}/../none/new"], 1, "penstock: cannot make "),
        (["--data-path", "{old}/nsqd.dat"], 1, "penstock: cannot make "),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    old: Path, args: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code == main(["import", str(old), *(arg.format(old=old) for arg in args)])
    assert capsys.readouterr().err.splitlines()[-1].startswith(why)
