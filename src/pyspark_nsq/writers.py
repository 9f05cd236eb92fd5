"""`df.write.format("nsq")` and `df.writeStream.format("nsq")`: rows become messages.

At least once: a task that is run again publishes its rows again. Its Arrow batches go to the nodes
in turn, each by as few commands as it fits into; one that a node does not confirm goes to another.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.client.blocking import Producer
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import SinkOptions
from pyspark_nsq.outgoing import outgoing

__all__ = ["BatchWriter", "Published", "StreamWriter"]


@dataclass
class Published(WriterCommitMessage):
    """How many messages a task has published."""

    count: int


class BatchWriter(DataSourceArrowWriter):
    """Of a table."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return _publish(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return _publish(self._options, iterator)


def _publish(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Published:
    """On an executor. Returns when nsqd has confirmed everything."""
    nodes = Nodes(options.access)
    size_max = options.size_max or nodes.size_max()
    producers = _producers(options, nodes.tcp_addresses())
    count = 0
    try:
        for batch, producer in zip(batches, cycle(producers), strict=False):
            for topic, defer_ms, bodies in outgoing(batch, options.topic, size_max):
                producer.publish_many(topic, bodies, defer=defer_ms / 1000)
            count += batch.num_rows
    finally:
        for producer in producers:
            producer.close()
    return Published(count)


def _producers(options: SinkOptions, addresses: list[str]) -> list[Producer]:
    """One for each node, which goes to the others if it must. Tasks begin with different ones."""
    config = replace(options.access.client_config(), publish_timeout=options.publish_seconds)
    context = TaskContext.get()
    first = context.partitionId() if context is not None else 0
    turned = [(first + index) % len(addresses) for index in range(len(addresses))]
    return [Producer([*addresses[index:], *addresses[:index]], config=config) for index in turned]
