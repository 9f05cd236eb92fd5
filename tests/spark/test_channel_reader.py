"""`mode=channel`: at-least-once consumption over the NSQ protocol."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import QUERY_SECONDS, Archive, history, publish, stream

from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path) -> Archive:
    return Archive(spark, tmp_path)


def test_messages_of_a_channel_are_consumed_and_finished(
    spark: SparkSession, nsqd: NsqdProcess, archive: Archive
) -> None:
    expected = [f"{number:04}" for number in range(60)]
    publish(nsqd, "orders", expected)
    frame = stream(
        spark,
        nsqd,
        topic="orders",
        channel="spark",
        mode="channel",
        maxMessagesPerTrigger=40,
    )

    query = archive.take_what_is_there(frame)

    assert expected == archive.bodies()
    assert [40, 20] == [each.numInputRows for each in query.recentProgress if each.numInputRows]
    wait_until(
        lambda: nsqd.shows("orders", "spark", depth=0, in_flight_count=0), "all to be finished"
    )
    row = archive.rows().orderBy("id").first()
    assert row is not None
    message = history(nsqd, "orders")[0]
    assert (message["id"], message["timestamp_ns"]) == (row.id, row.timestamp_ns)
    assert ("orders", None, None) == (row.topic, row.node, row.seq)


def test_unfinished_messages_are_delivered_again(
    spark: SparkSession, nsqd: NsqdProcess, archive: Archive
) -> None:
    """nsqd redelivers the messages of a batch that was planned but not finished."""
    publish(nsqd, "orders", ["poison"])
    frame = stream(spark, nsqd, topic="orders", channel="spark", mode="channel")
    broken = frame.selectExpr("raise_error('no such thing') as body")
    query = archive.start(broken, availableNow=True)
    with pytest.raises(Exception, match="no such thing"):
        query.awaitTermination(QUERY_SECONDS)

    archive.take_what_is_there(frame.select("body"))

    assert ["poison"] == archive.bodies()
    wait_until(
        lambda: nsqd.shows("orders", "spark", depth=0, in_flight_count=0), "all to be finished"
    )
