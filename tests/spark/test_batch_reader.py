"""`spark.read.format("nsq")`: a table is what was published."""

from pyspark.sql import SparkSession
from tests.spark.tables import history, publish, table

from penstock.testing.nsqd import NsqdProcess


def test_a_table_has_every_message_with_its_address(spark: SparkSession, nsqd: NsqdProcess) -> None:
    nsqd.publish("orders", b"one", b"\xff\x00", b"x" * 900_000)

    rows = table(spark, nsqd, topic="orders").orderBy("seq").collect()

    published = history(nsqd, "orders")
    assert [b"one", b"\xff\x00", b"x" * 900_000] == [bytes(row.body) for row in rows]
    assert [(m["seq"], m["id"], m["timestamp_ns"], "orders", 1) for m in published] == [
        (row.seq, row.id, row.timestamp_ns, row.topic, row.node) for row in rows
    ]
    assert published[0]["timestamp_ns"] // 1000 == round(rows[0].timestamp.timestamp() * 1e6)


def test_topics_of_several_nodes_are_one_table(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess
) -> None:
    publish(nsqd, "clicks.eu", ["a", "b"])
    publish(other_nsqd, "clicks.eu", ["c"])
    publish(other_nsqd, "clicks.us", ["d"])
    publish(nsqd, "orders", ["no click"])

    matched = table(spark, nsqd, other_nsqd, topicPattern=r"clicks\..*")
    listed = table(spark, nsqd, other_nsqd, topic="clicks.eu,clicks.us,unheard-of")

    expected = [("clicks.eu", 1, 2), ("clicks.eu", 2, 1), ("clicks.us", 2, 1)]
    for frame in (matched, listed):
        counts = frame.groupBy("topic", "node").count().collect()
        assert expected == sorted((row.topic, row.node, row["count"]) for row in counts)
