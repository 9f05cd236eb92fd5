"""If the last batch of a log is torn at any byte, recovery restores the batches before it."""

import shutil
from pathlib import Path

import pytest
from tests.storage.frames import WALL_NS, frames, read_all

from penstock.storage import DataPath, LogSettings, check_data_path
from penstock.storage.attributes import encode_attributes

pytestmark = pytest.mark.crash

BATCHES = [["a", "bb", "ccc"], ["d" * 50], ["e", "f" * 30, "g"]]
KEPT = ["a", "bb", "ccc", "d" * 50]


def log_on_disk(path: Path, attributes: bytes) -> tuple[Path, int]:
    """A log that was not closed: its segment, and the position of the last batch in it, which has
    these attributes."""
    path.mkdir()
    data_path = DataPath.open(str(path), LogSettings())
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    last_at = 0
    for batch in BATCHES:
        last_at = store.log.byte_size
        is_last = batch is BATCHES[-1]
        store.log.append(frames(*batch), WALL_NS, attributes=attributes if is_last else b"")
    # The end of the process is the end of its lock.
    data_path._lock.close()
    return path / "topics" / "t" / f"{WALL_NS // 1000:020}.log", last_at


@pytest.mark.parametrize("attributes", [b"", encode_attributes([None, None, None])])
def test_recovery_after_a_crash_at_every_byte_of_the_last_batch(
    tmp_path: Path, attributes: bytes
) -> None:
    segment, last_at = log_on_disk(tmp_path / "original", attributes)
    size = segment.stat().st_size
    assert size > last_at > 0
    for kept in range(last_at, size):
        path = tmp_path / "torn"
        shutil.copytree(tmp_path / "original", path)
        with (path / segment.relative_to(tmp_path / "original")).open("r+b") as file:
            file.truncate(kept)

        data_path = DataPath.open(str(path), LogSettings())
        store, findings = data_path.open_topic("t", wall_ns=WALL_NS)
        assert KEPT == read_all(store.log)
        assert WALL_NS // 1000 + len(KEPT) == store.log.next_seq
        assert [(last_at, kept, False)] * (kept > last_at) == [
            (finding.first_byte, finding.end_byte, finding.is_damage) for finding in findings
        ]
        store.log.append(frames("next"), WALL_NS)
        assert [*KEPT, "next"] == read_all(store.log)
        data_path.close()
        assert [] == check_data_path(path)
        shutil.rmtree(path)
