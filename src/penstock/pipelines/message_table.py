"""The messages of a topic as a Spark table in replay order, from a lake or from nsqd's history.

The order is by timestamp, log and sequence number, and no two messages have the same key. So the
key of the last processed message identifies the remaining ones.

Earlier versions identified a log by its node id. Messages that they have archived have no log id;
here, their node id takes its place. A replay that they have started goes on with node ids
(`MessageTable.by_node`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from penstock.admin_api.seeking import absolute_position
from penstock.common.errors import ConfigError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.lake import Lake
from penstock.pipelines.lake_writer import Commits
from penstock.pipelines.tables import rejected_table, topic_table

__all__ = [
    "Extent",
    "MessageKey",
    "MessageTable",
    "history_messages",
    "lake_messages",
    "parse_time_ns",
    "parse_time_range",
    "rejected_messages",
]

PART_BYTES = 32 << 20
"""Approximate amount that is sorted, and held by the driver, at a time."""

ROW_OVERHEAD_BYTES = 50

# A smaller number is that of a message.
_TIME_NS_MIN = 1 << 54


_ORDER = ("timestamp_ns", "log", "seq")

_LOG_ID_DIGITS = 32


class MessageKey(NamedTuple):
    """Sort key of messages. `log` is a log id, or a node id in a replay of an earlier version."""

    timestamp_ns: int
    log: str | int
    seq: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Number, size and time range of messages."""

    messages: int
    size_bytes: int
    first_ns: int | None
    last_ns: int | None


@dataclass(frozen=True, slots=True)
class MessageTable:
    """A table of messages, and the end of each log: the first sequence number to ignore."""

    table: DataFrame
    ends: dict[str, int]

    def by_node(self) -> "MessageTable":
        """The same messages with node ids in the column `log`, as in offsets that a version without
        log ids has stored. Messages that were archived later, with a log id, are left out."""
        table = self.table
        if "date" in table.columns:  # a lake: the others were archived later
            table = table.where(sql.length("log") < _LOG_ID_DIGITS)
        return MessageTable(table.withColumn("log", sql.col("node")), self.ends)

    def select(
        self,
        *,
        ends: dict[str, int],
        from_ns: int | None,
        to_ns: int | None,
        where: str,
    ) -> "MessageTable":
        """The messages in a time range, below `ends`, that meet the SQL condition `where`. Raises
        Spark's exception if the condition is invalid."""
        table = self.table.where(_before(ends))
        if from_ns is not None:
            table = table.where(sql.col("timestamp_ns") >= from_ns)
        if to_ns is not None:
            table = table.where(sql.col("timestamp_ns") < to_ns)
        if "date" in table.columns:
            table = _prune_days(table, from_ns, to_ns)
        return MessageTable(table.where(where) if where else table, ends)

    def after(self, key: MessageKey | None) -> "MessageTable":
        """The messages after a key."""
        if key is None:
            return self
        time, log, seq = (sql.col(name) for name in _ORDER)
        is_later_in_log = (log > key.log) | ((log == key.log) & (seq > key.seq))
        is_later = (time > key.timestamp_ns) | ((time == key.timestamp_ns) & is_later_in_log)
        # The first condition is redundant, but lets Spark skip files.
        return MessageTable(self.table.where(time >= key.timestamp_ns).where(is_later), self.ends)

    def measure(self) -> Extent:
        """Count the messages."""
        row = self.table.select(
            sql.count(sql.lit(1)),
            sql.coalesce(sql.sum(sql.length("body")), sql.lit(0)),
            sql.min("timestamp_ns"),
            sql.max("timestamp_ns"),
        ).first()
        assert row is not None
        return Extent(*row)

    def sorted_batches(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        """All messages, sorted: `timestamp_ns`, `log`, `seq` and `body`. Spark sorts them in parts
        that fit into memory."""
        size_bytes = extent.size_bytes + extent.messages * ROW_OVERHEAD_BYTES
        parts = size_bytes // PART_BYTES + 1
        rows = self.table.select(*_ORDER, "body")
        # Partitioning by range makes Spark read the table twice; a single part avoids it.
        rows = rows.coalesce(1) if parts == 1 else rows.repartitionByRange(parts, *_ORDER)
        sorted_rows = rows.sortWithinPartitions(*_ORDER)
        # Speed: fetching each Arrow batch as one value is ten times as fast as fetching rows.
        packed = sorted_rows.mapInArrow(_pack_batches, "batch binary")
        for row in packed.toLocalIterator(prefetchPartitions=True):
            yield from pa.ipc.open_stream(bytes(row.batch))


def lake_messages(spark: SparkSession, lake: Lake, topic: str) -> MessageTable:
    """The archived messages of a topic. Raises LakeError if the lake does not have the topic."""
    return _archived(topic_table(spark, lake, topic), lake, topic)


def rejected_messages(spark: SparkSession, lake: Lake, topic: str) -> MessageTable | None:
    """The archived messages of a topic that violate its schema; None if there are none."""
    table = rejected_table(spark, lake, topic)
    return None if table is None else _archived(table, lake, topic)


def _archived(table: DataFrame, lake: Lake, topic: str) -> MessageTable:
    log = sql.coalesce("log", sql.col("node").cast("string"))
    return MessageTable(
        table.withColumn("log", log), Commits.load_state(lake.topic(topic)).next_seqs
    )


def history_messages(spark: SparkSession, brokers: Brokers, topic: str) -> MessageTable:
    """The messages of a topic on the nodes. Raises ConfigError or NotConnectedError."""
    snapshot = brokers.snapshot([topic])
    reader = spark.read.format("nsq").options(**brokers.options()).option("topic", topic)
    return MessageTable(
        reader.load(), {key.log_id: f.log.high_watermark for key, f in snapshot.logs.items()}
    )


def parse_time_ns(place: str) -> int | None:
    """Parse a time in nanoseconds or ISO 8601; None for earliest and latest. Raises ConfigError,
    also for a sequence number, because that is valid at one node only."""
    if place in ("", "earliest", "latest"):
        return None
    if place.isdecimal():
        if int(place) < _TIME_NS_MIN:
            raise ConfigError(
                "a time is required, not a sequence number, which differs between nodes:"
                " use --where 'seq >= ...'"
            )
        return int(place)
    try:
        moment = datetime.fromisoformat(place.upper())
    except ValueError:
        raise ConfigError(f"invalid time {place!r}") from None
    if moment.tzinfo is None:
        raise ConfigError(f"time {place!r} has no time zone: append Z for UTC")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def parse_time_range(start: str, end: str) -> tuple[int | None, int | None]:
    """Parse a time range; None where it is unlimited. Raises ConfigError."""
    from_ns, to_ns = (
        parse_time_ns(absolute_position(place)) if place else None for place in (start, end)
    )
    if from_ns is not None and to_ns is not None and from_ns >= to_ns:
        raise ConfigError("the end of the time range is not after its start")
    return from_ns, to_ns


def _before(ends: dict[str, int]) -> Column:
    """Messages below the ends. Messages without a log id are older than ends by log id."""
    log, seq = sql.col("log"), sql.col("seq")
    condition = sql.lit(False)
    if any(len(log_id) == _LOG_ID_DIGITS for log_id in ends):
        condition = (sql.length(log) < _LOG_ID_DIGITS) & ~log.isin([*ends])
    for log_id, end in ends.items():
        condition |= (log == log_id) & (seq < end)
    return condition


def _prune_days(table: DataFrame, from_ns: int | None, to_ns: int | None) -> DataFrame:
    """Skip the folders of other days."""
    if from_ns is not None:
        table = table.where(sql.col("date") >= sql.lit(_date(from_ns)))
    if to_ns is not None:
        table = table.where(sql.col("date") <= sql.lit(_date(to_ns)))
    return table


def _date(time_ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=time_ns // 86_400_000_000_000)


def _pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Serialise batches. Runs on the executors."""
    for batch in batches:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"batch": [out.getvalue().to_pybytes()]})
