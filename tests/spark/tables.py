"""Reading topics as tables, and what was published to compare with."""

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.testing.nsqd import NsqdProcess

__all__ = ["bodies", "history", "http_addresses", "publish", "table"]


def http_addresses(*nsqds: NsqdProcess) -> str:
    """As the option `nsqd` has them."""
    return ",".join(nsqd.http_address for nsqd in nsqds)


def publish(nsqd: NsqdProcess, topic: str, bodies: Iterable[str]) -> None:
    """Publishes bodies without a newline, many at once."""
    nsqd.post(f"/mpub?topic={topic}", "\n".join(bodies).encode())


def table(spark: SparkSession, *nsqds: NsqdProcess, **options: object) -> DataFrame:
    """What these nsqds have, by `spark.read`."""
    reader = spark.read.format("nsq").option("nsqd", http_addresses(*nsqds))
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def history(nsqd: NsqdProcess, topic: str) -> list[dict[str, Any]]:
    """What nsqd itself says it has."""
    answer = nsqd.http("GET", f"/topic/messages?topic={topic}")
    return [json.loads(line) for line in answer.body.splitlines()]


def bodies(frame: DataFrame) -> list[str]:
    """The bodies of a table, sorted."""
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())
