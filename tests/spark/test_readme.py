"""The README's example of Spark does what it says."""

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.tables import publish

from penstock.testing.nsqd import NsqdProcess

README = Path(__file__).parents[2] / "README.md"


def test_the_stream_is_stored(spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path) -> None:
    publish(nsqd, "orders", ["one", "two"])
    (example,) = re.findall(r"```python\n(orders = .*?)```", README.read_text(), re.DOTALL)
    for name, ours in (
        ('"127.0.0.1:4151"', repr(nsqd.http_address)),
        ('"lake"', repr(str(tmp_path / "lake"))),
        ('"checkpoint"', repr(str(tmp_path / "checkpoint"))),
    ):
        example = example.replace(name, ours)

    names: dict[str, Any] = {"spark": spark}
    exec(example, names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()

    rows = spark.read.parquet(str(tmp_path / "lake")).collect()
    assert [b"one", b"two"] == sorted(bytes(row["body"]) for row in rows)
