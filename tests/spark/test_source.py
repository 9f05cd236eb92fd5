"""`spark.read` and `spark.readStream`: complete results, whatever happens to the nodes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.tables import Archive, bodies, history, publish, stream, table

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until
from pyspark_nsq import from_json_body, infer_json_schema


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path) -> Archive:
    return Archive(spark, tmp_path)


def test_every_message_is_a_row_with_log_node_and_seq(
    spark: SparkSession, nsqd: NsqdProcess
) -> None:
    nsqd.publish("orders", b"one", b"\xff\x00", b"x" * 900_000)

    rows = table(spark, nsqd, topic="orders").orderBy("seq").collect()

    published = history(nsqd, "orders")
    assert [b"one", b"\xff\x00", b"x" * 900_000] == [bytes(row.body) for row in rows]
    assert [(m["seq"], m["id"], m["timestamp_ns"], "orders", 1) for m in published] == [
        (row.seq, row.id, row.timestamp_ns, row.topic, row.node) for row in rows
    ]
    assert {log_of(nsqd)["log_id"]} == {row.log for row in rows}
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


def test_offsets_and_timestamps_limit_a_table(spark: SparkSession, nsqd: NsqdProcess) -> None:
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


def test_pushed_filters_do_not_change_the_result(spark: SparkSession, nsqd: NsqdProcess) -> None:
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


def test_a_batch_fails_if_a_node_is_unreachable(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess
) -> None:
    publish(nsqd, "orders", ["a"])
    frame = table(spark, nsqd, other_nsqd, topic="orders")
    lenient = table(spark, nsqd, other_nsqd, topic="orders", failOnDataLoss="false")
    other_nsqd.kill()

    with pytest.raises(PySparkException, match="Connection refused"):
        frame.count()
    assert ["a"] == bodies(lenient)


def test_two_nodes_with_the_same_id_are_two_logs(
    spark: SparkSession, nsqd: NsqdProcess, archive: Archive
) -> None:
    with run_nsqd("--node-id=1", "--retention-time=1h") as twin:
        publish(nsqd, "orders", ["a"])
        publish(twin, "orders", ["b"])

        rows = table(spark, nsqd, twin, topic="orders").collect()
        archive.take_what_is_there(stream(spark, nsqd, twin, topic="orders"))
        publish(nsqd, "orders", ["c"])
        publish(twin, "orders", ["d"])
        archive.take_what_is_there(stream(spark, nsqd, twin, topic="orders"))

    assert {(1, b"a"), (1, b"b")} == {(row.node, bytes(row.body)) for row in rows}
    assert 2 == len({row.log for row in rows})
    assert ["a", "b", "c", "d"] == archive.bodies()


def test_a_node_id_in_offsets_names_the_log_with_this_number(
    spark: SparkSession, nsqd: NsqdProcess
) -> None:
    publish(nsqd, "orders", ["a", "b"])
    first_seq = log_of(nsqd)["first_seq"]
    offsets = json.dumps({"orders": {"1": first_seq + 1}})
    with run_nsqd("--node-id=1", "--retention-time=1h") as twin:
        publish(twin, "orders", ["c"])

        assert ["b", "c"] == bodies(
            table(spark, nsqd, twin, topic="orders", startingOffsets=offsets)
        )
        too_low = json.dumps({"orders": {"1": first_seq - 1}})
        with pytest.raises(PySparkException, match="both have node id 1, and the offset"):
            table(spark, nsqd, twin, topic="orders", startingOffsets=too_low).count()


def test_from_json_body_reads_with_an_inferred_schema(
    spark: SparkSession, nsqd: NsqdProcess
) -> None:
    publish(nsqd, "clicks", ['{"user": "ann", "n": 1}', '{"user": "bob"}', "no JSON"])
    clicks = table(spark, nsqd, topic="clicks", endingOffsets=json.dumps({"clicks": {"1": -1}}))

    schema = infer_json_schema(table(spark, nsqd, topic="clicks").limit(2))
    rows = from_json_body(clicks, schema).orderBy("seq").select("topic", "value.*").collect()

    assert "struct<n:bigint,user:string>" == schema.simpleString()
    assert [(1, "ann"), (None, "bob"), (None, None)] == [(row.n, row.user) for row in rows]


# Streams.


def numbered(first: int, end: int) -> list[str]:
    return [f"{number:06}" for number in range(first, end)]


@contextmanager
def running(archive: Archive, frame: DataFrame) -> Iterator[StreamingQuery]:
    query = archive.start(frame)
    try:
        yield query
    finally:
        query.stop()


def test_a_query_continues_from_its_checkpoint(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess, archive: Archive
) -> None:
    publish(nsqd, "orders", numbered(0, 300))
    archive.take_what_is_there(stream(spark, nsqd, topic="orders", minPartitions=3))

    publish(nsqd, "orders", numbered(300, 600))
    publish(other_nsqd, "orders", numbered(600, 900))
    archive.take_what_is_there(stream(spark, nsqd, other_nsqd, topic="orders", minPartitions=3))

    assert numbered(0, 900) == archive.bodies()


def test_the_depth_of_the_channel_is_the_lag_of_the_query(
    spark: SparkSession, nsqd: NsqdProcess, archive: Archive
) -> None:
    publish(nsqd, "orders", numbered(0, 10))
    frame = stream(spark, nsqd, topic="orders", channel="spark")

    archive.take_what_is_there(frame)

    assert 0 == nsqd.stats("orders", "spark")["depth"]
    assert "commit" == nsqd.stats("orders", "spark")["mode"]
    publish(nsqd, "orders", numbered(10, 15))
    assert 5 == nsqd.stats("orders", "spark")["depth"]


def test_a_channel_with_consumers_is_rejected(
    spark: SparkSession, nsqd: NsqdProcess, archive: Archive
) -> None:
    publish(nsqd, "orders", numbered(0, 1))
    nsqd.consumer("orders", "billing")

    with pytest.raises(StreamingQueryException, match="CHANNEL_HAS_CONSUMERS"):
        archive.take_what_is_there(stream(spark, nsqd, topic="orders", channel="billing"))


@pytest.mark.parametrize(
    ("option", "limit"),
    [("maxMessagesPerTrigger", 40), ("maxBytesPerTrigger", 40 * 45)],
)
def test_a_batch_does_not_exceed_the_limit(
    spark: SparkSession,
    nsqd: NsqdProcess,
    other_nsqd: NsqdProcess,
    archive: Archive,
    option: str,
    limit: int,
) -> None:
    publish(nsqd, "orders", numbered(0, 50))
    publish(other_nsqd, "orders", numbered(50, 60))
    frame = stream(spark, nsqd, other_nsqd, topic="orders", **{option: limit})

    query = archive.take_what_is_there(frame)

    sizes = [progress.numInputRows for progress in query.recentProgress]
    assert numbered(0, 60) == archive.bodies()
    assert 35 <= max(sizes) <= 45
    last = query.lastProgress
    assert last is not None
    assert json.loads(last.sources[0].latestOffset) == json.loads(last.sources[0].endOffset)


def test_restarted_and_new_nodes_are_read_to_the_last_message(
    spark: SparkSession, archive: Archive
) -> None:
    with run_nsqlookupd() as lookupd:
        flags = (
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
        )
        frame = stream(spark, lookupd=lookupd.http_address, topic="orders", channel="spark")
        with run_nsqd("--node-id=1", *flags) as first:
            publish(first, "orders", numbered(0, 100))
            wait_until(lambda: lookupd.found("orders") == ["127.0.0.1"], "the topic to be known")
            with running(archive, frame) as query, run_nsqd("--node-id=2", *flags) as second:
                wait_until(lambda: has_read(first), "the first batch", seconds=120)
                first.kill()
                publish(second, "orders", numbered(100, 200))
                wait_until(lambda: has_read(second), "the node that joined", seconds=120)
                first.restart()
                publish(first, "orders", numbered(200, 300))
                wait_until(lambda: has_read(first), "the node that is back", seconds=120)
                assert query.exception() is None

    assert numbered(0, 300) == archive.bodies()


def has_read(nsqd: NsqdProcess) -> bool:
    channels = nsqd.stats("orders")["channels"]
    return bool(channels) and channels[0]["depth"] == 0


def test_trimmed_messages_fail_the_query_or_are_skipped(
    spark: SparkSession, archive: Archive
) -> None:
    with run_nsqd("--node-id=1", "--max-bytes-per-file=400") as nsqd:
        publish(nsqd, "orders", numbered(0, 10))
        archive.take_what_is_there(stream(spark, nsqd, topic="orders"))
        for first in (10, 20):
            publish(nsqd, "orders", numbered(first, first + 10))
        next_seq = nsqd.http("GET", "/topic/log?topic=orders").json()["next_seq"]
        nsqd.post("/channel/create?topic=orders&channel=other&mode=commit&from=earliest")
        nsqd.post(f"/channel/commit?topic=orders&channel=other&seq={next_seq}")
        wait_until(lambda: log_begins_with(nsqd, 10), "the log to be trimmed")

        with pytest.raises(StreamingQueryException, match=r"messages \d+ to \d+ are lost"):
            archive.take_what_is_there(stream(spark, nsqd, topic="orders"))
        archive.take_what_is_there(stream(spark, nsqd, topic="orders", failOnDataLoss="false"))

    assert numbered(0, 10) + numbered(20, 30) == archive.bodies()


def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    spark: SparkSession, nsqd: NsqdProcess, archive: Archive
) -> None:
    publish(nsqd, "orders", numbered(0, 10))
    frame = stream(spark, nsqd, topic="orders", channel="spark")
    with running(archive, frame) as query:
        wait_until(lambda: has_read(nsqd), "the first batch", seconds=120)
        old_log = log_of(nsqd)["log_id"]
        nsqd.post("/topic/delete?topic=orders")
        publish(nsqd, "orders", numbered(10, 20))
        wait_until(lambda: has_read(nsqd), "the new log", seconds=120)
        assert query.exception() is None

    assert numbered(0, 20) == archive.bodies()
    assert 2 == archive.rows().select("log").distinct().count()
    publish(nsqd, "orders", numbered(20, 30))
    last = archive.take_what_is_there(frame).lastProgress
    assert numbered(0, 30) == archive.bodies()
    assert last is not None
    assert old_log not in last.sources[0].endOffset


def log_of(nsqd: NsqdProcess) -> dict[str, Any]:
    log: dict[str, Any] = nsqd.http("GET", "/topic/log?topic=orders").json()
    return log


def log_begins_with(nsqd: NsqdProcess, count: int) -> bool:
    log = nsqd.http("GET", "/topic/log?topic=orders").json()
    return bool(count == log["next_seq"] - log["first_seq"])
