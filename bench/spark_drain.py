"""How fast Spark drains a topic: `python -m bench.spark_drain`.

`readStream.format("nsq")` on `local[2]` reads a backlog of 200-byte messages into `noop`, in
micro-batches of 400,000. In turn, the same Spark reads a source that makes the same rows in memory,
which is Spark's own maximum. The ratio of the two is reliable on a busy machine.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.blocking import Producer
from penstock.testing.nsqd import NsqdProcess, run_nsqd

__all__ = ["main"]

BODY_BYTES = 200
BATCH_ROWS = 400_000
PARTITIONS = 2
ARROW_ROWS = 8_962  # frames in a piece of that size
TARGET = 0.6


class MemorySource(DataSource):
    """Rows of the same shape, made in memory; the option `rows` is their number."""

    @classmethod
    def name(cls) -> str:
        return "memory_rows"

    def schema(self) -> str:
        return (
            "topic string, log string, node int, seq bigint, id string, timestamp timestamp, "
            "timestamp_ns bigint, body binary"
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return MemoryReader(int(self.options["rows"]))


class MemoryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Counts rows; each task makes one Arrow batch and returns it repeatedly."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(BATCH_ROWS)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"rows": min(self._rows, start["rows"] + BATCH_ROWS)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        rows = (end["rows"] - start["rows"]) // PARTITIONS
        return [InputPartition(rows)] * PARTITIONS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 (the class is pickled by value for the workers)

        count, schema = ARROW_ROWS, arrow_schema()
        batch = pa.RecordBatch.from_arrays(
            [
                pa.repeat("orders", count),
                pa.repeat("0" * 32, count),
                pa.repeat(pa.scalar(1, pa.int32()), count),
                pa.array(range(count), pa.int64()),
                pa.array([f"{number:016x}" for number in range(count)]),
                pa.array(range(count), pa.int64()).view(pa.timestamp("us", tz="UTC")),
                pa.array(range(count), pa.int64()),
                pa.repeat(b"x" * BODY_BYTES, count),
            ],
            schema=schema,
        )
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, count))
            left -= count


def arrow_schema() -> pa.Schema:
    """Schema of the rows."""
    return pa.schema(
        [
            ("topic", pa.string()),
            ("log", pa.string()),
            ("node", pa.int32()),
            ("seq", pa.int64()),
            ("id", pa.string()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestamp_ns", pa.int64()),
            ("body", pa.binary()),
        ]
    )


def session() -> SparkSession:
    """A Spark session with two cores and this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(MemorySource)
    return spark


def drain(frame: DataFrame, folder: Path) -> float:
    """Rows per second, from the start of the first batch to the end of the last one."""
    began = time.perf_counter()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    elapsed = time.perf_counter() - began
    rows = sum(progress.numInputRows for progress in query.recentProgress)
    return rows / elapsed


def fill(nsqd: NsqdProcess, rows: int) -> None:
    """Publish the backlog."""
    bodies = [b"x" * BODY_BYTES] * 10_000
    with Producer(nsqd.tcp_address) as producer:
        for _ in range(rows // len(bodies)):
            producer.publish_many("orders", bodies)


def main() -> None:
    """Print the rates of some rounds, and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with TemporaryDirectory() as folder, run_nsqd("--node-id=1") as nsqd:
        fill(nsqd, args.rows)
        spark = session()
        topic = (
            spark.readStream.format("nsq")
            .option("nsqd", nsqd.http_address)
            .option("topic", "orders")
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", BATCH_ROWS)
            .load()
        )
        memory = spark.readStream.format("memory_rows").option("rows", args.rows).load()
        ratios, rates = [], []
        for number in range(args.rounds + 1):
            ceiling = drain(memory, Path(folder, f"memory{number}"))
            rate = drain(topic, Path(folder, f"topic{number}"))
            if number:  # the first round warms up Java
                ratios.append(rate / ceiling)
                rates.append(rate)
                print(f"nsq {rate:,.0f} rows/s, memory {ceiling:,.0f}: {rate / ceiling:.0%}")
        spark.stop()
    ratio = statistics.median(ratios)
    print(f"median {statistics.median(rates):,.0f} rows/s, {ratio:.0%} (goal: {TARGET:.0%})")


if __name__ == "__main__":
    main()
