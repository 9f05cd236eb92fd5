"""The tasks of a batch: which ranges they read, and from where. Planned on the driver."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_nsq.errors import DataLost
from pyspark_nsq.nodes import Found
from pyspark_nsq.offsets import TopicNode
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.planning import Range, split, stored_parts
from pyspark_nsq.range_reader import RangeReader

__all__ = ["LocatedRange", "RangesPartition", "partitions_of", "read_partition"]

log = logging.getLogger("pyspark_nsq")


class LocatedRange(NamedTuple):
    """A range, and the base URL of its node at planning time; empty if unknown."""

    range: Range
    base: str


@dataclass
class RangesPartition(InputPartition):
    """The ranges that one task reads, in order."""

    ranges: list[LocatedRange]


def partitions_of(
    options: SourceOptions, ranges: Iterable[Range], logs: Mapping[TopicNode, Found]
) -> list[InputPartition]:
    """Partitions for what is there of these ranges. Raises DataLost if that is not enough."""
    stored = [part for each in ranges for part in _stored(options, each, logs.get(each.key))]
    tasks = split(stored, parts_min=options.partitions_min, rows_max=options.rows_per_partition)
    # An empty list would make Spark create one partition with unknown contents.
    return [RangesPartition([_located(each, logs) for each in task]) for task in tasks or [[]]]


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; on an executor."""
    assert isinstance(partition, RangesPartition)
    for wanted, base in partition.ranges:
        yield from RangeReader(options, wanted, base).batches()


def _located(wanted: Range, logs: Mapping[TopicNode, Found]) -> LocatedRange:
    found = logs.get(wanted.key)
    return LocatedRange(wanted, found.base if found is not None else "")


def _stored(options: SourceOptions, wanted: Range, found: Found | None) -> list[Range]:
    """If the node is away, or forgot its newest messages, the task will see."""
    if found is None or found.log.next_seq < wanted.end:
        return [wanted]
    first_seq = found.log.first_seq
    if wanted.start < first_seq:
        lost = (
            f"topic {wanted.topic}, node {wanted.node}: messages {wanted.start} to "
            f"{min(first_seq, wanted.end) - 1} are lost: the log begins at {first_seq}"
        )
        if options.fail_on_data_loss:
            raise DataLost(f"{lost}; failOnDataLoss=false goes on without them")
        log.error("%s", lost)
    return stored_parts(wanted, found.log)
