"""`penstock stream`: SQL from topics to topics and files.

Every sink is a query of Spark's with a checkpoint and a channel of its own, and so are the rejects
of every source that wants them kept: each goes at its own pace, and goes on where it was.

Everything is checked before anything is written: first what needs no Spark (`check_order`), then,
for all of them, what Spark has to say.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.common.errors import ConfigError, PipelineError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.failures import telling_in_words
from penstock.pipelines.progress import Figures, ObservedCounts, QueryMeter
from penstock.pipelines.running import Running, begun, run_queries
from penstock.pipelines.stopping import Stop
from penstock.pipelines.stream_definition import Sink, Source, StreamDefinition, channel_of
from penstock.pipelines.stream_sinks import (
    check_sink,
    messages_of,
    start_query,
    writer_to_files,
    writer_to_topic,
)
from penstock.pipelines.stream_tables import misfits_of, tables
from pyspark_nsq.nodes import Survey
from pyspark_nsq.options import SinkOptions, SourceOptions

__all__ = [
    "Output",
    "StreamOrder",
    "Survey",
    "check_order",
    "locked",
    "outputs",
    "run_stream",
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
