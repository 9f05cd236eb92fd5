"""Helpers that publish to topics and read them as tables."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.pipelines.running import Stop, start_query
from penstock.testing.nsqd import NsqdProcess

__all__ = [
    "QUERY_SECONDS",
    "Archive",
    "bodies",
    "history",
    "http_addresses",
    "publish",
    "stream",
    "table",
]

# Time for a query over the available messages, also on a busy machine.
QUERY_SECONDS = 240


def http_addresses(*nsqds: NsqdProcess) -> str:
    """Addresses as in the option `nsqd`."""
    return ",".join(nsqd.http_address for nsqd in nsqds)


def publish(nsqd: NsqdProcess, topic: str, bodies: Iterable[str]) -> None:
    """Publish bodies, which must not contain newlines, in one MPUB."""
    nsqd.post(f"/mpub?topic={topic}", "\n".join(bodies).encode())


def table(spark: SparkSession, *nsqds: NsqdProcess, **options: object) -> DataFrame:
    """The messages of these nsqds, read by `spark.read`."""
    reader = spark.read.format("nsq").option("nsqd", http_addresses(*nsqds))
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def history(nsqd: NsqdProcess, topic: str) -> list[dict[str, Any]]:
    """The messages in nsqd's history, from its HTTP API."""
    answer = nsqd.http("GET", f"/topic/messages?topic={topic}")
    if answer.status == 404:
        return []
    return [json.loads(line) for line in answer.body.splitlines()]


def bodies(frame: DataFrame) -> list[str]:
    """The bodies of a table, sorted."""
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def stream(spark: SparkSession, *nsqds: NsqdProcess, **options: object) -> DataFrame:
    """A stream of these nsqds by `spark.readStream`; by default from the earliest messages."""
    reader = spark.readStream.format("nsq").option("startingOffsets", "earliest")
    if nsqds:
        reader = reader.option("nsqd", http_addresses(*nsqds))
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


class Archive:
    """A folder of Parquet files, with the checkpoint of the query that writes them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._table = str(folder / "table")
        self._checkpoint = str(folder / "checkpoint")

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        """Start the query; by default it runs batches continuously."""
        writer = frame.writeStream.format("parquet").option("path", self._table)
        writer = writer.option("checkpointLocation", self._checkpoint)
        writer = writer.trigger(**(trigger or {"processingTime": "0 seconds"}))
        return start_query(writer.start, Stop())

    def take_what_is_there(self, frame: DataFrame) -> StreamingQuery:
        """Run the query with Trigger.AvailableNow until it ends."""
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(QUERY_SECONDS), "the query did not end"
        return query

    def rows(self) -> DataFrame:
        """The written rows."""
        return self._spark.read.parquet(self._table)

    def bodies(self) -> list[str]:
        """The bodies of the written rows, sorted."""
        return bodies(self.rows())
