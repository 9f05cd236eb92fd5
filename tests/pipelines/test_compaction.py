"""Small files become few, and an hour is never seen without a message or with one twice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.common.errors import LakeError
from penstock.pipelines import compaction
from penstock.pipelines.compaction import Compaction
from penstock.pipelines.lake import Lake, TopicFolder

HOUR = "date=2026-11-15/hour=08"


class Killed(Exception):
    """The process is no more."""


@pytest.fixture
def topic(tmp_path: Path) -> TopicFolder:
    """Ten small files, with the messages 0 to 9."""
    folder = Lake.create(tmp_path / "lake").topic("orders")
    (folder.messages / HOUR).mkdir(parents=True)
    for number in range(10):
        pq.write_table(pa.table({"seq": [number]}), folder.messages / HOUR / f"{number}.parquet")
    return folder


def merge(files: Sequence[Path], target: Path, _count: int) -> None:
    target.mkdir()
    pq.write_table(pa.concat_tables(map(pq.read_table, files)), target / "merged.parquet")
    (target / "_SUCCESS").touch()


def seqs(topic: TopicFolder) -> list[int]:
    return sorted(seq for file in topic.files() for seq in pq.read_table(file)["seq"].to_pylist())


def test_many_small_files_become_one(topic: TopicFolder) -> None:
    assert 9 == Compaction(topic, merge).run()
    assert ["merged.parquet"] == [file.name for file in (topic.messages / HOUR).iterdir()]
    assert list(range(10)) == seqs(topic)
    assert 0 == Compaction(topic, merge).run(small_files=2)


def test_large_files_stay_as_they_are(topic: TopicFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    large = topic.messages / HOUR / "large.parquet"
    pq.write_table(pa.table({"seq": list(range(10, 5000))}), large)
    monkeypatch.setattr(compaction, "FILE_BYTES", large.stat().st_size)
    content = large.read_bytes()
    Compaction(topic, merge).run()

    assert content == large.read_bytes()
    assert list(range(5000)) == seqs(topic)


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("step", range(4))
def test_nothing_is_lost_or_twice_wherever_it_was_killed(
    topic: TopicFolder, monkeypatch: pytest.MonkeyPatch, step: int, *, can_exchange: bool
) -> None:
    """Each step is a change of names, before which it is killed."""
    steps = iter(range(step))

    def dying(real: Any) -> Any:
        def change(*args: Any) -> Any:
            if next(steps, None) is None:
                raise Killed
            return real(*args)

        return change

    with monkeypatch.context() as patch:
        for method in ("rename", "replace"):
            patch.setattr(Path, method, dying(getattr(Path, method)))
        exchange = dying(compaction._exchange) if can_exchange else lambda *_: False
        patch.setattr(compaction, "_exchange", exchange)
        try:
            Compaction(topic, merge).run()
        except Killed:
            if can_exchange:
                assert list(range(10)) == seqs(topic)

    Compaction(topic, merge)
    assert list(range(10)) == seqs(topic)
    assert not (topic.staging / "compaction").exists()


def test_a_merge_that_loses_rows_is_not_taken(topic: TopicFolder) -> None:
    with pytest.raises(LakeError, match="10 messages became 9"):
        Compaction(topic, lambda files, to, count: merge(files[1:], to, count)).run()

    assert list(range(10)) == seqs(topic)
