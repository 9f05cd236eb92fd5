"""`penstock report`: throughput, sizes and delays of the topics in a lake, computed by Spark.

The executors aggregate; the driver receives a few hundred rows. Percentiles are Spark's, with an
error of at most a ten-thousandth of the rows.

A lake has the time at which a message was published (`timestamp`), its size and, if the body has an
event time, the delay until it was published. It does not have the times at which messages were
archived or consumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sql

from penstock.common.errors import ConfigError, LakeError
from penstock.pipelines.lake import Lake
from penstock.pipelines.message_table import (
    MessageTable,
    lake_messages,
    parse_time_range,
    rejected_messages,
)
from penstock.pipelines.spark_errors import error_line, translate_spark_errors

__all__ = [
    "DelayPercentiles",
    "IntervalStats",
    "LakeReport",
    "ReportConfig",
    "SizePercentiles",
    "TopicReport",
    "check_config",
    "choose_step",
    "make_report",
]

# Maximum points of a plot with the default interval, and with any interval.
INTERVALS_MAX = 120
INTERVALS_LIMIT = 5000

STEPS_SECONDS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 7 * 86_400, 30 * 86_400),
)

PERCENTILES = (0.5, 0.95, 0.99)

# Maximum lines in the plot by node.
NODES_MAX = 6

TimeRange = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """Options of `penstock report`. No topics means all."""

    lake: Lake
    topics: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    step_seconds: int = 0
    """Length of an interval; 0: chosen so that a plot has about a hundred points."""
    event_time: str = ""
    """SQL expression for the event time."""


class SizePercentiles(NamedTuple):
    """Sizes of bodies in bytes."""

    p50: float
    p95: float
    p99: float
    max: float


class DelayPercentiles(NamedTuple):
    """Time from the event to its publication, in seconds."""

    p50: float
    p95: float
    p99: float
    max: float
    ahead: int
    """Number of events dated after their publication; excluded from the percentiles."""


class IntervalStats(NamedTuple):
    """Aggregates of an interval, or of the whole time range."""

    start_seconds: int
    messages: int
    size_bytes: int
    rejected: int
    sizes: SizePercentiles | None
    delays: DelayPercentiles | None
    by_node: Mapping[int, int]
    """Messages by node id; empty if there are too many nodes for a plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """Report of one topic. Intervals without messages are included, with zeros."""

    topic: str
    first_ns: int
    last_ns: int
    total: IntervalStats
    intervals: Sequence[IntervalStats]
    by_node: Mapping[int, int]
    longest_gap_seconds: float
    """Longest time between two messages."""

    @property
    def seconds(self) -> float:
        """Seconds from the first message to the last."""
        return (self.last_ns - self.first_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReport:
    """Report of all topics, with the same intervals."""

    lake: str
    step_seconds: int
    topics: Sequence[TopicReport]
    event_time: str = ""


def check_config(config: ReportConfig) -> None:
    """Check the options before Spark is started. Raises LakeError or ConfigError."""
    parse_time_range(config.start, config.end)
    for topic in config.topics:
        config.lake.existing_topic(topic)
    if not config.topics and not config.lake.topics():
        raise LakeError(f"{config.lake.path} has no topics")


def make_report(spark: SparkSession, config: ReportConfig) -> LakeReport:
    """Raises LakeError if there are no messages, ConfigError if `event_time` is invalid, or
    PipelineError."""
    with translate_spark_errors():
        table = _messages(spark, config)
        extents = _extents(table)
        if not extents:
            raise LakeError(f"{config.lake.path} has no messages{_selection(config)}")
        first = min(extent.first_ns for extent in extents.values()) // 10**9
        seconds = max(extent.last_ns for extent in extents.values()) // 10**9 + 1 - first
        step = _checked_step(config.step_seconds or choose_step(seconds), seconds)
        return LakeReport(
            lake=str(config.lake.path),
            step_seconds=step,
            topics=_topic_reports(table, extents, step),
            event_time=config.event_time,
        )


def choose_step(seconds: int) -> int:
    """The shortest interval with at most INTERVALS_MAX points in this many seconds."""
    return next(
        (step for step in STEPS_SECONDS if seconds / step <= INTERVALS_MAX), STEPS_SECONDS[-1]
    )


def _checked_step(step: int, seconds: int) -> int:
    if seconds / step > INTERVALS_LIMIT:
        raise ConfigError(
            f"{seconds // step:,} intervals exceed the maximum of {INTERVALS_LIMIT:,}:"
            " use longer ones (--every)"
        )
    return step


def _selection(config: ReportConfig) -> str:
    """The options that select messages, such as ` of orders from 2h`."""
    parts = [f" of {', '.join(config.topics)}" if config.topics else ""]
    parts += [f" from {config.start}" if config.start else ""]
    parts += [f" before {config.end}" if config.end else ""]
    return "".join(parts)


# Messages.


def _messages(spark: SparkSession, config: ReportConfig) -> DataFrame:
    """Columns `topic`, `at_ns`, `node`, `size`, `is_rejected` and `delay` (seconds, or null)."""
    # Parsed once for all topics, because `1h` is relative to the current time.
    times = parse_time_range(config.start, config.end)
    tables = [
        table
        for topic in config.topics or config.lake.topics()
        for table in _messages_of(spark, config, topic, times)
    ]
    return reduce(DataFrame.unionByName, tables)


def _messages_of(
    spark: SparkSession, config: ReportConfig, topic: str, times: TimeRange
) -> Iterator[DataFrame]:
    """The archived messages, and the rejected ones if there are any."""
    columns = [
        sql.lit(topic).alias("topic"),
        sql.col("timestamp_ns").alias("at_ns"),
        sql.col("node"),
        sql.length("body").alias("size"),
    ]
    good = _part(lake_messages(spark, config.lake, topic), times)
    unknown = sql.lit(None).cast("double")
    delay = _delay(good, config.event_time, topic) if config.event_time else unknown
    yield good.select(*columns, sql.lit(False).alias("is_rejected"), delay.alias("delay"))
    rejected = rejected_messages(spark, config.lake, topic)
    if rejected is not None:
        bad = _part(rejected, times)
        yield bad.select(*columns, sql.lit(True).alias("is_rejected"), unknown.alias("delay"))


def _part(source: MessageTable, times: TimeRange) -> DataFrame:
    from_ns, to_ns = times
    return source.select(ends=source.ends, from_ns=from_ns, to_ns=to_ns, where="").table


def _delay(table: DataFrame, event_time: str, topic: str) -> Column:
    """Raises ConfigError if `event_time` is not a timestamp."""
    try:
        happened = sql.expr(event_time)
        kind = table.select(happened).schema.fields[0].dataType.simpleString()
    except PySparkException as failure:
        message = error_line(failure).partition("; line ")[0]
        raise ConfigError(f"{topic}: {event_time}: {message}") from None
    if kind != "timestamp":
        raise ConfigError(f"{topic}: {event_time} must be a timestamp, not {kind}")
    return (sql.unix_micros("timestamp") - sql.unix_micros(happened)) / 1e6


# Aggregates.


class _TopicExtent(NamedTuple):
    first_ns: int
    last_ns: int
    by_node: dict[int, int]


def _extents(table: DataFrame) -> dict[str, _TopicExtent]:
    """Extents of the topics that have messages."""
    at_ns = sql.min("at_ns").alias("first_ns"), sql.max("at_ns").alias("last_ns")
    rows = table.groupBy("topic", "node").agg(sql.count(sql.lit(1)).alias("count"), *at_ns)
    extents: dict[str, _TopicExtent] = {}
    for row in rows.orderBy("topic", "node").collect():
        known = extents.get(row["topic"], _TopicExtent(row["first_ns"], row["last_ns"], {}))
        extents[row["topic"]] = _TopicExtent(
            min(known.first_ns, row["first_ns"]),
            max(known.last_ns, row["last_ns"]),
            {**known.by_node, row["node"]: row["count"]},
        )
    return extents


def _topic_reports(
    table: DataFrame, extents: Mapping[str, _TopicExtent], step: int
) -> list[TopicReport]:
    start = (sql.floor(sql.col("at_ns") / (step * 10**9)) * step).cast("long")
    stepped = table.withColumn("start", start)
    # Intervals and totals (rows without a start) in one query, which reads the files once.
    sets = stepped.groupingSets([["topic", "start"], ["topic"]], "topic", "start")
    nodes = sorted({node for extent in extents.values() for node in extent.by_node})
    nodes = nodes if len(nodes) <= NODES_MAX else []
    rows = sets.agg(*_measures(nodes)).collect()
    gaps = _longest_gaps(table)
    return [
        TopicReport(
            topic=topic,
            first_ns=extent.first_ns,
            last_ns=extent.last_ns,
            total=_total([row for row in rows if row["topic"] == topic], extent),
            intervals=_intervals([row for row in rows if row["topic"] == topic], step),
            by_node=extent.by_node,
            longest_gap_seconds=gaps[topic],
        )
        for topic, extent in extents.items()
    ]


def _total(rows: Sequence[Row], extent: _TopicExtent) -> IntervalStats:
    (row,) = (row for row in rows if row["start"] is None)
    return _interval(row)._replace(start_seconds=extent.first_ns // 10**9)


def _measures(nodes: Sequence[int]) -> list[Column]:
    delay = sql.col("delay")
    counted = sql.when(delay >= 0, delay)
    percentiles = [sql.lit(each) for each in PERCENTILES]
    return [
        sql.count(sql.lit(1)).alias("messages"),
        sql.sum("size").alias("size_bytes"),
        sql.count_if("is_rejected").alias("rejected"),
        sql.percentile_approx("size", sql.array(*percentiles)).alias("sizes"),
        sql.max("size").alias("size_max"),
        sql.percentile_approx(counted, sql.array(*percentiles)).alias("delays"),
        sql.max(counted).alias("delay_max"),
        sql.count_if(delay < 0).alias("ahead"),
        sql.create_map(
            *(
                column
                for node in nodes
                for column in (sql.lit(node), sql.count_if(sql.col("node") == node))
            )
        ).alias("by_node"),
    ]


def _interval(row: Row) -> IntervalStats:
    delays = None
    if row["delays"] is not None:
        p50, p95, p99 = row["delays"]
        delays = DelayPercentiles(p50, p95, p99, row["delay_max"], row["ahead"])
    p50, p95, p99 = row["sizes"]
    return IntervalStats(
        start_seconds=row["start"],
        messages=row["messages"],
        size_bytes=row["size_bytes"],
        rejected=row["rejected"],
        sizes=SizePercentiles(p50, p95, p99, row["size_max"]),
        delays=delays,
        by_node=row["by_node"],
    )


def _intervals(rows: Sequence[Row], step: int) -> list[IntervalStats]:
    """Sorted, with all intervals between the first and the last."""
    known = {row["start"]: _interval(row) for row in rows if row["start"] is not None}
    return [
        known.get(start, IntervalStats(start, 0, 0, 0, None, None, {}))
        for start in range(min(known), max(known) + step, step)
    ]


def _longest_gaps(table: DataFrame) -> dict[str, float]:
    """Longest gap of each topic, in seconds. Aggregates by second first, because the window
    function sorts all rows of a topic in one partition."""
    second = sql.floor(sql.col("at_ns") / 10**9).alias("second")
    seconds = table.groupBy("topic", second).agg(
        sql.min("at_ns").alias("first_ns"), sql.max("at_ns").alias("last_ns")
    )
    before = sql.lag("last_ns").over(Window.partitionBy("topic").orderBy("second"))
    gaps = seconds.select("topic", (sql.col("first_ns") - before).alias("gap_ns"))
    rows = gaps.groupBy("topic").agg(sql.max("gap_ns").alias("gap_ns")).collect()
    return {row["topic"]: (row["gap_ns"] or 0) / 1e9 for row in rows}
