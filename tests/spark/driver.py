"""A query in its own process, which the test kills: `driver.py LOOKUPD FOLDER MODE`."""

import sys
from pathlib import Path

from tests.spark.local_session import INTERPRETED, local_session
from tests.spark.tables import Archive, stream

__all__ = ["main"]


def main(lookupd: str, folder: str, mode: str) -> None:
    """Archive the topic `orders` until killed."""
    spark = local_session("driver", {**INTERPRETED, "spark.local.dir": f"{folder}/local"})
    frame = stream(
        spark, lookupd=lookupd, topic="orders", channel="spark", mode=mode, minPartitions=2
    )
    Archive(spark, Path(folder)).start(frame).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
