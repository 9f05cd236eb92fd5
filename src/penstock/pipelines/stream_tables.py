"""The sources and the queries of a stream as tables of Spark's, by the names they are given.

Of a source with a schema, the columns are those of the schema and then the message's own, `topic`,
`node`, `seq`, `id` and `timestamp`; one whose name the schema has taken is `message_...` instead.
What does not fit the schema is left out, and counted as it passes.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from penstock.common.errors import ConfigError, PipelineError
from penstock.pipelines.failures import in_words
from penstock.pipelines.json_columns import is_misfit, with_value
from penstock.pipelines.schemas import parse_schema
from penstock.pipelines.stream_definition import Source, StreamDefinition

__all__ = ["REJECTED", "misfits_of", "table_of_source", "tables"]

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
            made[name] = table_of_source(name, source, messages[name])
            made[name].createOrReplaceTempView(name)
        for name, text in definition.queries.items():
            made[name] = _of_query(spark, name, text)
        yield made
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def table_of_source(name: str, source: Source, messages: DataFrame) -> DataFrame:
    """Raises ConfigError if the schema or the watermark is wrong."""
    try:
        table = _with_columns(name, source, messages) if source.schema else messages
        return _with_watermark(source, table)
    except ConfigError as failure:
        raise ConfigError(f"sources.{name}: {failure}") from None


def misfits_of(source: Source, messages: DataFrame) -> DataFrame:
    """The bodies that do not fit the source's schema."""
    schema = parse_schema(source.schema)
    return with_value(messages, schema).where(is_misfit(schema)).select("body")


def _with_columns(name: str, source: Source, messages: DataFrame) -> DataFrame:
    schema = parse_schema(source.schema)
    judged = with_value(messages, schema).withColumn("is_misfit", is_misfit(schema))
    # Counting stands between parsing and filtering, which keeps Spark from parsing twice.
    counted = judged.observe(name, sql.count(sql.when(sql.col("is_misfit"), 1)).alias(REJECTED))
    return counted.where("NOT is_misfit").select(*_fields(schema), *_own_columns(schema))


def _fields(schema: StructType) -> list[Column]:
    return [sql.col("value").getField(name).alias(name) for name in schema.names]


def _own_columns(schema: StructType) -> list[Column]:
    taken = {name.lower() for name in schema.names}
    names = {own: f"message_{own}" if own in taken else own for own in OWN_COLUMNS}
    for own, name in names.items():
        if name in taken:
            raise ConfigError(f"the schema cannot have both {own} and {name}")
    return [sql.col(own).alias(name) for own, name in names.items()]


def _with_watermark(source: Source, table: DataFrame) -> DataFrame:
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
    words = _PLACE.sub("", in_words(failure))
    if place is None:
        return words
    return f"{words} (line {int(place[1]) - 1}, column {int(place[2]) + 1})"
