"""Queries that an earlier version has started, whose offsets have node ids, continue."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.earlier_version import BODIES, copy_data, run_nsqds
from tests.spark.tables import Archive, publish, stream

from penstock.common.errors import ConfigError
from penstock.testing.nsqd import run_nsqd
from pyspark_nsq.offsets import LogExtent, LogKey, NodeIdOffsets


def newest_offsets(folder: Path) -> dict[str, int]:
    newest = max(
        (folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda each: int(each.name)
    )
    offsets: dict[str, int] = json.loads(newest.read_text().splitlines()[2])["orders"]
    return offsets


def test_a_query_continues_without_loss_or_duplicates(spark: SparkSession, tmp_path: Path) -> None:
    data = copy_data(tmp_path)
    archive = Archive(spark, data / "query")
    with run_nsqds(data) as nsqds:
        before = newest_offsets(data / "query")
        archive.take_what_is_there(stream(spark, *nsqds, topic="orders", maxMessagesPerTrigger=20))
        after = newest_offsets(data / "query")
        archived = archive.bodies()
        with run_nsqd("--node-id=1", "--retention-time=1h") as twin:
            publish(nsqds[0], "orders", ["033"])
            publish(twin, "orders", ["twin"])
            archive.take_what_is_there(stream(spark, *nsqds, twin, topic="orders"))

    assert BODIES == archived
    assert ["1", "2"] == sorted(before)
    assert [32, 32] == [len(log_id) for log_id in after]
    assert sorted([*BODIES, "033", "twin"]) == archive.bodies()


def test_a_node_with_an_equal_id_does_not_disturb_the_conversion(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = copy_data(tmp_path)
    archive = Archive(spark, data / "query")
    with run_nsqds(data) as nsqds, run_nsqd("--node-id=1", "--retention-time=1h") as twin:
        publish(twin, "orders", ["twin"])
        archive.take_what_is_there(stream(spark, twin, *nsqds, topic="orders"))

    assert [*BODIES, "twin"] == archive.bodies()


def test_an_unreachable_node_keeps_its_node_id_until_it_returns(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = copy_data(tmp_path)
    (data / "query/checkpoint/offsets/2").unlink()  # no batch to repeat
    archive = Archive(spark, data / "query")
    with run_nsqds(data) as nsqds:
        second = nsqds[1]
        frame = stream(spark, *nsqds, topic="orders")
        second.kill()
        archive.take_what_is_there(frame)
        without = newest_offsets(data / "query")
        second.restart()
        archive.take_what_is_there(stream(spark, *nsqds, topic="orders"))

    assert "2" in without
    assert "1" not in without
    assert BODIES == archive.bodies()


# Conversion, without Spark.


OLD = LogKey("orders", "5")
A, B = LogKey("orders", "a" * 32), LogKey("orders", "b" * 32)


def extents(**spans: tuple[int, int]) -> dict[LogKey, LogExtent]:
    return {
        LogKey("orders", name * 32): LogExtent(f"http://{name}", 5, *span)
        for name, span in spans.items()
    }


@pytest.mark.parametrize(
    ("spans", "is_complete", "found"),
    [
        ({"a": (10, 20)}, True, A),
        ({"a": (10, 15)}, False, A),  # the log ends at the offset
        ({"a": (10, 20), "b": (16, 30)}, True, A),
        ({"b": (16, 30)}, True, B),  # the only log, although trimmed
        ({"b": (16, 30)}, False, OLD),  # perhaps the log of the unreachable node
        ({"a": (10, 20), "b": (10, 30)}, False, OLD),
        ({}, True, OLD),
    ],
)
def test_a_node_id_becomes_the_log_that_has_the_offset(
    spans: dict[str, tuple[int, int]], is_complete: bool, found: LogKey
) -> None:
    assert {found: 15} == NodeIdOffsets().convert(
        {OLD: 15}, extents(**spans), is_complete=is_complete
    )


def test_an_ambiguous_node_id_is_an_error() -> None:
    both = extents(a=(10, 20), b=(10, 30))

    with pytest.raises(ConfigError, match=r"http://a and http://b both have node id 5.*nsqd=ADDR"):
        NodeIdOffsets().convert({OLD: 15}, both, is_complete=True)


def test_all_offsets_of_a_batch_are_converted_alike() -> None:
    node_ids = NodeIdOffsets()
    logs = extents(a=(10, 20), b=(16, 30))

    assert {A: 15} == node_ids.convert({OLD: 15}, logs, is_complete=True)
    assert {A: 18} == node_ids.convert({OLD: 18}, logs, is_complete=True)
    assert {A: 18} == node_ids.convert({OLD: 18}, {}, is_complete=False)
