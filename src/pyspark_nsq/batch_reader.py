"""`spark.read.format("nsq")`: what there is, or a part of it, once."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import NotConnected
from pyspark_nsq.nodes import Nodes, Survey
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.planning import Range, ranges_between, split
from pyspark_nsq.positions import place_all
from pyspark_nsq.range_reader import RangeReader

__all__ = ["BatchReader", "RangePartition"]

log = logging.getLogger("pyspark_nsq")


@dataclass
class RangePartition(InputPartition):
    """A range, and where its node was when this was planned. One without a range has no rows."""

    range: Range | None
    base: str = ""


class BatchReader(DataSourceReader):
    """Reads from where the logs of all nodes begin to where they end when the query is planned,
    unless the options say otherwise."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        nodes = Nodes(self._options.access)
        survey = nodes.survey(self._options.topics)
        self._insist_on_all(survey)
        start = place_all(nodes, survey.logs, self._options.starting)
        end = place_all(nodes, survey.logs, self._options.ending)
        ranges = ranges_between(start, end)
        return partitions_of(self._options, ranges, survey)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_partition(self._options, partition)

    def _insist_on_all(self, survey: Survey) -> None:
        """A table without the rows of a node that is away would look like one with all of them."""
        if survey.failures and self._options.fail_on_data_loss:
            raise NotConnected("; ".join(map(str, survey.failures)))
        for failure in survey.failures:
            log.error("what this nsqd has is left out: %s", failure)


def partitions_of(
    options: SourceOptions, ranges: list[Range], survey: Survey
) -> list[InputPartition]:
    """Partitions for these ranges."""
    bases = {key: found.base for key, found in survey.logs.items()}
    parts = split(ranges, parts_min=options.partitions_min, rows_max=options.rows_per_partition)
    # A list without a partition would be taken for one with a partition of unknown contents.
    return [RangePartition(part, bases.get(part.key, "")) for part in parts] or [
        RangePartition(None)
    ]


def read_partition(options: SourceOptions, partition: RangePartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    if partition.range is None:
        return iter(())
    return RangeReader(options, partition.range, partition.base).batches()
