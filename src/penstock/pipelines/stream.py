"""`penstock stream`: streaming SQL from topics to topics and files.

Each sink, and each source with a topic for rejects, is a Spark query with its own checkpoint and
channel. All checks run before anything is written: first those without Spark (`check_config`), then
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
from penstock.pipelines.progress import ObservedCounts, QueryMeter, QueryMetrics
from penstock.pipelines.running import RunningQuery, Stop, run_queries, start_query
from penstock.pipelines.spark_errors import translate_spark_errors
from penstock.pipelines.stream_definition import (
    SinkDefinition,
    SourceDefinition,
    StreamDefinition,
    channel_name,
)
from penstock.pipelines.stream_tables import (
    check_sink,
    partition_columns,
    select_violations,
    source_table,
    start_writer,
    temporary_views,
    to_messages,
    writer_to_files,
    writer_to_topic,
)
from pyspark_nsq.nodes import ClusterSnapshot
from pyspark_nsq.options import SinkOptions, SourceOptions

__all__ = [
    "ClusterSnapshot",
    "QuerySample",
    "SchemaViolations",
    "StreamConfig",
    "StreamOutput",
    "check_config",
    "explain_stream",
    "locked",
    "plan_outputs",
    "query_samples",
    "run_stream",
    "schema_violations",
    "source_options",
    "survey_sources",
]

# Name of the metric for written rows in Spark's progress reports.
ROWS_OUT = "rows out"

# Spark's errors for a query that does not match its checkpoint.
_OTHER_QUERY = re.compile(
    r"STATE_STORE_\w*SCHEMA|STATEFUL_OPERATOR_NOT_MATCH|sources in the checkpoint offsets"
)

# Number of messages of a source that a preview validates against its schema.
VALIDATED_MESSAGES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Options of `penstock stream`. `brokers` is the default for sources and sinks."""

    definition: StreamDefinition
    brokers: Brokers
    once: bool = False

    def brokers_of(self, part: SourceDefinition | SinkDefinition) -> Brokers:
        """Nodes of a source or sink. Its own nodes do not get the token of the command line."""
        if not part.nsqd and not part.lookupd:
            return self.brokers
        return Brokers(_listed(part.nsqd), _listed(part.lookupd))

    def checkpoint_of(self, output: str) -> str:
        return f"{absolute(self.definition.checkpoint)}/{output}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOutput:
    """An output of the stream: the rows of a sink, or the rejects of a source."""

    name: str
    rows: DataFrame
    writer: DataStreamWriter
    mode: str = "append"
    interval: str = "0 seconds"

    def start(self, config: StreamConfig) -> StreamingQuery:
        return start_writer(
            self.writer,
            self.name,
            checkpoint=config.checkpoint_of(self.name),
            mode=self.mode,
            trigger={"availableNow": True} if config.once else {"processingTime": self.interval},
        )


# Checks without Spark.


def check_config(config: StreamConfig, *, writes: bool) -> None:
    """Check the options, without side effects. Raises ConfigError."""
    definition = config.definition
    if writes and not definition.sinks:
        raise ConfigError("no sink: add [sinks.NAME] with a topic or a path")
    for source in definition.sources.values():
        SourceOptions.parse(source_options(config, source), streaming=True)
    for sink in definition.sinks.values():
        if sink.topic:
            SinkOptions.parse(_sink_options(config, sink))
    if writes:
        folders = [sink.path for sink in definition.sinks.values() if sink.path]
        for folder in (definition.checkpoint, *folders):
            _check_writable(folder)


def survey_sources(config: StreamConfig) -> ClusterSnapshot:
    """Locate the topics of all sources. Raises NotConnectedError, or ConfigError if a topic does
    not exist."""
    definition = config.definition
    # These topics are created by the first message published to them.
    own = {sink.topic for sink in definition.sinks.values()}
    own |= {source.rejects for source in definition.sources.values()}
    surveys = [
        config.brokers_of(source).snapshot([source.topic])
        for source in definition.sources.values()
        if source.topic not in own
    ]
    logs = {key: found for snapshot in surveys for key, found in snapshot.logs.items()}
    failures = {str(failure): failure for snapshot in surveys for failure in snapshot.failures}
    return ClusterSnapshot(logs, tuple(failures.values()))


def _check_writable(folder: str) -> None:
    if "://" in folder:
        return
    path = Path(absolute(folder))
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(f"cannot write to {folder}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {folder}: no permission in {there}")


# Running with Spark.


def run_stream(
    spark: SparkSession, config: StreamConfig, snapshot: ClusterSnapshot, stop: Stop
) -> list[QueryMetrics]:
    """Run until a stop is requested or, with `once`, until all messages in `snapshot` are read.

    Raises PipelineError or ConfigError.
    """
    ends = {key: found.log.next_seq for key, found in snapshot.logs.items()}
    with translate_spark_errors(), ExitStack() as stack:
        ready = plan_outputs(spark, config)
        stack.enter_context(locked(config.definition.checkpoint))
        running: list[RunningQuery] = []
        for output in ready:
            if stop.is_requested:
                break
            query = start_query(partial(output.start, config), stop)
            stack.callback(query.stop)
            target = ends if config.once else None  # topics that it does not read do not count
            meter = QueryMeter(output.name, target=target, counts=_counts_of(query))
            running.append(RunningQuery(query, meter))
        try:
            return run_queries("stream", running, stop)
        except PipelineError as failure:
            raise PipelineError(_with_name(str(failure), running, config)) from failure


def _counts_of(query: StreamingQuery) -> Callable[[], dict[str, int]]:
    """A function that returns the numbers of rejected and written rows."""
    observed = ObservedCounts()
    return lambda: observed.totals(query.recentProgress)


def _with_name(message: str, running: Sequence[RunningQuery], config: StreamConfig) -> str:
    """Add the name of the failed query to an error message. If the query does not match its
    checkpoint, also add the advice to pass another checkpoint."""
    for query, meter in running:
        failure = query.exception()
        if failure is not None and _OTHER_QUERY.search(str(failure)):
            checkpoint = config.checkpoint_of(meter.name)
            return (
                f"{meter.name}: the query does not match its checkpoint {checkpoint}: pass another"
                f" --checkpoint ({message})"
            )
        if failure is not None:
            return f"{meter.name}: {message}"
    return message


def plan_outputs(spark: SparkSession, config: StreamConfig) -> list[StreamOutput]:
    """Build all outputs, and let Spark check their queries. Raises ConfigError or PipelineError."""
    with translate_spark_errors():
        sinks = [_output(spark, config, *each) for each in config.definition.sinks.items()]
        rejects = [
            _rejects(spark, config, name, source)
            for name, source in config.definition.sources.items()
            if source.rejects
        ]
        return sinks + rejects


def _output(
    spark: SparkSession, config: StreamConfig, name: str, sink: SinkDefinition
) -> StreamOutput:
    needed = config.definition.dependencies_of(sink.query)
    channel = channel_name(config.definition, name)
    messages = {
        each: _stream(spark, source_options(config, source, channel))
        for each, source in needed.sources.items()
    }
    with temporary_views(spark, needed, messages) as made:
        rows = made[sink.query]
        check_sink(name, sink, rows)
        counted = rows.observe(ROWS_OUT, sql.count(sql.lit(1)).alias(ROWS_OUT))
        if sink.topic:
            writer = writer_to_topic(to_messages(counted), _sink_options(config, sink))
        else:
            writer = writer_to_files(counted, sink, absolute(sink.path))
    return StreamOutput(name=name, rows=rows, writer=writer, mode=sink.mode, interval=sink.interval)


def _rejects(
    spark: SparkSession, config: StreamConfig, name: str, source: SourceDefinition
) -> StreamOutput:
    output = f"rejects.{name}"
    options = source_options(config, source, channel_name(config.definition, output))
    rows = select_violations(source, _stream(spark, options))
    counted = rows.observe(ROWS_OUT, sql.count(sql.lit(1)).alias(ROWS_OUT))
    to = {**config.brokers_of(source).options(), "topic": source.rejects}
    return StreamOutput(name=output, rows=rows, writer=writer_to_topic(counted, to))


def _stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    parallel = {"minPartitions": str(spark.sparkContext.defaultParallelism)}
    return spark.readStream.format("nsq").options(**{**parallel, **options}).load()


# Options.


def source_options(
    config: StreamConfig, source: SourceDefinition, channel: str = ""
) -> dict[str, str]:
    """Options for Spark's `format("nsq")`. The user's own override them."""
    is_place = source.start in ("earliest", "latest")
    options = {
        **config.brokers_of(source).options(),
        "topic": source.topic,
        "startingOffsets" if is_place else "startingTimestamp": source.start,
        "maxMessagesPerTrigger": str(source.max_messages),
        **({"channel": channel} if channel else {}),
    }
    return {**options, **_texts(source.options)}


def _sink_options(config: StreamConfig, sink: SinkDefinition) -> dict[str, str]:
    return {**config.brokers_of(sink).options(), "topic": sink.topic, **_texts(sink.options)}


def _texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _listed(addresses: str | Sequence[str]) -> tuple[str, ...]:
    parts = addresses.split(",") if isinstance(addresses, str) else addresses
    return tuple(part.strip() for part in parts if part.strip())


def absolute(folder: str) -> str:
    """Absolute path, because Spark has another working folder on a cluster. Keeps URLs."""
    return folder if "://" in folder else str(Path(folder).absolute())


@contextmanager
def locked(checkpoint: str) -> Iterator[None]:
    """Lock the checkpoint. Raises ConfigError if another process has the lock."""
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


@dataclass(frozen=True, slots=True)
class QuerySample:
    """The first rows of a query."""

    query: str
    columns: list[str]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class SchemaViolations:
    """Number of messages that violate a source's schema among the first ones, and an example."""

    source: str
    count: int
    among: int
    example: bytes


def query_samples(
    spark: SparkSession, config: StreamConfig, rows_max: int
) -> Iterator[QuerySample]:
    """Run the queries of all sinks on the history; without sinks, run the last query.

    Raises ConfigError or PipelineError.
    """
    definition = config.definition
    last = list(definition.queries or definition.sources)[-1]
    for query in dict.fromkeys(sink.query for sink in definition.sinks.values()) or [last]:
        yield _sample(spark, config, query, rows_max)


def schema_violations(spark: SparkSession, config: StreamConfig) -> Iterator[SchemaViolations]:
    """Violations in each source that has any. Raises ConfigError or PipelineError."""
    for name, source in config.definition.sources.items():
        if source.schema:
            with translate_spark_errors():
                first = _history(spark, config, source).limit(VALIDATED_MESSAGES)
                bodies = select_violations(source, first).collect()
                if bodies:
                    yield SchemaViolations(name, len(bodies), first.count(), bytes(bodies[0].body))


def explain_stream(spark: SparkSession, config: StreamConfig) -> str:
    """Describe sources and sinks with their columns, and Spark's plan for each query.

    Raises ConfigError or PipelineError.
    """
    definition = config.definition
    with translate_spark_errors():
        made = plan_outputs(spark, config)
        sources = [
            f"{name}: {_describe_source(source)}\n    "
            + _columns(source_table(name, source, _history(spark, config, source)))
            for name, source in definition.sources.items()
        ]
        sinks = [_describe_sink(config, each) + "\n    " + _columns(each.rows) for each in made]
        plans = [f"{each.name}:\n\n{_plan(each.rows)}" for each in made]
    return "\n\n".join(
        [_section("Sources", sources), _section("Sinks", sinks), "Spark's plans\n", *plans]
    )


def _sample(spark: SparkSession, config: StreamConfig, query: str, rows_max: int) -> QuerySample:
    needed = config.definition.dependencies_of(query)
    with translate_spark_errors():
        messages = {name: _history(spark, config, each) for name, each in needed.sources.items()}
        with temporary_views(spark, needed, messages) as made:
            return QuerySample(query, made[query].columns, made[query].limit(rows_max).collect())


def _history(spark: SparkSession, config: StreamConfig, source: SourceDefinition) -> DataFrame:
    """The stored messages of a source as a table."""
    options = source_options(config, source)
    del options["maxMessagesPerTrigger"]
    if source.start == "latest":
        del options["startingOffsets"]
    return spark.read.format("nsq").options(**options).load()


# Formatting.


def _section(title: str, parts: list[str]) -> str:
    return "\n".join([title, "", *(f"  {part}" for part in parts)])


def _describe_source(source: SourceDefinition) -> str:
    parts = [f"topic {source.topic}, from {source.start}"]
    if source.event_time is not None:
        parts.append(
            f"late rows accepted for {source.event_time.delay} by {source.event_time.column}"
        )
    if source.schema:
        parts.append(
            f"rejected messages go to topic {source.rejects}"
            if source.rejects
            else "rejected messages are counted and dropped"
        )
    return "; ".join(parts)


def _describe_sink(config: StreamConfig, output: StreamOutput) -> str:
    sink = config.definition.sinks.get(output.name)
    where = _destination(sink) if sink is not None else "topic " + _topic_of_rejects(config, output)
    how = f"mode {output.mode}, checkpoint {config.checkpoint_of(output.name)}"
    return f"{output.name}: to {where}; {how}"


def _destination(sink: SinkDefinition) -> str:
    if sink.topic:
        return f"topic {sink.topic}"
    by = partition_columns(sink)
    return f"{sink.format} files in {sink.path}" + (f" by {', '.join(by)}" if by else "")


def _topic_of_rejects(config: StreamConfig, output: StreamOutput) -> str:
    return config.definition.sources[output.name.removeprefix("rejects.")].rejects


def _columns(rows: DataFrame) -> str:
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in rows.schema.fields)


def _plan(rows: DataFrame) -> str:
    written = StringIO()
    with redirect_stdout(written):
        rows.explain()
    return written.getvalue().partition("\n")[2].rstrip()
