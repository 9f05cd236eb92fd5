"""`spark.read.format("nsq")`: what there is, or a part of it, once."""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.common.errors import NotConnectedError
from pyspark_nsq.filters import Bounds, bounds_of
from pyspark_nsq.nodes import Nodes, Survey
from pyspark_nsq.options import AtTime, SourceOptions
from pyspark_nsq.partitions import partitions_of, read_partition
from pyspark_nsq.planning import ranges_between
from pyspark_nsq.positions import place_all

__all__ = ["BatchReader", "PushingReader", "batch_reader"]

log = logging.getLogger("pyspark_nsq")


class BatchReader(DataSourceReader):
    """Reads from where the logs of all nodes begin to where they end when the query is planned,
    unless the options say otherwise."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        nodes, bounds = Nodes(self._options.access), self._bounds
        survey = nodes.survey(self._options.topics)
        self._insist_on_all(survey)
        logs = {key: found for key, found in survey.logs.items() if bounds.admit(key)}
        start = place_all(nodes, logs, self._options.starting)
        end = place_all(nodes, logs, self._options.ending)
        if bounds.time_ns_min is not None:
            from_then = place_all(nodes, logs, AtTime(bounds.time_ns_min))
            start = {key: max(seq, from_then[key]) for key, seq in start.items()}
        ranges = map(bounds.cut, ranges_between(start, end))
        return partitions_of(self._options, [each for each in ranges if each.size], logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _insist_on_all(self, survey: Survey) -> None:
        """A table without the rows of a node that is away would look like one with all of them."""
        if survey.failures and self._options.fail_on_data_loss:
            raise NotConnectedError("; ".join(map(str, survey.failures)))
        for failure in survey.failures:
            log.error("what this nsqd has is left out: %s", failure)


class PushingReader(BatchReader):
    """The same, and reads no more than a query's conditions need."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        self._bounds, left = bounds_of(filters)
        return left


def batch_reader(options: SourceOptions) -> BatchReader:
    """Spark refuses a reader that can push unless `spark.sql.python.filterPushdown.enabled` says
    that it may; then, and only then, it asks for one in a worker that runs this module."""
    is_asked = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
    return PushingReader(options) if is_asked else BatchReader(options)
