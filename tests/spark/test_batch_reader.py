"""`spark.read.format("nsq")`: a table is what was published."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.tables import bodies, history, publish, table

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from pyspark_nsq import from_json_body, infer_json_schema


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


def test_offsets_and_times_bound_a_table(spark: SparkSession, nsqd: NsqdProcess) -> None:
    for body in ("a", "b", "c", "d"):
        publish(nsqd, "orders", [body])
    messages = history(nsqd, "orders")
    second, fourth = messages[1], messages[3]
    third_at = datetime.fromtimestamp(0, UTC) + timedelta(
        microseconds=messages[2]["timestamp_ns"] // 1000
    )

    def offsets(seq: int) -> str:
        return json.dumps({"orders": {"1": seq}})

    cases = [
        ({"startingOffsets": offsets(second["seq"])}, ["b", "c", "d"]),
        ({"endingOffsets": offsets(fourth["seq"])}, ["a", "b", "c"]),
        ({"startingOffsets": offsets(-1)}, []),
        ({"startingTimestamp": third_at.isoformat()}, ["c", "d"]),
        ({"endingTimestamp": third_at.isoformat()}, ["a", "b"]),
        ({"startingTimestamp": "0", "endingOffsets": "latest"}, ["a", "b", "c", "d"]),
    ]
    for options, expected in cases:
        assert expected == bodies(table(spark, nsqd, topic="orders", **options)), options


def test_conditions_that_are_pushed_down_change_nothing_but_what_is_read(
    spark: SparkSession, nsqd: NsqdProcess
) -> None:
    for body in ("a", "b", "c", "d"):
        publish(nsqd, "orders", [body])
    second, third = history(nsqd, "orders")[1:3]
    condition = (
        f"seq > {second['seq']} and node in (1, 7) and topic = 'orders' and body <> X'78' and "
        f"timestamp >= timestamp_micros({third['timestamp_ns'] // 1000})"
    )

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = table(spark, nsqd, topic="orders").filter(condition)
        assert ["c", "d"] == bodies(frame)
        assert ["a", "b", "c", "d"] == bodies(table(spark, nsqd, topic="orders"))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_without_a_node_that_is_away_is_no_table(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess
) -> None:
    publish(nsqd, "orders", ["a"])
    frame = table(spark, nsqd, other_nsqd, topic="orders")
    lenient = table(spark, nsqd, other_nsqd, topic="orders", failOnDataLoss="false")
    other_nsqd.kill()

    with pytest.raises(PySparkException, match="Connection refused"):
        frame.count()
    assert ["a"] == bodies(lenient)


def test_two_nodes_with_one_id_are_refused(spark: SparkSession, nsqd: NsqdProcess) -> None:
    with run_nsqd("--node-id=1") as twin:
        publish(nsqd, "orders", ["a"])
        publish(twin, "orders", ["b"])

        with pytest.raises(PySparkException, match="both have node id 1: give each nsqd an id"):
            table(spark, nsqd, twin, topic="orders").count()


def test_what_infer_json_schema_finds_from_json_body_reads(
    spark: SparkSession, nsqd: NsqdProcess
) -> None:
    publish(nsqd, "clicks", ['{"user": "ann", "n": 1}', '{"user": "bob"}', "no JSON"])
    clicks = table(spark, nsqd, topic="clicks", endingOffsets=json.dumps({"clicks": {"1": -1}}))

    schema = infer_json_schema(table(spark, nsqd, topic="clicks").limit(2))
    rows = from_json_body(clicks, schema).orderBy("seq").select("topic", "value.*").collect()

    assert "struct<n:bigint,user:string>" == schema.simpleString()
    assert [(1, "ann"), (None, "bob"), (None, None)] == [(row.n, row.user) for row in rows]
