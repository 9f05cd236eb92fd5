"""`df.write` and `df.writeStream`: rows become messages."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from tests.spark.tables import (
    QUERY_SECONDS,
    bodies,
    history,
    http_addresses,
    publish,
    stream,
    table,
)

from penstock.pipelines.running import Stop, start_query
from penstock.testing.nsqd import NsqdProcess
from pyspark_nsq import from_json_body


def write(frame: DataFrame, *nsqds: NsqdProcess, **options: str) -> None:
    writer = frame.write.format("nsq").option("nsqd", http_addresses(*nsqds)).options(**options)
    writer.mode("append").save()


def test_batches_are_distributed_over_the_nodes(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess
) -> None:
    frame = spark.range(2000, numPartitions=2).selectExpr("lpad(id, 6, '0') as body")

    write(frame, nsqd, other_nsqd, topic="orders")

    assert [f"{n:06}" for n in range(2000)] == bodies(
        table(spark, nsqd, other_nsqd, topic="orders")
    )
    assert 1000 == len(history(nsqd, "orders")) == len(history(other_nsqd, "orders"))


def test_columns_topic_and_defer_ms(spark: SparkSession, nsqd: NsqdProcess) -> None:
    rows = [("a", b"1", 0), ("b", b"\xff", 60_000), ("a", b"3", None), ("b", b"4", 0)]

    write(spark.createDataFrame(rows, "topic string, body binary, defer_ms int"), nsqd)

    assert ["1", "3"] == [message["body"] for message in history(nsqd, "a")]
    deferred, direct = history(nsqd, "b")
    if "due_ns" not in deferred:
        deferred, direct = direct, deferred
    assert deferred["due_ns"] - deferred["timestamp_ns"] == 60_000 * 1_000_000
    assert "4" == direct["body"]


def test_batches_for_an_unreachable_node_go_to_the_others(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess
) -> None:
    addresses = http_addresses(other_nsqd, nsqd)
    other_nsqd.kill()

    frame = spark.createDataFrame([("x",)], "body string")
    frame.write.format("nsq").options(nsqd=addresses, topic="orders").mode("append").save()

    assert ["x"] == [message["body"] for message in history(nsqd, "orders")]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (None, "row 1 of a batch has no body"),
        ("", "row 1 of a batch has an empty body"),
        ("x" * 1001, "row 1 of a batch exceeds nsqd's maximum of 1000 bytes"),
    ],
    ids=["no body", "empty", "too large"],
)
def test_a_batch_with_an_invalid_row_is_not_sent(
    spark: SparkSession, nsqd: NsqdProcess, body: str | None, error: str
) -> None:
    frame = spark.createDataFrame([("good",), (body,)], "body string").coalesce(1)

    with pytest.raises(PySparkException, match=error):
        write(frame, nsqd, topic="orders", maxMessageSize="1000")

    assert 404 == nsqd.http("GET", "/topic/log?topic=orders").status


def test_the_maximum_message_size_is_read_from_nsqd(spark: SparkSession, nsqd: NsqdProcess) -> None:
    frame = spark.createDataFrame([("x" * 1_048_577,)], "body string")

    with pytest.raises(PySparkException, match="exceeds nsqd's maximum of 1048576 bytes"):
        write(frame, nsqd, topic="orders")


@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        ("text string", {"topic": "t"}, "column body is missing; columns: text"),
        ("body int", {"topic": "t"}, "column body must be binary or string, not int"),
        ("body string", {}, "the option topic or a column topic is required"),
        ("body string", {"topic": "no name"}, "topic 'no name' is not a valid name"),
        ("body string", {"topik": "t"}, "unknown option 'topik'"),
    ],
)
def test_invalid_columns_and_options_are_rejected_before_writing(
    spark: SparkSession, columns: str, options: dict[str, str], error: str
) -> None:
    frame = spark.createDataFrame([], columns)

    with pytest.raises(PySparkException, match=error):
        frame.write.format("nsq").options(nsqd="127.0.0.1:1", **options).mode("append").save()


def test_a_windowed_aggregation_from_topic_to_topic(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path
) -> None:
    """Counts per ten seconds of event time; the last row closes the earlier windows."""
    moments = [f"2026-01-01T00:00:{second:02}Z" for second in range(60)]
    publish(nsqd, "clicks", [f'{{"at": "{at}"}}' for at in (*moments, "2026-01-01T01:00:00Z")])
    counts = (
        from_json_body(stream(spark, nsqd, topic="clicks"), "at timestamp")
        .selectExpr("value.at as at")
        .withWatermark("at", "1 second")
        .groupBy(sql.window("at", "10 seconds"))
        .count()
        .selectExpr("concat(date_format(window.start, 'ss'), ' ', count) as body")
    )

    writer = counts.writeStream.format("nsq").options(nsqd=nsqd.http_address, topic="counts")
    writer = writer.queryName("counts")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query = start_query(writer.start, Stop())

    assert query.awaitTermination(QUERY_SECONDS)
    assert [f"{second}0 10" for second in range(6)] == bodies(table(spark, nsqd, topic="counts"))
