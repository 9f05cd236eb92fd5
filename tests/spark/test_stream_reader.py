"""`spark.readStream.format("nsq")`: every message once, whatever happens in between."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.tables import Archive, publish, stream

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path) -> Archive:
    return Archive(spark, tmp_path)


def numbered(first: int, end: int) -> list[str]:
    return [f"{number:06}" for number in range(first, end)]


@contextmanager
def running(archive: Archive, frame: DataFrame) -> Iterator[StreamingQuery]:
    query = archive.start(frame)
    try:
        yield query
    finally:
        query.stop()


def test_a_query_goes_on_where_its_checkpoint_says(
    spark: SparkSession, nsqd: NsqdProcess, other_nsqd: NsqdProcess, archive: Archive
) -> None:
    publish(nsqd, "orders", numbered(0, 300))
    archive.take_what_is_there(stream(spark, nsqd, topic="orders", minPartitions=3))

    publish(nsqd, "orders", numbered(300, 600))
    publish(other_nsqd, "orders", numbered(600, 900))
    archive.take_what_is_there(stream(spark, nsqd, other_nsqd, topic="orders", minPartitions=3))

    assert numbered(0, 900) == archive.bodies()


def test_a_channel_shows_how_far_the_query_is_behind(
    spark: SparkSession, nsqd: NsqdProcess, archive: Archive
) -> None:
    publish(nsqd, "orders", numbered(0, 10))
    frame = stream(spark, nsqd, topic="orders", channel="spark")

    archive.take_what_is_there(frame)

    assert 0 == nsqd.stats("orders", "spark")["depth"]
    assert "commit" == nsqd.stats("orders", "spark")["mode"]
    publish(nsqd, "orders", numbered(10, 15))
    assert 5 == nsqd.stats("orders", "spark")["depth"]


def test_a_channel_that_has_consumers_is_not_taken_from_them(
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
def test_a_batch_is_no_larger_than_the_limit(
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


def test_a_node_that_restarts_and_one_that_joins_are_read_to_the_last_message(
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


def test_what_was_trimmed_fails_the_query_or_is_left_out(
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


def log_begins_with(nsqd: NsqdProcess, count: int) -> bool:
    log = nsqd.http("GET", "/topic/log?topic=orders").json()
    return bool(count == log["next_seq"] - log["first_seq"])
