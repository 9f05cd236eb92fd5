"""The sources, queries and sinks of a stream as Spark DataFrames.

A source with a schema has the columns of the schema, followed by the message's own: `topic`,
`log`, `node`, `seq`, `id` and `timestamp`. If the schema uses one of these names, the message's
column is called `message_...`. Messages that violate the schema are filtered out and counted.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from penstock.common.errors import ConfigError, PipelineError
from penstock.pipelines.spark_errors import error_line
from penstock.pipelines.stream_definition import SinkDefinition, SourceDefinition, StreamDefinition
from penstock.pipelines.tables import parse_bodies, parse_schema, violates_schema
from pyspark_nsq.sink import check_columns

__all__ = [
    "REJECTED",
    "check_sink",
    "partition_columns",
    "select_violations",
    "source_table",
    "start_writer",
    "temporary_views",
    "to_messages",
    "writer_to_files",
    "writer_to_topic",
]

REJECTED = "rejected"
"""Name of the metric for rejected messages in Spark's progress reports."""

OWN_COLUMNS = ("topic", "log", "node", "seq", "id", "timestamp")

# Prefix of a query. It ends with a line break, so that columns in Spark's errors are right.
_CREATE = "CREATE OR REPLACE TEMPORARY VIEW `{}` AS\n"
_PLACE = re.compile(r"[;,]? \(?line (\d+),? pos (\d+)\)?;?")

# A query with only these columns defines the messages itself.
_MESSAGE_COLUMNS = {"body", "defer_ms"}


@contextmanager
def temporary_views(
    spark: SparkSession, definition: StreamDefinition, messages: Mapping[str, DataFrame]
) -> Iterator[Mapping[str, DataFrame]]:
    """Create temporary views for all sources and queries; `messages` has those of the sources.

    Raises ConfigError for an invalid schema, and PipelineError for invalid SQL.
    """
    made: dict[str, DataFrame] = {}
    try:
        for name, source in definition.sources.items():
            made[name] = source_table(name, source, messages[name])
            made[name].createOrReplaceTempView(name)
        for name, text in definition.queries.items():
            made[name] = _of_query(spark, name, text)
        yield made
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def source_table(name: str, source: SourceDefinition, messages: DataFrame) -> DataFrame:
    """Raises ConfigError if the schema or the watermark is invalid."""
    try:
        table = _with_columns(name, source, messages) if source.schema else messages
        return _with_watermark(source, table)
    except ConfigError as failure:
        raise ConfigError(f"sources.{name}: {failure}") from None


def select_violations(source: SourceDefinition, messages: DataFrame) -> DataFrame:
    """The bodies that violate the source's schema."""
    schema = parse_schema(source.schema)
    return parse_bodies(messages, schema).where(violates_schema(schema)).select("body")


def _with_columns(name: str, source: SourceDefinition, messages: DataFrame) -> DataFrame:
    schema = parse_schema(source.schema)
    judged = parse_bodies(messages, schema).withColumn("violates_schema", violates_schema(schema))
    # Counting stands between parsing and filtering, which keeps Spark from parsing twice.
    counted = judged.observe(
        name, sql.count(sql.when(sql.col("violates_schema"), 1)).alias(REJECTED)
    )
    return counted.where("NOT violates_schema").select(*_fields(schema), *_own_columns(schema))


def _fields(schema: StructType) -> list[Column]:
    return [sql.col("value").getField(name).alias(name) for name in schema.names]


def _own_columns(schema: StructType) -> list[Column]:
    taken = {name.lower() for name in schema.names}
    names = {own: f"message_{own}" if own in taken else own for own in OWN_COLUMNS}
    for own, name in names.items():
        if name in taken:
            raise ConfigError(f"the schema cannot have both {own} and {name}")
    return [sql.col(own).alias(name) for own, name in names.items()]


def _with_watermark(source: SourceDefinition, table: DataFrame) -> DataFrame:
    if source.event_time is None:
        return table
    column, delay = source.event_time
    kinds = {field.name: field.dataType.simpleString() for field in table.schema.fields}
    if column not in kinds:
        raise ConfigError(f"watermark: no column {column}; columns: {', '.join(kinds)}")
    if kinds[column] != "timestamp":
        raise ConfigError(f"watermark: {column} must be a timestamp, not {kinds[column]}")
    return table.withWatermark(column, delay)


def _of_query(spark: SparkSession, name: str, text: str) -> DataFrame:
    """Create the query as a view, which rules out statements with side effects."""
    try:
        spark.sql(_CREATE.format(name) + text)
        # The select makes Spark recognise a stream; the name of a view alone does not.
        return spark.table(name).select("*")
    except PySparkException as failure:
        raise PipelineError(f"queries.{name}: {_with_place(failure)}") from None


def _with_place(failure: PySparkException) -> str:
    """Spark's message, with line and column of the user's SQL."""
    place = _PLACE.search(str(failure))
    message = _PLACE.sub("", error_line(failure))
    if place is None:
        return message
    return f"{message} (line {int(place[1]) - 1}, column {int(place[2]) + 1})"


# Sinks.


def to_messages(rows: DataFrame) -> DataFrame:
    """Convert rows to JSON objects, unless the query defines the bodies."""
    if "body" in rows.columns and set(rows.columns) <= _MESSAGE_COLUMNS:
        return rows
    return rows.selectExpr("to_json(struct(*)) AS body")


def check_sink(name: str, sink: SinkDefinition, rows: DataFrame) -> None:
    """Raises ConfigError if the sink cannot store these rows, and PipelineError if Spark does not
    support the query in this mode."""
    try:
        if sink.topic:
            check_columns(to_messages(rows).schema, sink.topic)
        else:
            _check_partition_columns(partition_columns(sink), rows.schema)
        _check_streamable(rows, sink.mode)
    except ConfigError as failure:
        raise ConfigError(f"sinks.{name}: {failure}") from None
    except PySparkException as failure:
        raise PipelineError(f"sinks.{name}: {error_line(failure)}") from None


def writer_to_topic(messages: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """The options include the topic."""
    return messages.writeStream.format("nsq").options(**options)


def writer_to_files(rows: DataFrame, sink: SinkDefinition, path: str) -> DataStreamWriter:
    """Creates a folder for each value of the partition columns."""
    options = {name: str(value) for name, value in sink.options.items()}
    writer = rows.writeStream.format(sink.format).options(**options).option("path", path)
    columns = partition_columns(sink)
    return writer.partitionBy(*columns) if columns else writer


def start_writer(
    writer: DataStreamWriter,
    name: str,
    *,
    checkpoint: str,
    mode: str,
    trigger: Mapping[str, object],
) -> StreamingQuery:
    writer = writer.queryName(name).outputMode(mode).option("checkpointLocation", checkpoint)
    return writer.trigger(**trigger).start()  # type: ignore[call-overload, no-any-return]


def partition_columns(sink: SinkDefinition) -> list[str]:
    """The definition may have a single column instead of a list."""
    columns = sink.partition_by
    return [column for column in ([columns] if isinstance(columns, str) else columns) if column]


def _check_partition_columns(columns: list[str], schema: StructType) -> None:
    for column in columns:
        if column not in schema.names:
            there = ", ".join(schema.names)
            raise ConfigError(f"partition_by: no column {column}; columns: {there}")


def _check_streamable(rows: DataFrame, mode: str) -> None:
    """Check the query before any output is written; Spark itself checks it at the start only."""
    jvm = rows.sparkSession._jvm  # noqa: SLF001
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), wanted)  # noqa: SLF001
