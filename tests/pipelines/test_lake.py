"""Creating and opening lakes, and the folders of topics."""

import json
from pathlib import Path

import pytest

from penstock.common.errors import LakeError
from penstock.pipelines.lake import Lake, maybe_topic_name, topic_folder_name


def test_a_created_lake_can_be_opened_and_created_again(tmp_path: Path) -> None:
    made = Lake.create(tmp_path / "new" / "lake")
    before = sorted(made.path.iterdir())
    Lake.create(made.path)

    assert made.path == Lake.open(made.path).path
    assert before == sorted(made.path.iterdir())


def test_a_folder_that_is_not_a_lake_is_rejected_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    for use in (Lake.open, Lake.create):
        with pytest.raises(LakeError, match=r"is not a Penstock lake \(no _lake\.json\)"):
            use(tmp_path)
    with pytest.raises(LakeError, match="no such folder"):
        Lake.open(tmp_path / "nowhere")
    with pytest.raises(LakeError, match="is not a folder"):
        Lake.create(tmp_path / "holiday.jpg")

    assert ["holiday.jpg"] == [each.name for each in tmp_path.iterdir()]


def test_a_lake_of_a_newer_version_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "_lake.json").write_text(json.dumps({"penstock_lake": 2}))

    with pytest.raises(LakeError, match="version 2: upgrade Penstock"):
        Lake.create(tmp_path)


@pytest.mark.parametrize("topic", ["orders", "Orders", "a.b-c_d", ".", "..", "_x", "1e5", "007"])
def test_folder_names_are_unique_on_any_file_system(topic: str) -> None:
    folder = topic_folder_name(topic)

    assert topic == maybe_topic_name(folder)
    assert maybe_topic_name(folder.lower()) in (topic, None)


def test_only_one_process_can_lock_a_topic(tmp_path: Path) -> None:
    topic = Lake.create(tmp_path / "lake").topic("orders")
    with (
        topic.locked(),
        pytest.raises(LakeError, match="another process is archiving orders"),
        topic.locked(),
    ):
        pass


@pytest.mark.parametrize("url", ["s3a://bucket/lake", "hdfs:///lake", "file:///tmp/lake"])
def test_a_url_is_rejected_without_side_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (Lake.check_usable, Lake.create, Lake.open):
        for folder in (url, Path(url)):
            with pytest.raises(LakeError, match="must be a local folder, not the URL"):
                use(folder)

    assert [] == list(tmp_path.iterdir())
