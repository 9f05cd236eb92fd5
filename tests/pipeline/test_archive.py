"""Topics to a lake: each message once, also after what can happen to a checkpoint."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import history, publish

from penstock.errors import ConfigError, LakeError, NotConnected, PipelineFailed
from penstock.pipeline.archive import Archived, ArchiveOrder, archive, check_order
from penstock.pipeline.brokers import Brokers
from penstock.pipeline.lake import Lake
from penstock.pipeline.stopping import Stop
from penstock.pipeline.tables import topic_table
from penstock.testing.nsqd import NsqdProcess


def order(lake: Path, *nsqds: NsqdProcess, topics: Sequence[str], **wishes: Any) -> ArchiveOrder:
    brokers = Brokers(tuple(nsqd.http_address for nsqd in nsqds))
    return ArchiveOrder(topics=tuple(topics), lake=str(lake), brokers=brokers, once=True, **wishes)


def run(spark: SparkSession, wanted: ArchiveOrder) -> list[Archived]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return archive(spark, wanted, check_order(wanted), Stop())


def ids(spark: SparkSession, lake: Path, topic: str) -> list[str]:
    return sorted(row.id for row in topic_table(spark, Lake.open(lake), topic).collect())


def stored(topic: str, *nsqds: NsqdProcess) -> list[str]:
    return sorted(message["id"] for nsqd in nsqds for message in history(nsqd, topic))


def test_every_message_is_archived_once_whatever_happens_to_the_checkpoint(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    folder = Lake(lake).topic("Orders")
    wanted = order(lake, nsqd, other_nsqd, topics=["Orders"], batch_rows=60)
    publish(nsqd, "Orders", map(str, range(100)))
    [first] = run(spark, wanted)
    committed = folder.committed.read_bytes()
    for entry in folder.checkpoint.glob("*/*1*"):  # killed before Spark knew
        entry.unlink()

    publish(nsqd, "Orders", map(str, range(50)))
    publish(other_nsqd, "Orders", map(str, range(30)))  # a node that joins
    [second] = run(spark, wanted)
    shutil.rmtree(folder.checkpoint)
    publish(other_nsqd, "Orders", ["late"])
    [last] = run(spark, wanted)

    assert stored("Orders", nsqd, other_nsqd) == ids(spark, lake, "Orders")
    assert [100, 80, 1] == [first.messages, second.messages, last.messages]
    assert 181 == last.total
    assert 0 == nsqd.stats("Orders", "penstock-archive")["depth"]

    folder.committed.write_bytes(committed)  # a lake that is put back has a hole
    publish(nsqd, "Orders", ["too late"])
    with pytest.raises(PipelineFailed, match="was the lake put back to an older state"):
        run(spark, wanted)


def test_json_becomes_columns_and_what_does_not_fit_is_kept_aside(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    publish(nsqd, "orders", ['{"id": 1, "total": 2.5}', "no json"])
    [done] = run(spark, order(lake, nsqd, topics=["orders"], schema="infer"))
    publish(nsqd, "orders", ['{"id": "x"}', '{"total": 1}'])
    [again] = run(spark, order(lake, nsqd, topics=["orders"], compact=True))

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
        run(spark, order(lake, nsqd, topics=["orders"], schema="id string"))


@pytest.mark.parametrize(
    ("topic", "schema", "error", "words"),
    [
        ("nowhere", "", ConfigError, "there is no topic nowhere"),
        ("orders", "id strong", ConfigError, "'id strong' is no schema: Unsupported data type"),
        ("orders", "infer", ConfigError, "no schema can be inferred: the first messages of orders"),
        ("__HIVE_DEFAULT_PARTITION__", "", LakeError, "means no topic at all in a lake"),
    ],
)
def test_what_cannot_be_archived_is_told_and_nothing_is_written(
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
        run(spark, order(tmp_path / "lake", nsqd, topics=[topic], schema=schema))
    assert [] == list(tmp_path.iterdir())


def test_nobody_to_archive_from_is_told(tmp_path: Path) -> None:
    brokers = Brokers(("127.0.0.1:1",))

    with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1/topic/log: Connection refused"):
        check_order(ArchiveOrder(topics=("orders",), lake=str(tmp_path / "lake"), brokers=brokers))
