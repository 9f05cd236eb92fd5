"""`penstock import` reports what it has found and imported."""

import shutil
from pathlib import Path

import pytest
from tests.migration.reference_files import OldMessage, record, write_metadata, write_queue

from penstock.cli.penstock import main
from penstock.testing.nsqd import run_nsqd


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
        "1,105 messages of 1 topic and 1 channel can be imported; nothing was written",
    ] == capsys.readouterr().out.splitlines()


def test_a_complete_import_exits_with_0(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = old.parent / "new"

    assert 0 == main(["import", str(old), "--data-path", str(new)])
    assert (
        f"1,105 messages of 1 topic and 1 channel imported into {new}, read back and compared"
    ) == capsys.readouterr().out.splitlines()[-1]


def test_damaged_and_missing_messages_are_listed(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, new = old / "orders.diskqueue.000000.dat", old.parent / "new"
    size = len(record(OldMessage(0)))
    file.write_bytes(file.read_bytes()[: 2 * size] + bytes(size) + record(OldMessage(3)))

    assert 1 == main(["import", str(old), "--data-path", str(new)])
    said = capsys.readouterr().out.splitlines()
    stretch = f"{file.name}: bytes {2 * size} to {3 * size - 1} are not a record"
    assert [
        f"DAMAGE: {stretch}; kept in {new}/import-damage",
        "MISSING: 2 messages of orders",
    ] == said[3:5]
    assert said[5].endswith("read back and compared; see above for missing or damaged data")


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ([], 2, "Error: pass --data-path or --dry-run"),
        (["--data-path", "{old}"], 2, "Error: --data-path must differ from"),
        (["--data-path", "{old}/../none/new"], 1, "penstock: cannot make "),
        (["--data-path", "{old}/nsqd.dat"], 1, "penstock: cannot make "),
    ],
)
def test_errors_are_reported_in_one_line(
    old: Path, args: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code == main(["import", str(old), *(arg.format(old=old) for arg in args)])
    assert capsys.readouterr().err.splitlines()[-1].startswith(why)


@pytest.mark.parametrize("target", [["--dry-run"], ["--data-path", "{new}"]])
class TestAPathWithTopicsOfPenstock:
    """Their messages must not be ignored without a message."""

    def refusal(self, path: Path, target: list[str], capsys: pytest.CaptureFixture[str]) -> str:
        new = path.parent / "new"
        before = all_files(path)
        assert 1 == main(["import", str(path), *(each.format(new=new) for each in target)])
        assert (before, False) == (all_files(path), new.exists())
        return capsys.readouterr().err

    def test_without_queues_of_nsq_there_is_nothing_to_import(
        self, tmp_path: Path, target: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "ours"
        path.mkdir()
        with run_nsqd(data_path=path) as nsqd:
            nsqd.publish("orders", b"ours")

        assert (
            f"penstock: {path} is a data path of Penstock (penstock.format), and has no queue of "
            f"NSQ's nsqd: nothing to import, start nsqd with --data-path={path}\n"
        ) == self.refusal(path, target, capsys)

    def test_with_queues_of_nsq_the_error_says_how_to_keep_both(
        self, tmp_path: Path, target: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "mixed"
        path.mkdir()
        with run_nsqd(data_path=path) as nsqd:
            nsqd.publish("orders", b"ours")
        write_queue(path, "orders", [OldMessage(1)])

        assert (
            f"penstock: {path} has queues of NSQ's nsqd and topics of Penstock, which an import "
            "would leave behind: move penstock.format, topics and any shard-*, with a copy of "
            "nsqd.dat, to another folder, start nsqd on it to deliver their messages, and import "
            "again\n"
        ) == self.refusal(path, target, capsys)


def test_a_mixed_path_can_be_separated_as_the_error_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ours, new = tmp_path / "mixed", tmp_path / "ours", tmp_path / "new"
    path.mkdir()
    with run_nsqd(data_path=path) as nsqd:
        nsqd.publish("orders", b"ours")
    write_queue(path, "orders", [OldMessage(1)])
    ours.mkdir()
    for name in ("penstock.format", "topics"):
        (path / name).rename(ours / name)
    shutil.copy(path / "nsqd.dat", ours)

    assert 0 == main(["import", str(path), "--data-path", str(new)])
    assert "1 message of 1 topic and 0 channels imported" in capsys.readouterr().out
    for folder, body in ((ours, b"ours"), (new, OldMessage(1).content)):
        with run_nsqd(data_path=folder) as nsqd:
            assert body == nsqd.consumer("orders", "c").message().body


def test_an_unused_data_path_of_penstock_does_not_keep_queues_of_nsq_from_being_imported(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = old.parent / "empty"
    empty.mkdir()
    with run_nsqd(data_path=empty):
        pass
    for name in ("penstock.format", "topics"):
        (empty / name).rename(old / name)

    assert 0 == main(["import", str(old), "--dry-run"])
    assert "1,105 messages of 1 topic and 1 channel" in capsys.readouterr().out


def all_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
