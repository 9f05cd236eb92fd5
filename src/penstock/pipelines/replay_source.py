"""What is replayed: messages of a lake, or of the nodes' history, in their order.

The order is by time, node and number, and no two messages are equal in it: where a replay has come
to is one key, and what comes after it is the same however often it is asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from penstock.pipelines.brokers import Brokers
from penstock.pipelines.commits import Commits
from penstock.pipelines.lake import Lake
from penstock.pipelines.replay_state import Key
from penstock.pipelines.tables import topic_table

__all__ = ["Extent", "Source", "from_history", "from_lake"]

PART_BYTES = 32 << 20
"""About so much is sorted, and held by the driver, at a time."""

ROW_OVERHEAD_BYTES = 50

_ORDER = ("timestamp_ns", "node", "seq")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is."""

    messages: int
    size_bytes: int
    first_ns: int | None
    last_ns: int | None


@dataclass(frozen=True, slots=True)
class Source:
    """A table, and the number for each node from which on it is not looked at."""

    table: DataFrame
    ends: dict[str, int]

    def part(
        self,
        *,
        ends: dict[str, int],
        from_ns: int | None,
        to_ns: int | None,
        where: str,
    ) -> "Source":
        """The messages of a time, up to those numbers, for which the condition is true. Raises
        what Spark raises if it is none."""
        table = self.table.where(_before(ends))
        if from_ns is not None:
            table = table.where(sql.col("timestamp_ns") >= from_ns)
        if to_ns is not None:
            table = table.where(sql.col("timestamp_ns") < to_ns)
        if "date" in table.columns:
            table = _pruned(table, from_ns, to_ns)
        return Source(table.where(where) if where else table, ends)

    def after(self, key: Key | None) -> "Source":
        """What comes after a key."""
        if key is None:
            return self
        time, node, seq = (sql.col(name) for name in _ORDER)
        is_later_node = (node > key.node) | ((node == key.node) & (seq > key.seq))
        is_later = (time > key.timestamp_ns) | ((time == key.timestamp_ns) & is_later_node)
        # The first condition says nothing new, but something that files can be skipped by.
        return Source(self.table.where(time >= key.timestamp_ns).where(is_later), self.ends)

    def extent(self) -> Extent:
        """Counts it."""
        row = self.table.select(
            sql.count(sql.lit(1)),
            sql.coalesce(sql.sum(sql.length("body")), sql.lit(0)),
            sql.min("timestamp_ns"),
            sql.max("timestamp_ns"),
        ).first()
        assert row is not None
        return Extent(*row)

    def in_order(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        """All of it: `timestamp_ns`, `node`, `seq` and `body`. Sorted in parts, none of which is
        much to hold."""
        size_bytes = extent.size_bytes + extent.messages * ROW_OVERHEAD_BYTES
        parts = size_bytes // PART_BYTES + 1
        rows = self.table.select(*_ORDER, "body")
        # To part it by ranges, Spark would have to look at it twice.
        rows = rows.coalesce(1) if parts == 1 else rows.repartitionByRange(parts, *_ORDER)
        sorted_rows = rows.sortWithinPartitions(*_ORDER)
        # Arrow batches travel as one value each: a row at a time would take ten times as long.
        packed = sorted_rows.mapInArrow(_packed, "batch binary")
        for row in packed.toLocalIterator(prefetchPartitions=True):
            yield from pa.ipc.open_stream(bytes(row.batch))


def from_lake(spark: SparkSession, lake: Lake, topic: str) -> Source:
    """All that is archived of a topic by now. Raises LakeError if there is no such topic."""
    return Source(topic_table(spark, lake, topic), Commits.state_of(lake.topic(topic)).next_seqs)


def from_history(spark: SparkSession, brokers: Brokers, topic: str) -> Source:
    """All that the nodes have of it by now. Raises ConfigError or NotConnectedError."""
    survey = brokers.survey([topic])
    reader = spark.read.format("nsq").options(**brokers.options()).option("topic", topic)
    return Source(reader.load(), {str(key.node): f.log.next_seq for key, f in survey.logs.items()})


def _before(ends: dict[str, int]) -> Column:
    condition = sql.lit(False)
    for node, seq in ends.items():
        condition |= (sql.col("node") == int(node)) & (sql.col("seq") < seq)
    return condition


def _pruned(table: DataFrame, from_ns: int | None, to_ns: int | None) -> DataFrame:
    """Without the folders of other days."""
    if from_ns is not None:
        table = table.where(sql.col("date") >= sql.lit(_day(from_ns)))
    if to_ns is not None:
        table = table.where(sql.col("date") <= sql.lit(_day(to_ns)))
    return table


def _day(time_ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=time_ns // 86_400_000_000_000)


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor."""
    for batch in batches:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"batch": [out.getvalue().to_pybytes()]})
