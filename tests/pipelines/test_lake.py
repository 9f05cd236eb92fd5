"""The folders of a lake: what is one, what is none, and what its topics are called."""

import json
from pathlib import Path

import pytest

from penstock.common.errors import LakeError
from penstock.pipelines.lake import Lake, maybe_topic_name, topic_folder_name


def test_a_lake_that_was_made_is_one_and_stays_as_it_is(tmp_path: Path) -> None:
    made = Lake.create(tmp_path / "new" / "lake")
    before = sorted(made.path.iterdir())
    Lake.create(made.path)

    assert made.path == Lake.open(made.path).path
    assert before == sorted(made.path.iterdir())


def test_what_is_no_lake_is_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    for use in (Lake.open, Lake.create):
        with pytest.raises(LakeError, match=r"is no lake: there is no _lake\.json"):
            use(tmp_path)
    with pytest.raises(LakeError, match="there is no such folder"):
        Lake.open(tmp_path / "nowhere")
    with pytest.raises(LakeError, match="is no folder"):
        Lake.create(tmp_path / "holiday.jpg")

    assert ["holiday.jpg"] == [each.name for each in tmp_path.iterdir()]


def test_a_lake_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_lake.json").write_text(json.dumps({"penstock_lake": 2}))

    with pytest.raises(LakeError, match="version 2, made by a newer Penstock"):
        Lake.create(tmp_path)


@pytest.mark.parametrize("topic", ["orders", "Orders", "a.b-c_d", ".", "..", "_x", "1e5", "007"])
def test_a_topics_folder_is_its_own_whatever_the_file_system(topic: str) -> None:
    folder = topic_folder_name(topic)

    assert topic == maybe_topic_name(folder)
    assert maybe_topic_name(folder.lower()) in (topic, None)


def test_one_process_archives_a_topic(tmp_path: Path) -> None:
    topic = Lake.create(tmp_path / "lake").topic("orders")
    with (
        topic.locked(),
        pytest.raises(LakeError, match="another process archives orders"),
        topic.locked(),
    ):
        pass


@pytest.mark.parametrize("url", ["s3a://bucket/lake", "hdfs:///lake", "file:///tmp/lake"])
def test_a_url_is_refused_and_no_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (Lake.check_usable, Lake.create, Lake.open):
        for folder in (url, Path(url)):
            with pytest.raises(LakeError, match="is a URL, and a lake is a folder"):
                use(folder)

    assert [] == list(tmp_path.iterdir())
