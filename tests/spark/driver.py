"""A query in a process of its own, to be killed: `driver.py LOOKUPD FOLDER MODE`."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.tables import Archive, stream

__all__ = ["main"]


def main(lookupd: str, folder: str, mode: str) -> None:
    """Archives the topic `orders` until it is killed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.local.dir", f"{folder}/local")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    frame = stream(
        spark, lookupd=lookupd, topic="orders", channel="spark", mode=mode, minPartitions=2
    )
    Archive(spark, Path(folder)).start(frame).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
