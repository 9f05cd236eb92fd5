"""A look at a stream before it runs: what its queries make of history, and how Spark would do it.

Writes nothing anywhere.
"""

from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO

from pyspark.sql import DataFrame, Row, SparkSession

from penstock.pipelines.failures import telling_in_words
from penstock.pipelines.stream import Output, StreamOrder, outputs, source_options
from penstock.pipelines.stream_definition import Sink, Source
from penstock.pipelines.stream_sinks import partition_columns
from penstock.pipelines.stream_tables import misfits_of, table_of_source, tables

__all__ = ["Misfits", "Sample", "explanation", "misfits", "samples"]

# So many messages of a source are looked at to see whether its schema is right.
MISFITS_AMONG = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows of a query."""

    query: str
    columns: list[str]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Misfits:
    """Messages that do not fit a source's schema, among its first ones; and one of them."""

    source: str
    count: int
    among: int
    example: bytes


def samples(spark: SparkSession, order: StreamOrder, rows_max: int) -> Iterator[Sample]:
    """What the queries of all sinks make of history; of the last query, if there are no sinks.

    Raises ConfigError or PipelineError.
    """
    definition = order.definition
    last = list(definition.queries or definition.sources)[-1]
    for query in dict.fromkeys(sink.query for sink in definition.sinks.values()) or [last]:
        yield _sample(spark, order, query, rows_max)


def misfits(spark: SparkSession, order: StreamOrder) -> Iterator[Misfits]:
    """Of each source that has some. Raises ConfigError or PipelineError."""
    for name, source in order.definition.sources.items():
        if source.schema:
            with telling_in_words():
                first = _history(spark, order, source).limit(MISFITS_AMONG)
                bodies = misfits_of(source, first).collect()
                if bodies:
                    yield Misfits(name, len(bodies), first.count(), bytes(bodies[0].body))


def explanation(spark: SparkSession, order: StreamOrder) -> str:
    """Sources, queries and sinks with their columns, and Spark's plan for each of its queries.

    Raises ConfigError or PipelineError.
    """
    definition = order.definition
    with telling_in_words():
        made = outputs(spark, order)
        sources = [
            f"{name}: {_source_words(source)}\n    "
            + _columns(table_of_source(name, source, _history(spark, order, source)))
            for name, source in definition.sources.items()
        ]
        sinks = [_sink_words(order, each) + "\n    " + _columns(each.rows) for each in made]
        plans = [f"{each.name}:\n\n{_plan(each.rows)}" for each in made]
    return "\n\n".join(
        [_section("Sources", sources), _section("Sinks", sinks), "Spark's plans\n", *plans]
    )


def _sample(spark: SparkSession, order: StreamOrder, query: str, rows_max: int) -> Sample:
    needed = order.definition.needed_for(query)
    with telling_in_words():
        messages = {name: _history(spark, order, each) for name, each in needed.sources.items()}
        with tables(spark, needed, messages) as made:
            return Sample(query, made[query].columns, made[query].limit(rows_max).collect())


def _history(spark: SparkSession, order: StreamOrder, source: Source) -> DataFrame:
    """What there is of it, as a table."""
    options = source_options(order, source)
    del options["maxMessagesPerTrigger"]
    if source.start == "latest":
        del options["startingOffsets"]
    return spark.read.format("nsq").options(**options).load()


# Words.


def _section(title: str, parts: list[str]) -> str:
    return "\n".join([title, "", *(f"  {part}" for part in parts)])


def _source_words(source: Source) -> str:
    words = [f"topic {source.topic}, from {source.start}"]
    if source.event_time is not None:
        words.append(f"waits {source.event_time.delay} for late rows by {source.event_time.column}")
    if source.schema:
        words.append(
            f"what does not fit goes to topic {source.rejects}"
            if source.rejects
            else "what does not fit is left out and counted"
        )
    return "; ".join(words)


def _sink_words(order: StreamOrder, output: Output) -> str:
    sink = order.definition.sinks.get(output.name)
    where = _destination(sink) if sink is not None else "topic " + _topic_of_rejects(order, output)
    how = f"mode {output.mode}, checkpoint {order.checkpoint_of(output.name)}"
    return f"{output.name}: to {where}; {how}"


def _destination(sink: Sink) -> str:
    if sink.topic:
        return f"topic {sink.topic}"
    by = partition_columns(sink)
    return f"{sink.format} files in {sink.path}" + (f" by {', '.join(by)}" if by else "")


def _topic_of_rejects(order: StreamOrder, output: Output) -> str:
    return order.definition.sources[output.name.removeprefix("rejects.")].rejects


def _columns(rows: DataFrame) -> str:
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in rows.schema.fields)


def _plan(rows: DataFrame) -> str:
    written = StringIO()
    with redirect_stdout(written):
        rows.explain()
    return written.getvalue().partition("\n")[2].rstrip()
