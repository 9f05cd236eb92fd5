"""Commits to a lake, and compaction of its files, with a crash at any step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.common.errors import LakeError
from penstock.pipelines import lake_writer
from penstock.pipelines.lake import Lake, TopicFolder
from penstock.pipelines.lake_writer import Commits, Compaction

HOUR = "date=2026-11-15/hour=08"


class KilledError(Exception):
    """Stands for SIGKILL."""


@pytest.fixture
def topic(tmp_path: Path) -> TopicFolder:
    folder = Lake.create(tmp_path / "lake").topic("orders")
    folder.state.mkdir(parents=True)
    return folder


def stage(commits: Commits, name: str) -> None:
    commits.begin()
    for staged in (commits.staged_messages, commits.staged_rejected):
        (staged / HOUR).mkdir(parents=True)
        for part in ("1", "2"):
            (staged / HOUR / f"{name}-{part}.parquet").write_text(name)


def names(topic: TopicFolder) -> list[str]:
    return [file.name for file in (*topic.files(), *topic.rejected_files())]


def die_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Simulate SIGKILL after this number of renames."""
    renames = iter(range(step))

    def dying(real: Any) -> Any:
        def rename(self: Path, to: Path) -> Any:
            if next(renames, None) is None:
                raise KilledError
            return real(self, to)

        return rename

    for method in ("rename", "replace"):
        monkeypatch.setattr(Path, method, dying(getattr(Path, method)))


@pytest.mark.parametrize("step", range(6))
def test_a_batch_is_committed_once_and_completely_after_a_crash_at_any_step(
    topic: TopicFolder, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before = Commits(topic)
    stage(before, "first")
    before.commit({"1": 10}, messages=4, rejected=2)
    stage(before, "second")
    with monkeypatch.context() as patch:
        die_at(patch, step)
        try:
            before.commit({"1": 20}, messages=4, rejected=2)
        except KilledError:
            assert step < 5  # four files and the commit

    after = Commits(topic)
    if after.state.next_seqs == {"1": 10}:
        stage(after, "second")
        after.commit({"1": 20}, messages=4, rejected=2)

    assert 2 * ["first-1.parquet", "first-2.parquet", "second-1.parquet", "second-2.parquet"] == (
        names(topic)
    )
    assert ({"1": 20}, 8, 4) == (after.state.next_seqs, after.state.messages, after.state.rejected)


def test_the_sequence_number_of_a_node_never_decreases(topic: TopicFolder) -> None:
    commits = Commits(topic)
    commits.commit({"1": 10, "2": 7}, messages=4, rejected=0)
    commits.commit({"1": 12, "2": 3}, messages=2, rejected=0)

    assert {"1": 12, "2": 7} == Commits(topic).state.next_seqs


def test_files_compacted_since_the_commit_are_not_missed(topic: TopicFolder) -> None:
    commits = Commits(topic)
    stage(commits, "first")
    commits.commit({"1": 10, "2": 7}, messages=4, rejected=2)
    for file in topic.files():
        file.unlink()

    assert {"1": 10, "2": 7} == Commits(topic).state.next_seqs
    assert [] == topic.files()


def test_an_unreadable_state_is_an_error(topic: TopicFolder) -> None:
    topic.committed.write_text("{")

    with pytest.raises(LakeError, match=r"cannot read .*committed\.json"):
        Commits(topic)


# Compaction.


@pytest.fixture
def full_topic(tmp_path: Path) -> TopicFolder:
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


def test_many_small_files_become_one(full_topic: TopicFolder) -> None:
    assert 9 == Compaction(full_topic, merge).run()
    assert ["merged.parquet"] == [file.name for file in (full_topic.messages / HOUR).iterdir()]
    assert list(range(10)) == seqs(full_topic)
    assert 0 == Compaction(full_topic, merge).run(small_files=2)


def test_large_files_are_not_rewritten(
    full_topic: TopicFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = full_topic.messages / HOUR / "large.parquet"
    pq.write_table(pa.table({"seq": list(range(10, 5000))}), large)
    monkeypatch.setattr(lake_writer, "FILE_BYTES", large.stat().st_size)
    content = large.read_bytes()
    Compaction(full_topic, merge).run()

    assert content == large.read_bytes()
    assert list(range(5000)) == seqs(full_topic)


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("step", range(4))
def test_no_message_is_lost_or_duplicated_by_a_crash_at_any_step(
    full_topic: TopicFolder, monkeypatch: pytest.MonkeyPatch, step: int, *, can_exchange: bool
) -> None:
    """Each step is a rename; the crash happens before it."""
    steps = iter(range(step))

    def dying(real: Any) -> Any:
        def change(*args: Any) -> Any:
            if next(steps, None) is None:
                raise KilledError
            return real(*args)

        return change

    with monkeypatch.context() as patch:
        for method in ("rename", "replace"):
            patch.setattr(Path, method, dying(getattr(Path, method)))
        exchange = dying(lake_writer._exchange) if can_exchange else lambda *_: False
        patch.setattr(lake_writer, "_exchange", exchange)
        try:
            Compaction(full_topic, merge).run()
        except KilledError:
            if can_exchange:
                assert list(range(10)) == seqs(full_topic)

    Compaction(full_topic, merge)
    assert list(range(10)) == seqs(full_topic)
    assert not (full_topic.staging / "compaction").exists()


def test_a_merge_that_loses_rows_is_discarded(full_topic: TopicFolder) -> None:
    with pytest.raises(LakeError, match="merging 10 messages gave 9"):
        Compaction(full_topic, lambda files, to, count: merge(files[1:], to, count)).run()

    assert list(range(10)) == seqs(full_topic)
