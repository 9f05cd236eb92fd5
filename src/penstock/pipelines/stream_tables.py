"""The sources, queries and sinks of a stream as Spark DataFrames.

A source with a schema has the columns of the schema, followed by the message's own: `topic`,
`node`, `seq`, `id` and `timestamp`. If the schema uses one of these names, the message's column is
called `message_...`. Messages that violate the schema are filtered out and counted.
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
    "source_table",
    "start_writer",
    "tables",
    "to_messages",
    "violations_of",
    "writer_to_files",
    "writer_to_topic",
]

REJECTED = "rejected"
"""The name by which misfits are counted in the progress that Spark reports."""

OWN_COLUMNS = ("topic", "node", "seq", "id", "timestamp")

# What stands before a query's text when Spark reads it. It ends a line, so that columns are right.
_CREATE = "CREATE OR REPLACE TEMPORARY VIEW `{}` AS\n"
_PLACE = re.compile(r"[;,]? \(?line (\d+),? pos (\d+)\)?;?")


@contextmanager
def tables(
    spark: SparkSession, definition: StreamDefinition, messages: Mapping[str, DataFrame]
) -> Iterator[Mapping[str, DataFrame]]:
    """All sources and queries by their names; `messages` are those of the sources.

    Raises ConfigError for a schema, and PipelineError for SQL, that Spark does not take.
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
    """Raises ConfigError if the schema or the watermark is wrong."""
    try:
        table = _with_columns(name, source, messages) if source.schema else messages
        return _with_watermark(source, table)
    except ConfigError as failure:
        raise ConfigError(f"sources.{name}: {failure}") from None


def violations_of(source: SourceDefinition, messages: DataFrame) -> DataFrame:
    """The bodies that do not fit the source's schema."""
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
        raise ConfigError(f"watermark: there is no column {column} among {', '.join(kinds)}")
    if kinds[column] != "timestamp":
        raise ConfigError(f"watermark: {column} is {kinds[column]}, and must be a timestamp")
    return table.withWatermark(column, delay)


def _of_query(spark: SparkSession, name: str, text: str) -> DataFrame:
    """As a view: then Spark takes no statement that would do something."""
    try:
        spark.sql(_CREATE.format(name) + text)
        # Spark explains and starts only what it sees to be a stream, which a name alone is not.
        return spark.table(name).select("*")
    except PySparkException as failure:
        raise PipelineError(f"queries.{name}: {_with_place(failure)}") from None


def _with_place(failure: PySparkException) -> str:
    """Spark's sentence, and the line and the column as the user counts them."""
    place = _PLACE.search(str(failure))
    words = _PLACE.sub("", error_line(failure))
    if place is None:
        return words
    return f"{words} (line {int(place[1]) - 1}, column {int(place[2]) + 1})"


# Sinks.


# A query with these columns, and no others, makes its messages itself.
_OF_MESSAGES = {"body", "defer_ms"}


def to_messages(rows: DataFrame) -> DataFrame:
    """Each row as a JSON object, unless the query has made bodies of its own."""
    if "body" in rows.columns and set(rows.columns) <= _OF_MESSAGES:
        return rows
    return rows.selectExpr("to_json(struct(*)) AS body")


def check_sink(name: str, sink: SinkDefinition, rows: DataFrame) -> None:
    """Raises ConfigError if these rows cannot go there, and PipelineError if Spark cannot compute
    them in this mode."""
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
    """The topic is among the options."""
    return messages.writeStream.format("nsq").options(**options)


def writer_to_files(rows: DataFrame, sink: SinkDefinition, path: str) -> DataStreamWriter:
    """A folder for each value of the partition columns, if there are any."""
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
    """One may stand alone in the file."""
    columns = sink.partition_by
    return [column for column in ([columns] if isinstance(columns, str) else columns) if column]


def _check_partition_columns(columns: list[str], schema: StructType) -> None:
    for column in columns:
        if column not in schema.names:
            there = ", ".join(schema.names)
            raise ConfigError(f"partition_by: there is no column {column} among {there}")


def _check_streamable(rows: DataFrame, mode: str) -> None:
    """Spark checks this when a query starts; by then, it and others would have written."""
    jvm = rows.sparkSession._jvm  # noqa: SLF001
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), wanted)  # noqa: SLF001
