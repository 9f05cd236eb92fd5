"""A lake's files as tables of Spark's, whatever was in them when they were written."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.pipelines.lake import Lake

__all__ = ["MESSAGE_COLUMNS", "lake_table", "rejected_table", "topic_table"]

MESSAGES = (
    StructType()
    .add("node", IntegerType())
    .add("seq", LongType())
    .add("id", StringType())
    .add("timestamp", TimestampType())
    .add("timestamp_ns", LongType())
    .add("body", BinaryType())
)
MESSAGE_COLUMNS = tuple(MESSAGES.names)


def topic_table(spark: SparkSession, lake: Lake, topic: str) -> DataFrame:
    """All that a lake has of a topic, with `topic`, `date` and `hour`, and `value` if its bodies
    have a schema. Raises LakeError if there is nothing."""
    folder = lake.topic_in_use(topic)
    stored = folder.body_schema()
    schema = _with_value(None if stored is None else StructType.fromJson(stored))
    reader = spark.read.schema(_with_folders(schema)).option("basePath", str(lake.path))
    return reader.parquet(str(folder.messages))


def rejected_table(spark: SparkSession, lake: Lake, topic: str) -> DataFrame | None:
    """What did not fit the schema, with a `reason`, if there is any."""
    folder = lake.topic(topic).rejected
    if not folder.is_dir():
        return None
    schema = _with_folders(StructType([*MESSAGES.fields]).add("reason", StringType()))
    return spark.read.schema(schema).option("basePath", str(folder.parent)).parquet(str(folder))


def lake_table(spark: SparkSession, files: Sequence[Path], schema: StructType | None) -> DataFrame:
    """These files, without what their folders say."""
    reader = spark.read.schema(_with_value(schema))
    return reader.parquet(*map(str, files))


def _with_value(body_schema: StructType | None) -> StructType:
    columns = StructType([*MESSAGES.fields])
    return columns if body_schema is None else columns.add("value", body_schema)


def _with_folders(schema: StructType) -> StructType:
    """And what the names of the folders say."""
    return schema.add("topic", StringType()).add("date", DateType()).add("hour", IntegerType())
