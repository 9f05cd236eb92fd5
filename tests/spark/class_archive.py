"""Writes a class data sharing archive of Spark's classes, which halves the start time of Spark.

    python -m tests.spark.class_archive FILE

Java writes the file when this Spark exits. tests/conftest.py passes it to every Java; another
version of Java, or other jars, ignore it.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.local_session import local_session

__all__ = ["main"]


def main(path: str) -> None:
    """Created atomically: an existing file is complete."""
    unfinished = f"{path}.unfinished"
    os.environ["SPARK_SUBMIT_OPTS"] = (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        f" -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    )
    spark = local_session("classes", {})
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        use(spark, Path(folder))
    spark.stop()
    java.stdin.close()
    java.wait()
    Path(unfinished).rename(path)


def use(spark: SparkSession, folder: Path) -> None:
    """Run SQL and a stateful stream, from files to files."""
    table, results = str(folder / "table"), str(folder / "results")
    numbers = spark.range(10).selectExpr("id % 3 AS key", "string(id) AS body", "now() AS ts")
    numbers.write.partitionBy("key").parquet(table)
    counts = (
        spark.readStream.schema(spark.read.parquet(table).schema)
        .parquet(table)
        .withWatermark("ts", "1 second")
        .groupBy("ts", "key")
        .count()
    )
    query = (
        counts.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(results, format="parquet")
    )
    query.awaitTermination()
    spark.read.parquet(results).collect()
    spark.sql("""SELECT from_json('{"a": 1}', 'a INT') AS j, sum(id) FROM range(3)""").collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
