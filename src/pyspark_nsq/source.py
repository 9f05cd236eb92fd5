"""The `nsq` data source of Spark: batch reader and stream reader.

A micro-batch contains the messages between two offsets.

- The offsets list a new log, at its beginning, one batch before it is read. So a batch that is
  planned again after a restart reads the same messages.
- An unreachable node keeps its offset; the stream continues with the other nodes.
- If a topic is deleted and created again, it has a new log, which is read from its beginning. The
  offset of the old log is dropped if this process sees the deletion; otherwise it stays, without
  effect.
- Node ids in the offsets of an earlier version are replaced by log ids in the first batch.
- With the option `channel`, nsqd retains messages that Spark has not committed, and reports their
  number as the depth of the channel.

Spark pickles the data source by the name of its class and creates it in its own processes. It
therefore keeps the options as strings, and each process parses them.
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.admin_api.models import LogSegment
from penstock.common.errors import ConfigError, Error, HttpRequestError, NotConnectedError
from pyspark_nsq.catalog import ClusterCatalog
from pyspark_nsq.channel_reader import ChannelReader
from pyspark_nsq.commit_tracker import CommitTracker
from pyspark_nsq.errors import DataLossError, NodeUnavailableError
from pyspark_nsq.nodes import ClusterSnapshot, Nodes, TopicLogLocation
from pyspark_nsq.offsets import (
    EARLIEST,
    AtTime,
    JsonOffsets,
    LogKey,
    NodeIdOffsets,
    Offsets,
    from_json,
    to_json,
)
from pyspark_nsq.options import SinkOptions, SourceOptions
from pyspark_nsq.planning import (
    FilterBounds,
    fetch_segments,
    limit_end,
    parse_filters,
    plan_partitions,
    ranges_between,
    ranges_to_measure,
    resolve_offsets,
)
from pyspark_nsq.reader import SCHEMA, read_partition
from pyspark_nsq.sink import BatchWriter, StreamWriter, check_columns

__all__ = [
    "BatchReader",
    "FilteringBatchReader",
    "NsqDataSource",
    "StreamReader",
    "create_batch_reader",
]

log = logging.getLogger("pyspark_nsq")

IDLE_WAIT_SECONDS = 0.5
IDLE_WAIT_SECONDS_PER_LOG = 0.0005

# A batch of a query over many logs takes about a second. After an idle time, such a query waits for
# the messages that follow the first ones, so that they do not need a second batch.
GATHER_LOGS_MIN = 500
GATHER_SECONDS = 0.2

RETRY_SECONDS = 0.2


class BatchReader(DataSourceReader):
    """Reads all messages that the nodes have at planning time, unless options limit the range."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds = FilterBounds()

    def partitions(self) -> Sequence[InputPartition]:
        nodes, bounds = Nodes(self._options.access), self._bounds
        snapshot = nodes.snapshot(self._options.topics)
        self._check_failures(snapshot)
        logs = {
            key: found for key, found in snapshot.logs.items() if bounds.admits(key, found.node_id)
        }
        snapshot = ClusterSnapshot(logs)
        start = resolve_offsets(nodes, snapshot, self._options.starting)
        end = resolve_offsets(nodes, snapshot, self._options.ending)
        if bounds.time_ns_min is not None:
            from_then = resolve_offsets(nodes, snapshot, AtTime(bounds.time_ns_min))
            start = {key: max(seq, from_then[key]) for key, seq in start.items()}
        ranges = [each for each in map(bounds.clip, ranges_between(start, end)) if each.size]
        return plan_partitions(self._options, nodes, ranges, logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _check_failures(self, snapshot: ClusterSnapshot) -> None:
        """Raises NotConnectedError if a node is missing, unless `failOnDataLoss=false`."""
        if snapshot.failures and self._options.fail_on_data_loss:
            raise NotConnectedError("; ".join(map(str, snapshot.failures)))
        for failure in snapshot.failures:
            log.error("skipping the messages of an unreachable nsqd: %s", failure)


class FilteringBatchReader(BatchReader):
    """Batch reader with filter pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        self._bounds, left = parse_filters(filters)
        return left


def create_batch_reader(options: SourceOptions) -> BatchReader:
    """The reader for a batch query, with filter pushdown if Spark has it enabled.

    Spark rejects a reader with `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is
    true. If it is true, Spark calls this function in a worker that has imported the module below.
    """
    is_enabled = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
    return FilteringBatchReader(options) if is_enabled else BatchReader(options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Exists on the driver for the lifetime of the query; the executors read with copies of it.
    The driver's first request creates the catalog, whose threads cannot be copied."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._nodes = Nodes(options.access)
        self._commits = CommitTracker(self._nodes, options.channel)
        self._catalog: ClusterCatalog | None = None
        self._snapshot = ClusterSnapshot({})
        self._target: Offsets | None = None
        self._unreachable: set[str] = set()
        self._node_ids = NodeIdOffsets()
        self._parsed: tuple[JsonOffsets, Offsets] = {}, {}
        self._idle: tuple[Offsets, ClusterSnapshot] = {}, self._snapshot
        """Offsets that are at the end of these logs."""

    # Offsets.

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 (Spark's name, as are those below)
        """Offsets at which a new query starts. Raises NotConnectedError if a node does not respond,
        except if the query starts at the earliest messages: then that node can be added later,
        because new nodes are read from their earliest message."""
        snapshot = self._running_catalog().snapshot(fresh=True)
        snapshot.require_answer()
        if snapshot.failures and self._options.starting != EARLIEST:
            raise NotConnectedError("; ".join(map(str, snapshot.failures)))
        offsets = resolve_offsets(self._nodes, snapshot, self._options.starting)
        self._commits.create_channels(snapshot.logs, offsets)
        return to_json(offsets)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        given = self._from_json(start)
        start_offsets, ends = self._wait_for_messages(given)
        self._commits.create_channels(self._snapshot.logs, {**ends, **start_offsets})
        # Messages before the start of a new batch are done. Spark calls commit() only when the next
        # batch has data; until then an idle query would appear to have a lag.
        self._commits.commit(self._snapshot.logs, start_offsets)
        rows_max, bytes_max = self._limits(limit)
        if rows_max is not None or bytes_max is not None:
            ends = self._limit(start_offsets, ends, rows_max, bytes_max)
        # Speed: if nothing is new, the offsets are not converted to JSON.
        return start if ends is given or ends == given else to_json(ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.rows_per_trigger is not None:
            return ReadMaxRows(options.rows_per_trigger)
        if options.bytes_per_trigger is not None:
            return ReadMaxBytes(options.bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        """End of the logs regardless of limits. Spark reports it as the source's progress."""
        ends = {key: found.log.high_watermark for key, found in self._snapshot.logs.items()}
        return to_json(ends) if ends else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        snapshot = self._running_catalog().snapshot(fresh=True)
        snapshot.require_answer()
        self._target = {key: found.log.high_watermark for key, found in snapshot.logs.items()}
        for failure in snapshot.failures:
            log.warning("ending without the messages of an unreachable nsqd: %s", failure)

    # Batches.

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        start_offsets, end_offsets = self._batch_offsets(self._from_json(start), from_json(end))
        ranges = ranges_between(start_offsets, end_offsets)
        if any(self._is_unknown(each.key, each.end) for each in ranges):
            self._refresh_metadata()  # a batch planned before a restart
        return plan_partitions(self._options, self._nodes, ranges, self._snapshot.logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: JsonOffsets) -> None:
        self._commits.commit(self._snapshot.logs, self._with_log_ids(self._from_json(end)))

    def stop(self) -> None:
        if self._catalog is not None:
            self._catalog.close()

    # Metadata.

    def _running_catalog(self) -> ClusterCatalog:
        if self._catalog is None:
            self._catalog = ClusterCatalog(self._nodes, self._options.topics)
        return self._catalog

    def _refresh_metadata(self) -> None:
        """Refresh metadata; skip unreachable nodes, warning once per node."""
        try:
            snapshot = self._running_catalog().snapshot()
        except NotConnectedError as failure:
            snapshot = ClusterSnapshot({}, (failure,))
        self._snapshot = snapshot
        unreachable = {_node_of(failure): failure for failure in snapshot.failures}
        for node in unreachable.keys() - self._unreachable:
            log.warning("continuing without an unreachable nsqd: %s", unreachable[node])
        self._unreachable = set(unreachable)

    def _wait_for_messages(self, given: Offsets) -> tuple[Offsets, Offsets]:
        """The start of the next batch with log ids, and its end without limits. If nothing is new,
        wait for a change, at most `idleWait`: Spark would ask again after 10 ms."""
        deadline = time.monotonic() + self._idle_wait_seconds()
        has_waited = False
        while True:
            self._refresh_metadata()
            # Speed: with thousands of logs, an idle query would spend most of its time here.
            if self._idle[0] is given and self._idle[1] is self._snapshot:
                start_offsets = ends = given
            else:
                start_offsets = self._with_log_ids(given)
                ends = self._available_ends(start_offsets)
                if ends == given:
                    ends, self._idle = given, (given, self._snapshot)
            seconds = deadline - time.monotonic()
            if ends is not given and has_waited and len(ends) >= GATHER_LOGS_MIN:
                # The first messages after an idle time are seldom alone.
                has_waited = False
                time.sleep(GATHER_SECONDS)
            elif ends is not given or self._target is not None or seconds <= 0:
                return start_offsets, ends
            else:
                self._running_catalog().wait_for_change(self._snapshot, seconds)
                has_waited = True

    def _idle_wait_seconds(self) -> float:
        """With thousands of logs, each answer to Spark costs some milliseconds of CPU."""
        if self._options.idle_wait_seconds is not None:
            return self._options.idle_wait_seconds
        logs = len(self._snapshot.logs)
        return max(IDLE_WAIT_SECONDS, IDLE_WAIT_SECONDS_PER_LOG * logs)

    def _is_unknown(self, key: LogKey, end: int) -> bool:
        found = self._snapshot.logs.get(key)
        return found is None or found.log.next_seq < end

    # Offsets of earlier versions.

    def _from_json(self, nested: JsonOffsets) -> Offsets:
        """Speed: an idle query passes the same offsets twice per second, possibly of thousands of
        logs."""
        if self._parsed[0] != nested:
            self._parsed = nested, from_json(nested)
        return self._parsed[1]

    def _with_log_ids(self, offsets: Offsets) -> Offsets:
        """Replace node ids by log ids, except those of unreachable nodes."""
        if not any(key.is_node_id for key in offsets):
            return offsets
        snapshot = self._snapshot
        return self._node_ids.convert(
            offsets, snapshot.extents(), is_complete=bool(snapshot.logs) and not snapshot.failures
        )

    def _batch_offsets(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """The offsets of a planned batch, converted alike. If only the end has log ids, the batch
        cannot be planned without the nodes: it waits for them, at most `nodeTimeout`."""
        deadline = time.monotonic() + self._options.node_timeout_seconds
        while True:
            if any(key.is_node_id for key in (*start, *end)):
                self._refresh_metadata()
            converted = self._with_log_ids(start)
            left = {key for key in converted if key.is_node_id and key not in end}
            if not any(key.topic == new.topic for key in left for new in end.keys() - converted):
                return converted, self._with_log_ids(end)
            if time.monotonic() >= deadline:
                raise NodeUnavailableError(
                    f"{', '.join(map(str, sorted(left)))}: the checkpoint is from an earlier"
                    " version, and its offsets cannot be converted while the node is unreachable"
                )
            time.sleep(RETRY_SECONDS)

    # Ends of a batch.

    def _available_ends(self, start_offsets: Offsets) -> Offsets:
        """The current end of each log; of a new log, its beginning."""
        snapshot, target = self._snapshot, self._target
        ends = dict(start_offsets)
        unresolved = {key for key in start_offsets if key.is_node_id}
        for key, found in snapshot.logs.items():
            if key in start_offsets:
                ends[key] = self._end(key, found, start_offsets[key])
            elif LogKey(key.topic, str(found.node_id)) in unresolved:
                continue  # perhaps the log that the node id stands for
            elif target is None or key in target:
                ends[key] = found.log.first_seq
        # The tasks wait for a node that was reachable at the start and is not now.
        for key in (target or {}).keys() & start_offsets.keys() - snapshot.logs.keys():
            ends[key] = max(start_offsets[key], (target or {})[key])
        for key in snapshot.deleted.keys() & start_offsets.keys() - snapshot.logs.keys():
            self._check_deleted(key, snapshot.deleted[key], start_offsets[key])
            del ends[key]
        return ends

    def _end(self, key: LogKey, found: TopicLogLocation, start_seq: int) -> int:
        next_seq = found.log.next_seq
        if next_seq < start_seq:
            lost = (
                f"{key}: the log ends at {next_seq}, but has been "
                f"read to {start_seq}: was nsqd restored from a backup?"
            )
            self._report_loss(lost, "continues with new messages")
            return next_seq
        end = max(start_seq, found.log.high_watermark)
        if self._target is None:
            return end
        return max(start_seq, min(end, self._target.get(key, start_seq)))

    def _check_deleted(self, key: LogKey, found: TopicLogLocation, start_seq: int) -> None:
        if found.log.next_seq > start_seq:
            last_seq = found.log.next_seq - 1
            lost = f"{key}: messages {start_seq} to {last_seq} are lost: the topic was deleted"
            self._report_loss(lost, "continues without them")

    def _report_loss(self, lost: str, otherwise: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{lost}; failOnDataLoss=false {otherwise}")
        log.error("%s", lost)

    def _limit(
        self, start: Offsets, ends: Offsets, rows_max: int | None, bytes_max: int | None
    ) -> Offsets:
        logs = self._snapshot.logs
        sizes = {key: found.log.bytes for key, found in logs.items()}
        cut = ranges_to_measure(start, ends, sizes, rows_max=rows_max, bytes_max=bytes_max)
        if not cut:
            return ends
        whole = {
            key: [LogSegment(found.log.first_seq, found.log.next_seq, found.log.bytes)]
            for key, found in logs.items()
        }
        segments = {**whole, **fetch_segments(self._nodes, cut, logs)}
        return limit_end(start, ends, segments, rows_max=rows_max, bytes_max=bytes_max)

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return rows_max, bytes_max or self._options.bytes_per_trigger


def _node_of(failure: Error) -> str:
    return failure.url if isinstance(failure, HttpRequestError) else str(failure)


class NsqDataSource(DataSource):
    """NSQ topics, including their history, as tables. Options: docs/how_to/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        return SCHEMA

    # Spark's names.

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options, streaming=False)
        if options.mode == "channel":
            raise ConfigError("mode=channel requires readStream: reading consumes the messages")
        return create_batch_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = SourceOptions.parse(self.options, streaming=True)
        return ChannelReader(options) if options.mode == "channel" else StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigError("topics cannot be overwritten: use mode append")
        return BatchWriter(self._sink_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(self._sink_options(schema))

    def _sink_options(self, schema: StructType) -> SinkOptions:
        options = SinkOptions.parse(self.options)
        check_columns(schema, options.topic)
        return options
