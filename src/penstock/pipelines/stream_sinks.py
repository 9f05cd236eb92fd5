"""The sinks of a stream: what becomes of a query's rows, and the query of Spark's that does it."""

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from penstock.common.errors import ConfigError, PipelineError
from penstock.pipelines.failures import in_words
from penstock.pipelines.stream_definition import Sink
from pyspark_nsq.outgoing import check_columns

__all__ = [
    "check_sink",
    "messages_of",
    "partition_columns",
    "start_query",
    "writer_to_files",
    "writer_to_topic",
]

# A query with these columns, and no others, makes its messages itself.
_OF_MESSAGES = {"body", "defer_ms"}


def messages_of(rows: DataFrame) -> DataFrame:
    """Each row as a JSON object, unless the query has made bodies of its own."""
    if "body" in rows.columns and set(rows.columns) <= _OF_MESSAGES:
        return rows
    return rows.selectExpr("to_json(struct(*)) AS body")


def check_sink(name: str, sink: Sink, rows: DataFrame) -> None:
    """Raises ConfigError if these rows cannot go there, and PipelineError if Spark cannot compute
    them in this mode."""
    try:
        if sink.topic:
            check_columns(messages_of(rows).schema, sink.topic)
        else:
            _check_partition_columns(partition_columns(sink), rows.schema)
        _check_streamable(rows, sink.mode)
    except ConfigError as failure:
        raise ConfigError(f"sinks.{name}: {failure}") from None
    except PySparkException as failure:
        raise PipelineError(f"sinks.{name}: {in_words(failure)}") from None


def writer_to_topic(messages: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """The topic is among the options."""
    return messages.writeStream.format("nsq").options(**options)


def writer_to_files(rows: DataFrame, sink: Sink, path: str) -> DataStreamWriter:
    """A folder for each value of the partition columns, if there are any."""
    options = {name: str(value) for name, value in sink.options.items()}
    writer = rows.writeStream.format(sink.format).options(**options).option("path", path)
    columns = partition_columns(sink)
    return writer.partitionBy(*columns) if columns else writer


def start_query(
    writer: DataStreamWriter,
    name: str,
    *,
    checkpoint: str,
    mode: str,
    trigger: Mapping[str, object],
) -> StreamingQuery:
    writer = writer.queryName(name).outputMode(mode).option("checkpointLocation", checkpoint)
    return writer.trigger(**trigger).start()  # type: ignore[call-overload, no-any-return]


def partition_columns(sink: Sink) -> list[str]:
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
