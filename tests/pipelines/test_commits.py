"""A batch is in the lake whole and once, wherever the process that writes it is killed."""

from pathlib import Path
from typing import Any

import pytest

from penstock.common.errors import LakeError
from penstock.pipelines.commits import Commits
from penstock.pipelines.lake import Lake, TopicFolder

HOUR = "date=2026-11-15/hour=08"


class Killed(Exception):
    """The process is no more."""


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
    """The process is killed instead of renaming for the so manieth time."""
    renames = iter(range(step))

    def dying(real: Any) -> Any:
        def rename(self: Path, to: Path) -> Any:
            if next(renames, None) is None:
                raise Killed
            return real(self, to)

        return rename

    for method in ("rename", "replace"):
        monkeypatch.setattr(Path, method, dying(getattr(Path, method)))


@pytest.mark.parametrize("step", range(6))
def test_a_batch_is_in_the_lake_whole_and_once_wherever_it_was_killed(
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
        except Killed:
            assert step < 5  # four files, and what says that they belong to the lake

    after = Commits(topic)
    if after.state.next_seqs == {"1": 10}:
        stage(after, "second")
        after.commit({"1": 20}, messages=4, rejected=2)

    assert 2 * ["first-1.parquet", "first-2.parquet", "second-1.parquet", "second-2.parquet"] == (
        names(topic)
    )
    assert ({"1": 20}, 8, 4) == (after.state.next_seqs, after.state.messages, after.state.rejected)


def test_a_nodes_number_never_decreases(topic: TopicFolder) -> None:
    commits = Commits(topic)
    commits.commit({"1": 10, "2": 7}, messages=4, rejected=0)
    commits.commit({"1": 12, "2": 3}, messages=2, rejected=0)

    assert {"1": 12, "2": 7} == Commits(topic).state.next_seqs


def test_what_was_merged_away_since_is_not_missed(topic: TopicFolder) -> None:
    commits = Commits(topic)
    stage(commits, "first")
    commits.commit({"1": 10, "2": 7}, messages=4, rejected=2)
    for file in topic.files():
        file.unlink()

    assert {"1": 10, "2": 7} == Commits(topic).state.next_seqs
    assert [] == topic.files()


def test_a_state_that_cannot_be_read_is_refused(topic: TopicFolder) -> None:
    topic.committed.write_text("{")

    with pytest.raises(LakeError, match=r"cannot read .*committed\.json"):
        Commits(topic)
