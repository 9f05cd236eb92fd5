"""`df.write.format("nsq")` and `df.writeStream.format("nsq")`: rows become messages.

Delivery is at least once: a retried task publishes its rows again. A task sends its Arrow batches
to the nodes in turn. If a node does not confirm a batch, the task sends it to another node.
Every row of a batch is validated before any of them is sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from penstock.client.blocking import Producer
from penstock.common import names
from penstock.common.errors import ConfigError, Error
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import SinkOptions

__all__ = [
    "BatchWriter",
    "InvalidRowError",
    "MessageGroup",
    "Published",
    "StreamWriter",
    "check_columns",
    "group_messages",
]

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "topic": (StringType,),
    "defer_ms": (ShortType, IntegerType, LongType),
}


@dataclass
class Published(WriterCommitMessage):
    """Number of messages that a task has published."""

    count: int


class BatchWriter(DataSourceArrowWriter):
    """Writer for `df.write`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return _publish(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer for `df.writeStream`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return _publish(self._options, iterator)


def _publish(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Published:
    """Publish all batches, and wait until nsqd has confirmed them. Runs on an executor."""
    nodes = Nodes(options.access)
    size_max = options.size_max or nodes.size_max()
    producers = _producers(options, nodes.tcp_addresses())
    count = 0
    try:
        for batch, producer in zip(batches, cycle(producers), strict=False):
            for topic, defer_ms, bodies in group_messages(batch, options.topic, size_max):
                producer.publish_many(topic, bodies, defer=defer_ms / 1000)
            count += batch.num_rows
    finally:
        for producer in producers:
            producer.close()
    return Published(count)


def _producers(options: SinkOptions, addresses: list[str]) -> list[Producer]:
    """A producer for each node, with the others as fallback. Tasks start at different nodes."""
    config = replace(options.access.client_config(), publish_timeout=options.publish_seconds)
    context = TaskContext.get()
    first = context.partitionId() if context is not None else 0
    turned = [(first + index) % len(addresses) for index in range(len(addresses))]
    return [Producer([*addresses[index:], *addresses[:index]], config=config) for index in turned]


# Messages.


class InvalidRowError(Error):
    """A row cannot be published as a message."""


class MessageGroup(NamedTuple):
    """Messages with the same topic and deferral."""

    topic: str
    defer_ms: int
    bodies: list[bytes]


def check_columns(schema: StructType, topic: str) -> None:
    """Raises ConfigError if rows of this schema cannot be published."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if "body" not in kinds:
        raise ConfigError(f"column body is missing; columns: {', '.join(kinds) or 'none'}")
    if not topic and "topic" not in kinds:
        raise ConfigError("the option topic or a column topic is required")
    for name, allowed in _COLUMNS.items():
        if name in kinds and not isinstance(kinds[name], allowed):
            expected = " or ".join(kind().simpleString() for kind in allowed)
            raise ConfigError(f"column {name} must be {expected}, not {kinds[name].simpleString()}")


def group_messages(batch: pa.RecordBatch, topic: str, size_max: int | None) -> list[MessageGroup]:
    """Validate a batch and group its messages; each group keeps their order. The option `topic`
    overrides the column. Raises InvalidRowError."""
    bodies = batch.column("body").cast(pa.binary())
    _check_bodies(bodies, size_max)
    topics = batch.column("topic") if not topic and "topic" in batch.schema.names else None
    if topics is not None:
        _check_topics(topics)
    defers = _defers_ms(batch)
    if topics is None and defers is None:
        return [MessageGroup(topic, 0, bodies.to_pylist())] if len(bodies) else []
    return list(_grouped(bodies, topics, defers, topic))


def _check_bodies(bodies: pa.Array, size_max: int | None) -> None:
    sizes = pc.binary_length(bodies)
    _refuse(pc.is_null(bodies), "has no body")
    _refuse(pc.equal(sizes, 0), "has an empty body, which NSQ rejects")
    if size_max is not None:
        _refuse(
            pc.greater(sizes, size_max),
            f"exceeds nsqd's maximum of {size_max} bytes",
        )


def _check_topics(topics: pa.Array) -> None:
    _refuse(pc.is_null(topics), "has no topic")
    for name in topics.unique().to_pylist():
        if not names.is_valid(name):
            raise InvalidRowError(f"topic {name!r} is not a valid name")


def _defers_ms(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """The deferral of each row in milliseconds, 0 for null; None without a column `defer_ms`.
    Raises InvalidRowError if one is negative."""
    if "defer_ms" not in batch.schema.names:
        return None
    defers = batch.column("defer_ms").cast(pa.int64())
    _refuse(pc.less(defers, 0), "has a negative defer_ms")
    filled: npt.NDArray[np.int64] = defers.fill_null(0).to_numpy(zero_copy_only=False)
    return filled


def _refuse(wrong: pa.Array, why: str) -> None:
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise InvalidRowError(f"row {row} of a batch {why}")


def _grouped(
    bodies: pa.Array,
    topics: pa.Array | None,
    defers: npt.NDArray[np.int64] | None,
    topic: str,
) -> Iterator[MessageGroup]:
    count = len(bodies)
    encoded = pa.repeat(topic, count) if topics is None else topics
    encoded = encoded.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    keys = np.stack([codes, np.zeros(count, np.int64) if defers is None else defers])
    groups, group_of_row = np.unique(keys, axis=1, return_inverse=True)
    for group, (code, defer_ms) in enumerate(groups.T.tolist()):
        rows = np.flatnonzero(group_of_row.reshape(-1) == group)
        yield MessageGroup(
            encoded.dictionary[code].as_py(), defer_ms, bodies.take(pa.array(rows)).to_pylist()
        )
