"""`mode=channel`: a stream that consumes a channel of any nsqd over the NSQ protocol.

The driver receives the messages, sends them to the executors inside the partitions, and finishes
them when Spark commits their batch. Delivery is at least once: if the driver is killed, nsqd
delivers its unfinished messages again, in a later batch. A batch planned before a restart is
therefore empty when it is run again.

Offsets count batches. `node` and `seq` are null, because the NSQ protocol does not deliver them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.client.blocking import Consumer, Message
from penstock.common.errors import ClientError, Error
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.reader import ARROW_SCHEMA

__all__ = ["BackgroundConsumer", "ChannelReader"]

# Default limit of nsqd for one connection (--max-rdy-count).
IN_FLIGHT = 2500

# With Trigger.AvailableNow, a channel without messages for this long is considered empty.
IDLE_SECONDS = 1.0

# Maximum time that the thread waits for messages before it handles finished ones.
STEP_SECONDS = 0.05

# Message timeout requested from nsqd, and the interval of the TOUCHes that extend it.
MSG_TIMEOUT_SECONDS = 60.0
TOUCH_SECONDS = 20.0

_BATCH = "batch"


@dataclass
class MessagesPartition(InputPartition):
    """Rows as an Arrow IPC stream."""

    rows: bytes


class BackgroundConsumer:
    """Consumes a channel in a background thread, while Spark fetches messages at intervals.

    The thread owns the connections: it answers heartbeats, receives messages, and touches the ones
    that Spark is processing. The constructor connects with `make` and raises what `make` raises.
    """

    def __init__(self, make: Callable[[], Consumer]) -> None:
        self._changed = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._taken: set[Message] = set()
        self._done: list[Message] = []
        self._failure: Error | None = None
        self._stopping = False
        self._touch_at = time.monotonic() + TOUCH_SECONDS
        self._consumer = make()
        self._consumer.start()
        self._thread = threading.Thread(target=self._run, name="nsq channel", daemon=True)
        self._thread.start()

    def take(
        self, count_max: int, *, seconds: float = 0.0, published_before_ns: int | None = None
    ) -> list[Message]:
        """Take the oldest messages, at most `count_max`, published by `published_before_ns`.

        Waits up to `seconds` for the first one. Raises the error that ended the connections.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._failure, seconds)
            if self._failure is not None and not self._inbox:
                raise self._failure
            taken: list[Message] = []
            while self._inbox and len(taken) < count_max:
                if not _is_before(self._inbox[0], published_before_ns):
                    break
                taken.append(self._inbox.popleft())
            self._taken.update(taken)
            return taken

    def finish(self, messages: Iterable[Message]) -> None:
        """Let the thread send FIN for these messages."""
        with self._changed:
            self._done.extend(messages)

    def close(self) -> None:
        """Send the pending FINs and disconnect; nsqd requeues unfinished messages."""
        self._stopping = True
        self._thread.join()

    # Methods of the thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                arrived = self._consumer.batch(timeout=STEP_SECONDS)
                with self._changed:
                    self._inbox.extend(arrived)
                    self._changed.notify_all()
                self._answer()
            self._answer()
        except Error as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()
        finally:
            self._consumer.close()

    def _answer(self) -> None:
        with self._changed:
            done, self._done = self._done, []
            self._taken.difference_update(done)
            held = [*self._taken, *self._inbox]
        for message in done:
            message.finish()
        self._consumer.flush()
        if time.monotonic() >= self._touch_at:
            self._touch_at = time.monotonic() + TOUCH_SECONDS
            for message in held:
                _touch(message)


def _touch(message: Message) -> None:
    try:
        message.touch()
    except ClientError:
        return  # its connection is lost, so nsqd delivers the message again


def _is_before(message: Message, time_ns: int | None) -> bool:
    return time_ns is None or message.timestamp_ns <= time_ns


class ChannelReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Exists on the driver for the lifetime of the query; connects at the first `latestOffset`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._rows_max = options.rows_per_trigger or IN_FLIGHT
        self._consumer_thread: BackgroundConsumer | None = None
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
            messages = self._started_consumer().take(
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
        if self._consumer_thread is not None:
            self._consumer_thread.close()

    def _finish(self, number: int) -> None:
        """Finish the messages of this batch and all earlier ones."""
        for each in [each for each in self._batches if each <= number]:
            self._started_consumer().finish(self._batches.pop(each))

    def _started_consumer(self) -> BackgroundConsumer:
        if self._consumer_thread is None:
            self._consumer_thread = BackgroundConsumer(self._consumer)
        return self._consumer_thread

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
            pa.nulls(count, pa.string()),
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
