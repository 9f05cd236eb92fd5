"""A data path of format 1 is opened and read; new messages are stored in format 2.

`format_1/data_path` was written by nsqd before format 2 existed: several topics, deferred and
requeued messages, finished messages, trimmed segments in the middle of a log, a paused topic. nsqd
was killed, and its last write is incomplete. `format_1/expected.json` is what it reported before.
"""

import json
import shutil
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.common.errors import DataPathError
from penstock.protocol import frames as wire
from penstock.storage import DataPath, LogSettings, RealFiles, TopicStore, check_data_path
from penstock.storage.batch import SEGMENT_MAGIC
from penstock.storage.layout import LOG_ID_BYTES
from penstock.storage.topic_storage import SKIPPED_SEQS

SAMPLE = Path(__file__).parent / "format_1"
EXPECTED: dict[str, Any] = json.loads((SAMPLE / "expected.json").read_text())
TOPICS = sorted(EXPECTED)
WALL_NS = 1_794_980_000_000_000_000
SETTINGS = LogSettings(max_bytes_per_file=4096)
HELLO = [(5).to_bytes(4) + b"hello"]


@pytest.fixture(params=["crash", "power loss"])
def data_path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the sample, as if the process was killed or the machine lost power."""
    path = tmp_path / "data"
    shutil.copytree(SAMPLE / "data_path", path)
    set_boot_id(path, RealFiles().boot_id() if request.param == "crash" else "another")
    return path


def set_boot_id(path: Path, boot_id: str) -> None:
    format_file = path / "penstock.format"
    lines = format_file.read_text().splitlines()
    lines[2] = f"boot {boot_id}"
    format_file.write_text("\n".join(lines) + "\n")


def lost_power(path: Path) -> bool:
    return RealFiles().boot_id() not in (path / "penstock.format").read_text()


def read_all(store: TopicStore) -> list[tuple[int, str, bytes, int]]:
    """Sequence number, id, body and due time of every message."""
    found, seq = [], 0
    while runs := store.log.read(seq):
        for run in runs:
            for at, frame in enumerate(run.frames):
                identity = wire.message_id(frame).decode()
                found.append((run.first_seq + at, identity, wire.body(frame), run.due_ns))
        seq = runs[-1].next_seq
    return found


def expected_messages(topic: str) -> list[tuple[int, str, bytes, int]]:
    return [
        (line["seq"], line["id"], body_of(line), line.get("due_ns", 0))
        for line in EXPECTED[topic]["messages"]
    ]


def body_of(line: dict[str, str]) -> bytes:
    if "body" in line:
        return line["body"].encode()
    return b64decode(line["body_base64"])


@contextmanager
def opened(path: Path) -> Iterator[dict[str, TopicStore]]:
    data_path = DataPath.open(str(path), SETTINGS)
    yield {name: data_path.open_topic(name, wall_ns=WALL_NS)[0] for name in data_path.topics()}
    data_path.close()


def test_every_message_and_its_progress_are_read(data_path: Path) -> None:
    with opened(data_path) as stores:
        assert TOPICS == sorted(stores)
        for topic, store in stores.items():
            assert expected_messages(topic) == read_all(store)
            check_progress(topic, store)


def check_progress(topic: str, store: TopicStore) -> None:
    expected = EXPECTED[topic]
    assert sorted(expected["channels"]) == sorted(store.cursors.progress)
    gaps = store.log.gaps(expected["first_seq"], expected["next_seq"])
    assert [tuple(gap) for gap in expected["gaps"]] == gaps
    # The channel of a paused topic gets its messages when the topic is unpaused.
    for channel, counts in expected["channels"].items() if topic != "paused" else ():
        progress = store.cursors.progress[channel]
        still_open = progress.open_ranges(expected["first_seq"], store.log.next_seq)
        count = sum(end - first for first, end in still_open)
        assert counts["depth"] + counts["deferred"] == count, channel


def test_new_messages_get_a_segment_of_format_2(data_path: Path) -> None:
    is_power_loss = lost_power(data_path)
    before = set((data_path / "topics/orders").glob("*.log"))
    known = EXPECTED["orders"]["next_seq"]
    with opened(data_path) as stores:
        log = stores["orders"].log
        if is_power_loss:
            assert known + SKIPPED_SEQS <= log.next_seq
        else:
            assert known == log.next_seq
        log.append(HELLO, WALL_NS)

    (added,) = set((data_path / "topics/orders").glob("*.log")) - before
    assert SEGMENT_MAGIC == added.read_bytes()[:4]
    assert bytes.fromhex(log.log_id) == added.read_bytes()[16:32]
    assert "format 2\n" in (data_path / "penstock.format").read_text()
    assert [] == [issue for issue in check_data_path(data_path) if issue.is_damage]
    with opened(data_path) as stores:
        assert HELLO == [frame for run in stores["orders"].log.read(known) for frame in run.frames]


def test_log_ids_are_chosen_once(data_path: Path) -> None:
    with opened(data_path) as stores:
        ids = {topic: store.log.log_id for topic, store in stores.items()}

    assert len(TOPICS) == len(set(ids.values()))
    assert {2 * LOG_ID_BYTES} == {len(log_id) for log_id in ids.values()}
    with opened(data_path) as stores:
        assert ids == {topic: store.log.log_id for topic, store in stores.items()}


def test_old_segments_stay_as_they_are(data_path: Path) -> None:
    before = {path: path.read_bytes() for path in data_path.rglob("*.log")}
    with opened(data_path) as stores:
        for store in stores.values():
            store.log.append(HELLO, WALL_NS)

    for path, data in before.items():
        kept = path.read_bytes()
        # The incomplete batch at the end of one segment is removed.
        assert kept == data[: len(kept)]
        assert len(data) - len(kept) in (0, 100)


def test_nothing_else_is_written_before_the_version_is_raised(data_path: Path) -> None:
    """Otherwise an older release would open the data path, and misread the new files."""
    (data_path / "penstock.format.new").mkdir()
    (data_path / "penstock.format.new" / "x").touch()  # so that the format file cannot be written
    before = {path: path.read_bytes() for path in data_path.rglob("*") if path.is_file()}

    with pytest.raises(DataPathError, match="cannot write to data path"):
        DataPath.open(str(data_path), SETTINGS)

    assert before == {path: path.read_bytes() for path in data_path.rglob("*") if path.is_file()}
