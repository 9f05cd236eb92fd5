"""`penstock log dump` prints the content of a file of a log, even if it is damaged."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.storage.frames import frames

from penstock.cli.penstock import main
from penstock.protocol.frames import render_messages
from penstock.storage import DataPath, LogSettings, RealFiles, RetryState
from penstock.storage.attributes import MessageAttributes, encode_attributes
from penstock.storage.check import stored_log_id
from penstock.storage.index import Checkpoint

SEQ = 1_700_000_000_000_000
WALL_NS = 1000 * SEQ


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    """A topic with two messages in one batch, and a deferred one."""
    data_path = DataPath.open(str(tmp_path), LogSettings())
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    store.log.append(render_messages([b"one", b"\xfftwo"], 0xABC, WALL_NS), WALL_NS)
    store.log.append(render_messages([b"three"], 0xABE, WALL_NS + 5), WALL_NS + 5, WALL_NS + 10**9)
    store.cursors.create("c", SEQ)
    store.cursors.finish("c", SEQ, SEQ + 1)
    store.cursors.set_retry_state("c", SEQ + 2, RetryState(2, 0))
    data_path.close()
    return tmp_path / "topics" / "t"


def log_id_of(topic: Path) -> str:
    log_id = stored_log_id(RealFiles(), str(topic))
    assert log_id is not None
    return log_id.hex()


def dumped(capsys: pytest.CaptureFixture[str], *args: object) -> list[str]:
    assert 0 == main(["log", "dump", *map(str, args)])
    return capsys.readouterr().out.splitlines()


TIME = "2023-11-14T22:13:20.000000000Z"
DEFERRED = "2023-11-14T22:13:20.000000005Z  due 2023-11-14T22:13:21.000000000Z"
BATCHES = [
    f"          40  {SEQ} to {SEQ + 1}  2 messages, 75 bytes  {TIME}",
    f"         171  {SEQ + 2} to {SEQ + 2}  1 message, 39 bytes  {DEFERRED}",
]


def test_the_batches_of_a_segment(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, *batches = dumped(capsys, topic / f"{SEQ:020}.log")

    assert f"           0  log {log_id_of(topic)}, segment {SEQ}" == header
    assert BATCHES == batches


def test_its_messages(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [
        BATCHES[0],
        f"              {SEQ}  0000000000000abc  {TIME}  b'one'",
        f"              {SEQ + 1}  0000000000000abd  {TIME}  b'\\xfftwo'",
    ] == dumped(capsys, topic / f"{SEQ:020}.log", "--messages", "--limit", 4)[1:]


def test_attributes_and_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_path = DataPath.open(str(tmp_path), LogSettings())
    log = data_path.open_topic("t", wall_ns=WALL_NS)[0].log
    log.epoch = 7
    attributes = [
        None,
        MessageAttributes(key=b"k", headers=(("h", b"v"),), expires_ns=WALL_NS, publisher_id=b"p"),
    ]
    frames = render_messages([b"one", b"two"], 0xABC, WALL_NS)
    log.append(frames, WALL_NS, attributes=encode_attributes(attributes))
    data_path.close()
    _, batch, one, two = dumped(capsys, tmp_path / "topics" / "t" / f"{SEQ:020}.log", "--messages")

    assert batch.endswith(f"{TIME}  epoch 7")
    assert one.endswith("b'one'")
    assert two.endswith(f"b'two'  key b'k'  h=b'v'  expires {TIME}  publisher's id b'p'")


@pytest.mark.usefixtures("damaged_on_purpose")
def test_damage_is_reported_in_place(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = topic / f"{SEQ:020}.log"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)

    assert ["          40  BAD  131 bytes: no batch header", BATCHES[1]] == (
        dumped(capsys, path)[1:]
    )


@pytest.mark.usefixtures("damaged_on_purpose")
def test_damaged_header_of_a_segment(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = topic / f"{SEQ:020}.log"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)

    assert ["           0  BAD  40 bytes: no batch header", *BATCHES] == dumped(capsys, path)


def test_invalid_frames_are_printed_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_path = DataPath.open(str(tmp_path), LogSettings())
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    store.log.append(frames("short"), WALL_NS)
    data_path.close()
    path = tmp_path / "topics" / "t" / f"{SEQ:020}.log"

    assert (
        f"              {SEQ}  not a message: b'\\x00\\x00\\x00\\x05short'"
        == dumped(capsys, path, "--messages")[2]
    )


def test_the_changes_in_a_journal(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split(maxsplit=1)[1] for line in dumped(capsys, topic / "cursors.1")]

    assert [
        f"ReserveSeqs(seq={SEQ})",
        f"SetLogId({log_id_of(topic)})",
        f"SetPausePoint(seq={SEQ})",
        f"SetCursor(channel='c', floor={SEQ})",
        f"FinishRanges(channel='c', ranges=[({SEQ}, {SEQ + 1})])",
        f"SetRetryStates(channel='c', states=[({SEQ + 2}, RetryState(attempts=2, due_ns=0))])",
    ] == lines


@pytest.mark.usefixtures("damaged_on_purpose")
def test_damage_in_a_journal(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = topic / "cursors.1"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)

    assert "BAD" in dumped(capsys, path)[0]
    assert "SetCursor" in dumped(capsys, path)[1]


def test_the_entries_of_an_index(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = Checkpoint(266, SEQ + 3, WALL_NS, WALL_NS + 5, deferred_count=1)

    assert [
        str(checkpoint),
        f"          40  {SEQ}  before it up to 1970-01-01T00:00:00.000000000Z",
        f"              {SEQ + 2} to {SEQ + 2}  due 2023-11-14T22:13:21.000000000Z",
    ] == dumped(capsys, topic / f"{SEQ:020}.index")


def test_a_damaged_index(topic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = topic / f"{SEQ:020}.index"
    path.write_bytes(b"?")

    assert 1 == main(["log", "dump", str(path)])
    assert (
        f"penstock: {path.name} is damaged or belongs to another segment; nsqd makes it again\n"
        == (capsys.readouterr().err)
    )


def test_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.log"

    assert 1 == main(["log", "dump", str(path)])
    assert f"penstock: cannot read {path}: No such file or directory\n" == capsys.readouterr().err


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    data_path = DataPath.open(str(tmp_path), LogSettings())
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    for _ in range(5000):
        store.log.append(frames("x"), WALL_NS)
    data_path.close()
    segment = tmp_path / "topics" / "t" / f"{SEQ:020}.log"
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.penstock", "log", "dump", str(segment)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dump:
        assert dump.stdout is not None
        assert dump.stderr is not None
        assert dump.stdout.readline().startswith("           0  ")
        dump.stdout.close()

        assert "" == dump.stderr.read()
