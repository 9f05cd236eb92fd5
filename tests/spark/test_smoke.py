"""Smoke test of Spark, its Java and its Python workers."""

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def test_spark_counts(spark: SparkSession) -> None:
    assert 1000 == spark.range(1000).count()


def test_workers_use_this_python_and_arrow(spark: SparkSession) -> None:
    def python_versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

    rows = spark.range(3).mapInArrow(python_versions, "python string").collect()

    assert [sys.executable] * 3 == [row.python for row in rows]
