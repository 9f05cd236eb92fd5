"""`mode=channel`: a stream that consumes a channel, of any nsqd, by NSQ's own protocol.

Messages come to the driver, travel to the executors as part of their tasks, and are finished when
the batch that they are in is. At least once: what a driver that was killed had not finished, nsqd
delivers again, in another batch. So a batch that was planned before a restart has no rows left.

Offsets count batches. `node` and `seq` are null: only history has addresses.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.client.blocking import Consumer, Message
from pyspark_nsq.channel_pump import MSG_TIMEOUT_SECONDS, ChannelPump
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.rows import ARROW_SCHEMA

__all__ = ["ChannelReader"]

# nsqd's own limit for one connection, unless it was started with another one.
IN_FLIGHT = 2500

# A channel that gave nothing for so long has nothing that is available now.
IDLE_SECONDS = 1.0

_BATCH = "batch"


@dataclass
class MessagesPartition(InputPartition):
    """Rows, as an Arrow stream."""

    rows: bytes


class ChannelReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as the query does. Connects when Spark first asks for offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._rows_max = options.rows_per_trigger or IN_FLIGHT
        self._pump: ChannelPump | None = None
        self._batches: dict[int, list[Message]] = {}
        self._available_until_ns: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name, as are those below)
        return {_BATCH: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_until_ns = time.time_ns()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        number = start[_BATCH]
        self._finish(number)
        if number + 1 not in self._batches:
            messages = self._running_pump().take(
                self._rows_max,
                seconds=IDLE_SECONDS if self._available_until_ns is not None else 0.0,
                published_before_ns=self._available_until_ns,
            )
            if not messages:
                return start
            self._batches[number + 1] = messages
        return {_BATCH: number + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        topic = self._options.topics.names[0]
        messages = self._batches.get(end[_BATCH], [])
        return [MessagesPartition(_to_arrow(topic, messages))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessagesPartition)
        with pa.ipc.open_stream(partition.rows) as rows:
            yield from rows

    def commit(self, end: dict[str, int]) -> None:
        self._finish(end[_BATCH])

    def stop(self) -> None:
        if self._pump is not None:
            self._pump.close()

    def _finish(self, number: int) -> None:
        """A batch is done, and with it all before it."""
        for each in [each for each in self._batches if each <= number]:
            self._running_pump().finish(self._batches.pop(each))

    def _running_pump(self) -> ChannelPump:
        if self._pump is None:
            self._pump = ChannelPump(self._consumer)
        return self._pump

    def _consumer(self) -> Consumer:
        options, access = self._options, self._options.access
        config = replace(
            access.client_config(),
            max_in_flight=max(self._rows_max, IN_FLIGHT),
            msg_timeout=MSG_TIMEOUT_SECONDS,
        )
        return Consumer(
            options.topics.names[0],
            options.channel,
            nsqd=Nodes(replace(access, lookupds=())).tcp_addresses() if access.nsqds else (),
            lookupd=access.lookupds,
            config=config,
        )


def _to_arrow(topic: str, messages: list[Message]) -> bytes:
    times_ns = pa.array([message.timestamp_ns for message in messages], pa.int64())
    count = len(messages)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.repeat(topic, count),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.int64()),
            pa.array([message.id.decode("ascii", "replace") for message in messages], pa.string()),
            pa.array([message.timestamp_ns // 1000 for message in messages], pa.int64()).view(
                pa.timestamp("us", tz="UTC")
            ),
            times_ns,
            pa.array([message.body for message in messages], pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW_SCHEMA) as writer:
        writer.write_batch(batch)
    rows: bytes = sink.getvalue().to_pybytes()
    return rows
