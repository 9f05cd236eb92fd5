"""`spark.read.format("nsq")`: what there is, or a part of it, once."""

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import NotConnected
from pyspark_nsq.nodes import Nodes, Survey
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.partitions import partitions_of, read_partition
from pyspark_nsq.planning import ranges_between
from pyspark_nsq.positions import place_all

__all__ = ["BatchReader"]

log = logging.getLogger("pyspark_nsq")


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
        return partitions_of(self._options, ranges_between(start, end), survey.logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _insist_on_all(self, survey: Survey) -> None:
        """A table without the rows of a node that is away would look like one with all of them."""
        if survey.failures and self._options.fail_on_data_loss:
            raise NotConnected("; ".join(map(str, survey.failures)))
        for failure in survey.failures:
            log.error("what this nsqd has is left out: %s", failure)
