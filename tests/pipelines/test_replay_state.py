"""The state of a replay survives its process and a power loss."""

import json
import os
from pathlib import Path

import pytest

from penstock.common.errors import LakeError
from penstock.pipelines.replay_state import Key, ReplayFile, ReplayState, Sending

STATE = ReplayState(
    ends={"1": 17},
    messages=9,
    done=3,
    key=Key(1_794_787_200_250_000_000, 1, 7),
    sending=Sending(node_id=1, from_seq=5, count=2),
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    ReplayFile(tmp_path, {"topic": "orders"}).save(STATE)

    assert STATE == ReplayFile(tmp_path, {"topic": "orders"}).load()
    assert ReplayFile(tmp_path, {"topic": "clicks"}).load() is None


def test_a_state_in_one_line_is_read(tmp_path: Path) -> None:
    file = ReplayFile(tmp_path, {"topic": "orders"})
    state = {"ends": {"1": 17}, "done": 3, "key": [1, 2, 3], "sending": None}
    file.path.write_text(json.dumps({"replay": {}, "state": state}, separators=(",", ":")))

    assert ReplayState(ends={"1": 17}, done=3, key=Key(1, 2, 3)) == file.load()


def test_file_and_folder_are_synced_in_the_right_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, steps, sync, rename = ReplayFile(tmp_path, {}), [], os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        steps.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        sync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    file.save(STATE)

    assert [f"{file.path.name}.new", "rename", tmp_path.name] == steps


def test_a_state_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"cannot write .* - No such file or directory"):
        ReplayFile(tmp_path / "gone", {}).save(STATE)
