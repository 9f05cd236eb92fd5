"""Spark tables of a lake, and the schemas of message bodies.

A schema is written as DDL (`user string, total double`), on the command line or in a file, or in
Spark's JSON form in a file. A body matches a schema if it is a JSON object whose fields have the
types of the schema. Missing fields are null, unless the schema declares them NOT NULL. Additional
fields are ignored.
"""

import json
from collections.abc import Sequence
from functools import reduce
from operator import or_
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.common.errors import ConfigError
from penstock.pipelines.lake import Lake, TopicFolder
from penstock.pipelines.spark_errors import error_line
from pyspark_nsq import infer_json_schema

__all__ = [
    "INFER",
    "MESSAGE_COLUMNS",
    "files_table",
    "parse_bodies",
    "parse_ddl",
    "parse_schema",
    "rejected_table",
    "rejection_reason",
    "resolve_schema",
    "topic_table",
    "value_column",
    "violates_schema",
]

MESSAGES = (
    StructType()
    .add("log", StringType())  # null in files of earlier versions
    .add("node", IntegerType())
    .add("seq", LongType())
    .add("id", StringType())
    .add("timestamp", TimestampType())
    .add("timestamp_ns", LongType())
    .add("body", BinaryType())
)
MESSAGE_COLUMNS = tuple(MESSAGES.names)

INFER = "infer"

# Column that Spark's inference adds for bodies that are not JSON.
_NOT_JSON = "_corrupt_record"

# Field in which Spark stores text that it cannot parse.
_UNPARSED = "__unparsed"


def topic_table(spark: SparkSession, lake: Lake, topic: str) -> DataFrame:
    """The messages of a topic, with the columns `topic`, `date` and `hour`, and `value` if the
    bodies have a schema. Raises LakeError if the lake does not have the topic."""
    folder = lake.existing_topic(topic)
    stored = folder.body_schema()
    schema = _with_value(None if stored is None else StructType.fromJson(stored))
    reader = spark.read.schema(_with_folders(schema)).option("basePath", str(lake.path))
    return reader.parquet(str(folder.messages))


def rejected_table(spark: SparkSession, lake: Lake, topic: str) -> DataFrame | None:
    """The rejected messages of a topic, with a `reason`; None if there are none."""
    folder = lake.topic(topic).rejected
    if not folder.is_dir():
        return None
    schema = _with_folders(StructType([*MESSAGES.fields]).add("reason", StringType()))
    return spark.read.schema(schema).option("basePath", str(folder.parent)).parquet(str(folder))


def files_table(spark: SparkSession, files: Sequence[Path], schema: StructType | None) -> DataFrame:
    """The rows of these files, without the partition columns."""
    reader = spark.read.schema(_with_value(schema))
    return reader.parquet(*map(str, files))


def _with_value(body_schema: StructType | None) -> StructType:
    columns = StructType([*MESSAGES.fields])
    return columns if body_schema is None else columns.add("value", body_schema)


def _with_folders(schema: StructType) -> StructType:
    """Add the partition columns, whose values are in the names of the folders."""
    return schema.add("topic", StringType()).add("date", DateType()).add("hour", IntegerType())


# Schemas of bodies.


def resolve_schema(topic: TopicFolder, requested: str, table: DataFrame) -> StructType | None:
    """Schema for archiving a topic: the requested one, the lake's, or None.

    `table` contains the topic's messages, for inference. Raises ConfigError if the requested schema
    is invalid or contradicts the lake's.
    """
    stored = topic.body_schema()
    known = StructType.fromJson(stored) if stored is not None else None
    if not requested or (requested == INFER and known is not None):
        return known
    wanted = _inferred(topic.name, table) if requested == INFER else parse_schema(requested)
    if known is not None:
        _check_extends(topic.name, known, wanted)
    return wanted


def parse_schema(text: str) -> StructType:
    """Parse a schema from a file, if `text` is the path of one, or from the text. Raises
    ConfigError."""
    content = text
    if Path(text).is_file():
        try:
            content = Path(text).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as failure:
            raise ConfigError(f"cannot read {text}: {failure}") from None
    if not content.startswith("{"):
        return parse_ddl(content)
    try:
        return StructType.fromJson(json.loads(content))
    except (ValueError, KeyError, TypeError) as failure:
        raise ConfigError(f"{text} is not a schema in Spark's JSON form: {failure!r}") from None


def value_column(schema: StructType) -> Column:
    """Column `value` of the lake: exactly the fields of the schema."""
    fields = (sql.col("value").getField(name).alias(name) for name in schema.names)
    return sql.struct(*fields).alias("value")


def rejection_reason() -> Column:
    """Column `reason` of rejected messages."""
    is_object = sql.from_json(sql.col("body").cast("string"), "map<string,string>").isNotNull()
    reason = sql.when(is_object, "it does not fit the schema").otherwise("it is no JSON object")
    return reason.alias("reason")


def _inferred(topic: str, table: DataFrame) -> StructType:
    found = infer_json_schema(table)
    fields = [field for field in found.fields if field.name != _NOT_JSON]
    if not fields:
        raise ConfigError(f"cannot infer a schema: the first messages of {topic} are not JSON")
    return StructType(fields)


def _check_extends(topic: str, known: StructType, wanted: StructType) -> None:
    """Additional fields are allowed; they are null in older files."""
    kinds = {field.name: field.dataType for field in wanted.fields}
    for field in known.fields:
        if kinds.get(field.name) != field.dataType:
            raise ConfigError(
                f"the lake has another schema for {topic}: field {field.name} is"
                f" {field.dataType.simpleString()} there; only adding fields is possible"
            )


# JSON bodies.


def parse_ddl(ddl: str) -> StructType:
    """Raises ConfigError if the DDL is invalid. Requires a running Spark session."""
    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as failure:
        raise ConfigError(f"invalid schema {ddl!r}: {error_line(failure)}") from None
    if not isinstance(schema, StructType) or not schema.fields:
        raise ConfigError(f"invalid schema {ddl!r}: it has no fields")
    names = [field.name.lower() for field in schema.fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"invalid schema {ddl!r}: it has two fields {twice}")
    return schema


def parse_bodies(messages: DataFrame, schema: StructType) -> DataFrame:
    """Add a struct column `value` with the parsed fields of the body."""
    fields = [StructField(field.name, field.dataType) for field in schema.fields]
    kind = StructType([*fields, StructField(_UNPARSED, StringType())])
    options = {"columnNameOfCorruptRecord": _UNPARSED}
    value = sql.from_json(sql.col("body").cast("string"), kind, options)
    return messages.withColumn("value", value)


def violates_schema(schema: StructType) -> Column:
    """Condition that is true if the body violates the schema, for rows of `parse_bodies`."""
    value = sql.col("value")
    required = [field.name for field in schema.fields if not field.nullable]
    missing = (value.getField(name).isNull() for name in required)
    return reduce(or_, missing, value.isNull() | value.getField(_UNPARSED).isNotNull())
