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
    folder = lake.existing_topic(topic)
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


def files_table(spark: SparkSession, files: Sequence[Path], schema: StructType | None) -> DataFrame:
    """These files, without what their folders say."""
    reader = spark.read.schema(_with_value(schema))
    return reader.parquet(*map(str, files))


def _with_value(body_schema: StructType | None) -> StructType:
    columns = StructType([*MESSAGES.fields])
    return columns if body_schema is None else columns.add("value", body_schema)


def _with_folders(schema: StructType) -> StructType:
    """And what the names of the folders say."""
    return schema.add("topic", StringType()).add("date", DateType()).add("hour", IntegerType())


# Schemas of bodies.


INFER = "infer"

# What Spark's own inference calls a body that is no JSON.
_NOT_JSON = "_corrupt_record"


def resolve_schema(topic: TopicFolder, wish: str, table: DataFrame) -> StructType | None:
    """The lake's, the wish, or none. `table` is what there is of the topic, to infer from.

    Raises ConfigError if the wish is no schema, or if the lake's is another one.
    """
    stored = topic.body_schema()
    known = StructType.fromJson(stored) if stored is not None else None
    if not wish or (wish == INFER and known is not None):
        return known
    wanted = _inferred(topic.name, table) if wish == INFER else parse_schema(wish)
    if known is not None:
        _check_extends(topic.name, known, wanted)
    return wanted


def parse_schema(text: str) -> StructType:
    """Of a file of that name if there is one, or of the text itself. Raises ConfigError."""
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
        raise ConfigError(f"{text} is no schema as Spark writes one: {failure!r}") from None


def value_column(schema: StructType) -> Column:
    """`value` as the lake has it: the fields of the schema, and nothing else."""
    fields = (sql.col("value").getField(name).alias(name) for name in schema.names)
    return sql.struct(*fields).alias("value")


def rejection_reason() -> Column:
    """`reason`, in words, for a body that does not fit."""
    is_object = sql.from_json(sql.col("body").cast("string"), "map<string,string>").isNotNull()
    words = sql.when(is_object, "it does not fit the schema").otherwise("it is no JSON object")
    return words.alias("reason")


def _inferred(topic: str, table: DataFrame) -> StructType:
    found = infer_json_schema(table)
    fields = [field for field in found.fields if field.name != _NOT_JSON]
    if not fields:
        raise ConfigError(f"no schema can be inferred: the first messages of {topic} are no JSON")
    return StructType(fields)


def _check_extends(topic: str, known: StructType, wanted: StructType) -> None:
    """More fields are welcome: where there were none, they read as null."""
    kinds = {field.name: field.dataType for field in wanted.fields}
    for field in known.fields:
        if kinds.get(field.name) != field.dataType:
            raise ConfigError(
                f"the lake has {topic} with another schema: field {field.name} is"
                f" {field.dataType.simpleString()} there; fields can be added, and no more"
            )


# JSON bodies.


# Where Spark puts the text of what it cannot parse.
_UNPARSED = "__unparsed"


def parse_ddl(ddl: str) -> StructType:
    """Raises ConfigError if it is none. Needs a Spark that runs."""
    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as failure:
        raise ConfigError(f"{ddl!r} is no schema: {error_line(failure)}") from None
    if not isinstance(schema, StructType) or not schema.fields:
        raise ConfigError(f"{ddl!r} is no schema: it has no fields")
    names = [field.name.lower() for field in schema.fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{ddl!r} is no schema: there are two fields {twice}")
    return schema


def parse_bodies(messages: DataFrame, schema: StructType) -> DataFrame:
    """The same with the fields of the body in a struct `value` as well."""
    fields = [StructField(field.name, field.dataType) for field in schema.fields]
    kind = StructType([*fields, StructField(_UNPARSED, StringType())])
    options = {"columnNameOfCorruptRecord": _UNPARSED}
    value = sql.from_json(sql.col("body").cast("string"), kind, options)
    return messages.withColumn("value", value)


def violates_schema(schema: StructType) -> Column:
    """Whether a body does not fit, of rows that `parse_bodies` has made."""
    value = sql.col("value")
    required = [field.name for field in schema.fields if not field.nullable]
    missing = (value.getField(name).isNull() for name in required)
    return reduce(or_, missing, value.isNull() | value.getField(_UNPARSED).isNotNull())
