"""The `nsq` data source of Spark: batch reader and stream reader.

A micro-batch contains the messages between two offsets.

- The offsets list a new node, at the beginning of its log, one batch before the node is read. So
  a batch that is planned again after a restart reads the same messages.
- An unreachable node keeps its offset; the stream continues with the other nodes.
- With the option `channel`, nsqd retains messages that Spark has not committed, and reports their
  number as the depth of the channel.

Spark pickles the data source by the name of its class and creates it in its own processes. It
therefore keeps the options as strings, and each process parses them.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

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

from penstock.common.errors import ConfigError, Error, HttpRequestError, NotConnectedError
from pyspark_nsq.channel_reader import ChannelReader
from pyspark_nsq.commit_tracker import CommitTracker
from pyspark_nsq.errors import DataLossError
from pyspark_nsq.nodes import ClusterSnapshot, Nodes, TopicLogLocation
from pyspark_nsq.offsets import (
    EARLIEST,
    AtTime,
    JsonOffsets,
    Offsets,
    TopicNode,
    from_json,
    to_json,
)
from pyspark_nsq.options import SinkOptions, SourceOptions
from pyspark_nsq.planning import (
    FilterBounds,
    limit_end,
    parse_filters,
    plan_partitions,
    ranges_between,
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


class BatchReader(DataSourceReader):
    """Reads all messages that the nodes have at planning time, unless options limit the range."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds = FilterBounds()

    def partitions(self) -> Sequence[InputPartition]:
        nodes, bounds = Nodes(self._options.access), self._bounds
        survey = nodes.snapshot(self._options.topics)
        self._check_failures(survey)
        logs = {key: found for key, found in survey.logs.items() if bounds.admits(key)}
        start = resolve_offsets(nodes, logs, self._options.starting)
        end = resolve_offsets(nodes, logs, self._options.ending)
        if bounds.time_ns_min is not None:
            from_then = resolve_offsets(nodes, logs, AtTime(bounds.time_ns_min))
            start = {key: max(seq, from_then[key]) for key, seq in start.items()}
        ranges = map(bounds.clip, ranges_between(start, end))
        return plan_partitions(self._options, [each for each in ranges if each.size], logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _check_failures(self, survey: ClusterSnapshot) -> None:
        """Raises NotConnectedError if a node is missing, unless `failOnDataLoss=false`."""
        if survey.failures and self._options.fail_on_data_loss:
            raise NotConnectedError("; ".join(map(str, survey.failures)))
        for failure in survey.failures:
            log.error("skipping the messages of an unreachable nsqd: %s", failure)


class FilteringBatchReader(BatchReader):
    """Batch reader with filter pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        self._bounds, left = parse_filters(filters)
        return left


def create_batch_reader(options: SourceOptions) -> BatchReader:
    """Spark rejects a reader with `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is
    true. Only then does it call this function in a worker that has imported the module below."""
    is_enabled = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
    return FilteringBatchReader(options) if is_enabled else BatchReader(options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Exists on the driver for the lifetime of the query; the executors read with copies of it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._nodes = Nodes(options.access)
        self._commits = CommitTracker(self._nodes, options.channel)
        self._logs: Mapping[TopicNode, TopicLogLocation] = {}
        self._target: Offsets | None = None
        self._unreachable: set[str] = set()

    # Offsets.

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 (Spark's name, as are those below)
        """Start of a new query. Requires all nodes, unless it starts at the earliest messages:
        nodes that appear later are read from there anyway."""
        survey = self._nodes.snapshot(self._options.topics)
        if survey.failures and self._options.starting != EARLIEST:
            raise NotConnectedError("; ".join(map(str, survey.failures)))
        offsets = resolve_offsets(self._nodes, survey.logs, self._options.starting)
        self._commits.create_channels(survey.logs, offsets)
        return to_json(offsets)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        start_offsets = from_json(start)
        self._refresh_metadata()
        ends = self._available_ends(start_offsets)
        self._commits.create_channels(self._logs, {**ends, **start_offsets})
        # Messages before the start of a new batch are done. Spark calls commit() only when the next
        # batch has data; until then an idle query would appear to have a lag.
        self._commits.commit(self._logs, start_offsets)
        rows_max, bytes_max = self._limits(limit)
        logs = {key: found.log for key, found in self._logs.items()}
        return to_json(limit_end(start_offsets, ends, logs, rows_max=rows_max, bytes_max=bytes_max))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.rows_per_trigger is not None:
            return ReadMaxRows(options.rows_per_trigger)
        if options.bytes_per_trigger is not None:
            return ReadMaxBytes(options.bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        """End of the logs regardless of limits. Spark reports it as the source's progress."""
        ends = {key: found.log.next_seq for key, found in self._logs.items()}
        return to_json(ends) if ends else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        survey = self._nodes.snapshot(self._options.topics)
        self._target = {key: found.log.next_seq for key, found in survey.logs.items()}
        for failure in survey.failures:
            log.warning("ending without the messages of an unreachable nsqd: %s", failure)

    # Batches.

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        ranges = ranges_between(from_json(start), from_json(end))
        if any(self._is_unknown(each.key, each.end) for each in ranges):
            self._refresh_metadata()  # a batch planned before a restart
        return plan_partitions(self._options, ranges, self._logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: JsonOffsets) -> None:
        self._commits.commit(self._logs, from_json(end))

    # Within.

    def _refresh_metadata(self) -> None:
        """Refresh metadata; skip unreachable nodes, warning once per node."""
        try:
            survey = self._nodes.snapshot(self._options.topics)
        except (HttpRequestError, NotConnectedError) as failure:
            survey = ClusterSnapshot({}, (failure,))
        self._logs = survey.logs
        unreachable = {_node_of(failure): failure for failure in survey.failures}
        for node in unreachable.keys() - self._unreachable:
            log.warning("continuing without an unreachable nsqd: %s", unreachable[node])
        self._unreachable = set(unreachable)

    def _available_ends(self, start_offsets: Offsets) -> Offsets:
        """The current end of each log; of a new log, its beginning."""
        ends = dict(start_offsets)
        for key, found in self._logs.items():
            if key in start_offsets:
                ends[key] = self._next_seq(key, found, start_offsets[key])
            elif self._target is None or key in self._target:
                ends[key] = found.log.first_seq
        # The tasks wait for a node that was reachable at the start and is not now.
        for key in (self._target or {}).keys() & start_offsets.keys() - self._logs.keys():
            ends[key] = max(start_offsets[key], (self._target or {})[key])
        return ends

    def _next_seq(self, key: TopicNode, found: TopicLogLocation, start_seq: int) -> int:
        next_seq = found.log.next_seq
        if next_seq < start_seq:
            lost = (
                f"topic {key.topic}, node {key.node}: the log ends at {next_seq}, but has been "
                f"read to {start_seq}: was nsqd restored from a backup?"
            )
            if self._options.fail_on_data_loss:
                raise DataLossError(f"{lost}; failOnDataLoss=false continues with new messages")
            log.error("%s", lost)
            return next_seq
        if self._target is None:
            return next_seq
        return max(start_seq, min(next_seq, self._target.get(key, start_seq)))

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return rows_max, bytes_max or self._options.bytes_per_trigger

    def _is_unknown(self, key: TopicNode, end: int) -> bool:
        found = self._logs.get(key)
        return found is None or found.log.next_seq < end


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
