"""Archives: each message exactly once, also with a lost or outdated checkpoint."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.earlier_version import BODIES, copy_data, run_nsqds
from tests.spark.tables import bodies, history, publish

from penstock.common.errors import ConfigError, LakeError, NotConnectedError, PipelineError
from penstock.pipelines import archive as archive_module
from penstock.pipelines.archive import ArchiveConfig, ArchiveResult, archive, check_config
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.lake import Lake
from penstock.pipelines.lake_writer import Commits
from penstock.pipelines.running import Stop
from penstock.pipelines.tables import topic_table
from penstock.testing.nsqd import NsqdProcess


def config(lake: Path, *nsqds: NsqdProcess, topics: Sequence[str], **options: Any) -> ArchiveConfig:
    brokers = Brokers(tuple(nsqd.http_address for nsqd in nsqds))
    return ArchiveConfig(
        topics=tuple(topics), lake=str(lake), brokers=brokers, once=True, **options
    )


def run(spark: SparkSession, wanted: ArchiveConfig) -> list[ArchiveResult]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return archive(spark, wanted, check_config(wanted), Stop())


def ids(spark: SparkSession, lake: Path, topic: str) -> list[str]:
    return sorted(row.id for row in topic_table(spark, Lake.open(lake), topic).collect())


def stored(topic: str, *nsqds: NsqdProcess) -> list[str]:
    return sorted(message["id"] for nsqd in nsqds for message in history(nsqd, topic))


def test_every_message_is_archived_once_with_a_lost_or_outdated_checkpoint(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    folder = Lake(lake).topic("Orders")
    wanted = config(lake, nsqd, other_nsqd, topics=["Orders"], batch_rows=60)
    publish(nsqd, "Orders", map(str, range(100)))
    [first] = run(spark, wanted)
    committed = folder.committed.read_bytes()
    for entry in folder.checkpoint.glob("*/*1*"):  # killed before Spark recorded the batch
        entry.unlink()

    publish(nsqd, "Orders", map(str, range(50)))
    publish(other_nsqd, "Orders", map(str, range(30)))  # a new node
    [second] = run(spark, wanted)
    shutil.rmtree(folder.checkpoint)
    publish(other_nsqd, "Orders", ["late"])
    [last] = run(spark, wanted)

    assert stored("Orders", nsqd, other_nsqd) == ids(spark, lake, "Orders")
    assert [100, 80, 1] == [first.messages, second.messages, last.messages]
    assert 181 == last.total
    assert 0 == nsqd.stats("Orders", "penstock-archive")["depth"]

    folder.committed.write_bytes(committed)  # a lake restored from a backup has a gap
    publish(nsqd, "Orders", ["too late"])
    with pytest.raises(PipelineError, match="was the lake restored from a backup"):
        run(spark, wanted)


def test_a_lake_of_an_earlier_version_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    data = copy_data(tmp_path)
    lake = data / "lake"
    with run_nsqds(data) as nsqds:
        wanted = config(lake, *nsqds, topics=["orders"])
        [first] = run(spark, wanted)
        archived = bodies(topic_table(spark, Lake.open(lake), "orders"))
        publish(nsqds[0], "orders", ["033"])
        shutil.rmtree(Lake(lake).topic("orders").checkpoint)
        [second] = run(spark, wanted)

    assert BODIES == archived
    assert (6, 1, 52) == (first.messages, second.messages, second.total)
    assert sorted([*BODIES, "033"]) == bodies(topic_table(spark, Lake.open(lake), "orders"))
    next_seqs = Commits.load_state(Lake(lake).topic("orders")).next_seqs
    assert [32, 32] == [len(log_id) for log_id in next_seqs]


def test_a_node_that_joins_again_without_a_checkpoint_is_not_archived_twice(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    both = config(lake, nsqd, other_nsqd, topics=["orders"])
    publish(nsqd, "orders", map(str, range(20)))
    publish(other_nsqd, "orders", map(str, range(30)))
    run(spark, both)
    shutil.rmtree(Lake(lake).topic("orders").checkpoint)

    publish(nsqd, "orders", ["while the other node is away"])
    run(spark, config(lake, nsqd, topics=["orders"]))
    publish(nsqd, "orders", ["while it is back"])
    [last] = run(spark, both)

    assert stored("orders", nsqd, other_nsqd) == ids(spark, lake, "orders")
    assert 52 == last.total


@pytest.mark.parametrize("visible", [0, 1])
def test_a_batch_with_rows_that_the_driver_does_not_see_is_not_committed(
    spark: SparkSession,
    nsqd: NsqdProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    visible: int,
) -> None:
    """As if an executor had written to a folder that the driver does not share."""
    lake = tmp_path / "lake"
    wanted = config(lake, nsqd, topics=["orders"])
    publish(nsqd, "orders", map(str, range(2)))
    write = archive_module._stage

    def write_elsewhere(rows: DataFrame, folder: Path) -> None:
        write(rows.repartition(2), folder)
        for file in sorted(folder.rglob("*.parquet"))[visible:]:
            file.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(archive_module, "_stage", write_elsewhere)
        with pytest.raises(PipelineError, match=r"wrote 2 messages, but . of them are in .*share"):
            run(spark, wanted)
    assert not Lake(lake).topic("orders").committed.exists()
    assert 2 == nsqd.stats("orders", "penstock-archive")["depth"]

    [done] = run(spark, wanted)
    assert (2, 2) == (done.messages, done.total)


def test_a_remote_default_file_system_is_rejected_without_side_effects(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path
) -> None:
    publish(nsqd, "orders", ["one"])
    spark.conf.set("fs.defaultFS", "viewfs://cluster/")
    try:
        with pytest.raises(ConfigError, match=r"default file system is viewfs://cluster/: pass"):
            run(spark, config(tmp_path / "lake", nsqd, topics=["orders"]))
    finally:
        spark.conf.unset("fs.defaultFS")

    assert [] == list(tmp_path.iterdir())
    assert [] == nsqd.stats("orders")["channels"]


def test_a_batch_with_unreadable_offsets_is_not_committed(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if Spark kept its checkpoint in another file system."""
    publish(nsqd, "orders", ["one"])
    lake = tmp_path / "lake"
    read_text = Path.read_text

    def read_elsewhere(self: Path, *args: Any, **more: Any) -> str:
        if self.parent.name == "offsets":
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return read_text(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_elsewhere)
        with pytest.raises(PipelineError, match="cannot read the offsets of batch 0"):
            run(spark, config(lake, nsqd, topics=["orders"]))

    assert not Lake(lake).topic("orders").committed.exists()
    assert 1 == nsqd.stats("orders", "penstock-archive")["depth"]


def test_json_becomes_columns_and_violations_are_rejected(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    publish(nsqd, "orders", ['{"id": 1, "total": 2.5}', "no json"])
    [done] = run(spark, config(lake, nsqd, topics=["orders"], schema="infer"))
    publish(nsqd, "orders", ['{"id": "x"}', '{"total": 1}'])
    [again] = run(spark, config(lake, nsqd, topics=["orders"], compact=True))

    assert (2, 1) == (done.messages, done.rejected)
    assert (2, 1, 1) == (again.messages, again.rejected, again.files_merged)
    rows = topic_table(spark, Lake.open(lake), "orders").orderBy("seq").select("value.*").collect()
    assert [(1, 2.5), (None, 1.0)] == [tuple(row) for row in rows]
    rejected = spark.read.parquet(str(lake / "_rejected")).orderBy("seq")
    assert [
        (b"no json", "it is no JSON object"),
        (b'{"id": "x"}', "it does not fit the schema"),
    ] == [(bytes(row.body), row.reason) for row in rejected.collect()]
    with pytest.raises(ConfigError, match="field id is bigint there"):
        run(spark, config(lake, nsqd, topics=["orders"], schema="id string"))


@pytest.mark.parametrize(
    ("topic", "schema", "error", "words"),
    [
        ("nowhere", "", ConfigError, "topic nowhere does not exist"),
        ("orders", "id strong", ConfigError, "invalid schema 'id strong': Unsupported data type"),
        ("orders", "infer", ConfigError, "cannot infer a schema: the first messages of orders"),
        ("__HIVE_DEFAULT_PARTITION__", "", LakeError, "is reserved in a lake"),
    ],
)
def test_invalid_options_are_rejected_without_side_effects(
    spark: SparkSession,
    nsqd: NsqdProcess,
    tmp_path: Path,
    topic: str,
    schema: str,
    error: type[Exception],
    words: str,
) -> None:
    publish(nsqd, "orders", ["no json"])

    with pytest.raises(error, match=words):
        run(spark, config(tmp_path / "lake", nsqd, topics=[topic], schema=schema))
    assert [] == list(tmp_path.iterdir())


def test_an_unreachable_nsqd_is_reported(tmp_path: Path) -> None:
    brokers = Brokers(("127.0.0.1:1",))

    with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:1/topics/log: Connection refused"):
        check_config(
            ArchiveConfig(topics=("orders",), lake=str(tmp_path / "lake"), brokers=brokers)
        )
