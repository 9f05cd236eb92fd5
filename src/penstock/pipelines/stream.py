"""`penstock stream`: streaming SQL from topics to topics and files.

Each sink, and each source with a topic for rejects, is a Spark query with its own checkpoint and
channel. All checks run before anything is written: first those without Spark (`check_order`), then
Spark's analysis of all queries. A preview (`--sample`, `--explain`) writes nothing.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.common.errors import ConfigError, PipelineError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.progress import Figures, ObservedCounts, QueryMeter
from penstock.pipelines.running import Running, Stop, begun, run_queries
from penstock.pipelines.spark_errors import telling_in_words
from penstock.pipelines.stream_definition import Sink, Source, StreamDefinition, channel_of
from penstock.pipelines.stream_tables import (
    check_sink,
    messages_of,
    misfits_of,
    partition_columns,
    start_query,
    table_of_source,
    tables,
    writer_to_files,
    writer_to_topic,
)
from pyspark_nsq.nodes import Survey
from pyspark_nsq.options import SinkOptions, SourceOptions

__all__ = [
    "Misfits",
    "Output",
    "Sample",
    "StreamOrder",
    "Survey",
    "check_order",
    "explanation",
    "locked",
    "misfits",
    "outputs",
    "run_stream",
    "samples",
    "source_options",
    "survey_sources",
]

# The name by which rows that come out are counted in the progress that Spark reports.
ROWS_OUT = "rows out"

# What Spark says when it cannot make sense of what a checkpoint remembers.
_OTHER_QUERY = re.compile(
    r"STATE_STORE_\w*SCHEMA|STATEFUL_OPERATOR_NOT_MATCH|sources in the checkpoint offsets"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """What is to be done, and where the nodes are unless a source or a sink has its own."""

    definition: StreamDefinition
    brokers: Brokers
    once: bool = False

    def brokers_of(self, part: Source | Sink) -> Brokers:
        """The token is for the nodes that it was given for."""
        if not part.nsqd and not part.lookupd:
            return self.brokers
        return Brokers(_listed(part.nsqd), _listed(part.lookupd))

    def checkpoint_of(self, output: str) -> str:
        return f"{absolute(self.definition.checkpoint)}/{output}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Rows that go somewhere, once `writer` is started: a sink's, or a source's rejects."""

    name: str
    rows: DataFrame
    writer: DataStreamWriter
    mode: str = "append"
    interval: str = "0 seconds"

    def start(self, order: StreamOrder) -> StreamingQuery:
        return start_query(
            self.writer,
            self.name,
            checkpoint=order.checkpoint_of(self.name),
            mode=self.mode,
            trigger={"availableNow": True} if order.once else {"processingTime": self.interval},
        )


# Before Spark is started.


def check_order(order: StreamOrder, *, writes: bool) -> None:
    """Whether it could run at all, as far as that can be known here. Changes nothing.

    Raises ConfigError.
    """
    definition = order.definition
    if writes and not definition.sinks:
        raise ConfigError("there is no sink: [sinks.NAME] has a topic or a path")
    for source in definition.sources.values():
        SourceOptions.parse(source_options(order, source), streaming=True)
    for sink in definition.sinks.values():
        if sink.topic:
            SinkOptions.parse(_sink_options(order, sink))
    if writes:
        folders = [sink.path for sink in definition.sinks.values() if sink.path]
        for folder in (definition.checkpoint, *folders):
            _check_writable(folder)


def survey_sources(order: StreamOrder) -> Survey:
    """What there is of all sources. Raises NotConnectedError; ConfigError if there is no such
    topic."""
    definition = order.definition
    # These are made as soon as there is something to publish.
    own = {sink.topic for sink in definition.sinks.values()}
    own |= {source.rejects for source in definition.sources.values()}
    surveys = [
        order.brokers_of(source).survey([source.topic])
        for source in definition.sources.values()
        if source.topic not in own
    ]
    logs = {key: found for survey in surveys for key, found in survey.logs.items()}
    failures = {str(failure): failure for survey in surveys for failure in survey.failures}
    return Survey(logs, tuple(failures.values()))


def _check_writable(folder: str) -> None:
    if "://" in folder:
        return
    path = Path(absolute(folder))
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(f"cannot write to {folder}: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {folder}: no permission in {there}")


# With Spark.


def run_stream(
    spark: SparkSession, order: StreamOrder, survey: Survey, stop: Stop
) -> list[Figures]:
    """Until it is told to stop or, with `once`, until all that was there has been read.

    Raises PipelineError or ConfigError.
    """
    ends = {key: found.log.next_seq for key, found in survey.logs.items()}
    with telling_in_words(), ExitStack() as stack:
        ready = outputs(spark, order)
        stack.enter_context(locked(order.definition.checkpoint))
        running: list[Running] = []
        for output in ready:
            if stop.is_asked:
                break
            query = begun(partial(output.start, order), stop)
            stack.callback(query.stop)
            target = ends if order.once else None  # of what it does not read, nothing is left
            meter = QueryMeter(output.name, target=target, counts=_counts_of(query))
            running.append(Running(query, meter))
        try:
            return run_queries("stream", running, stop)
        except PipelineError as failure:
            raise PipelineError(_with_name(str(failure), running, order)) from failure


def _counts_of(query: StreamingQuery) -> Callable[[], dict[str, int]]:
    """A function that returns the rows rejected and written so far, as observed by Spark."""
    observed = ObservedCounts()
    return lambda: observed.totals(query.recentProgress)


def _with_name(words: str, running: Sequence[Running], order: StreamOrder) -> str:
    """Which query failed, and what to do if it is no longer the one that its checkpoint is of."""
    for query, meter in running:
        failure = query.exception()
        if failure is not None and _OTHER_QUERY.search(str(failure)):
            checkpoint = order.checkpoint_of(meter.name)
            return (
                f"{meter.name}: the query is another one than that of its checkpoint {checkpoint},"
                f" and cannot go on from there: name another by --checkpoint ({words})"
            )
        if failure is not None:
            return f"{meter.name}: {words}"
    return words


def outputs(spark: SparkSession, order: StreamOrder) -> list[Output]:
    """All that is to be started, checked by Spark. Raises ConfigError, PipelineError or what
    Spark raises."""
    with telling_in_words():
        sinks = [_output(spark, order, *each) for each in order.definition.sinks.items()]
        rejects = [
            _rejects(spark, order, name, source)
            for name, source in order.definition.sources.items()
            if source.rejects
        ]
        return sinks + rejects


def _output(spark: SparkSession, order: StreamOrder, name: str, sink: Sink) -> Output:
    needed = order.definition.needed_for(sink.query)
    channel = channel_of(order.definition, name)
    messages = {
        each: _stream(spark, source_options(order, source, channel))
        for each, source in needed.sources.items()
    }
    with tables(spark, needed, messages) as made:
        rows = made[sink.query]
        check_sink(name, sink, rows)
        counted = rows.observe(ROWS_OUT, sql.count(sql.lit(1)).alias(ROWS_OUT))
        if sink.topic:
            writer = writer_to_topic(messages_of(counted), _sink_options(order, sink))
        else:
            writer = writer_to_files(counted, sink, absolute(sink.path))
    return Output(name=name, rows=rows, writer=writer, mode=sink.mode, interval=sink.interval)


def _rejects(spark: SparkSession, order: StreamOrder, name: str, source: Source) -> Output:
    output = f"rejects.{name}"
    options = source_options(order, source, channel_of(order.definition, output))
    rows = misfits_of(source, _stream(spark, options))
    counted = rows.observe(ROWS_OUT, sql.count(sql.lit(1)).alias(ROWS_OUT))
    to = {**order.brokers_of(source).options(), "topic": source.rejects}
    return Output(name=output, rows=rows, writer=writer_to_topic(counted, to))


def _stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    parallel = {"minPartitions": str(spark.sparkContext.defaultParallelism)}
    return spark.readStream.format("nsq").options(**{**parallel, **options}).load()


# Options.


def source_options(order: StreamOrder, source: Source, channel: str = "") -> dict[str, str]:
    """Of Spark's `format("nsq")`; the user's own win."""
    is_place = source.start in ("earliest", "latest")
    options = {
        **order.brokers_of(source).options(),
        "topic": source.topic,
        "startingOffsets" if is_place else "startingTimestamp": source.start,
        "maxMessagesPerTrigger": str(source.max_messages),
        **({"channel": channel} if channel else {}),
    }
    return {**options, **_texts(source.options)}


def _sink_options(order: StreamOrder, sink: Sink) -> dict[str, str]:
    return {**order.brokers_of(sink).options(), "topic": sink.topic, **_texts(sink.options)}


def _texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _listed(addresses: str | Sequence[str]) -> tuple[str, ...]:
    parts = addresses.split(",") if isinstance(addresses, str) else addresses
    return tuple(part.strip() for part in parts if part.strip())


def absolute(folder: str) -> str:
    """As Spark wants it, whose own folder is another on a cluster; a URL as it is."""
    return folder if "://" in folder else str(Path(folder).absolute())


@contextmanager
def locked(checkpoint: str) -> Iterator[None]:
    """Two of them at one checkpoint would spoil each other's work."""
    if "://" in checkpoint:
        yield
        return
    folder = Path(absolute(checkpoint))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("wb")
    except OSError as failure:
        raise ConfigError(f"cannot write to {checkpoint} - {failure.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another process uses the checkpoint {checkpoint}") from None
        yield


# Preview.


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
