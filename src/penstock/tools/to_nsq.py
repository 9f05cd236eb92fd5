"""to_nsq: publish the records of standard input to every given nsqd.

Records that are available together are published together. The exit code is 0 only if every nsqd
has confirmed every record read. A signal stops the reading; the records read so far are still
published, within a time limit. The final error counts the records that were read, but not
confirmed.
"""

import asyncio
import os
import select
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from penstock.client import ClientConfig, Producer
from penstock.client.publish_batch import split_into_batches
from penstock.common import names
from penstock.common.errors import ClientError, ConfigError, Error, RefusedError
from penstock.common.logs import Logger
from penstock.common.option_types import BOOL, INT, STRING, STRINGS
from penstock.common.options import check_values, option
from penstock.tools.consumer_options import CLIENT_OPTIONS, client_config
from penstock.tools.display import format_count
from penstock.tools.runner import run_tool

__all__ = ["RecordSplitter", "Throttle", "ToNsqOptions", "check", "run"]

READ_BYTES = 1 << 20

# Maximum number of chunks that are read, but not published.
READ_AHEAD_CHUNKS = 2

# Time limit for publishing the records read before a signal; --rate may make this slow.
STOP_SECONDS = 5.0

# How often the reading thread checks for a stop, and the time limit for it to notice. It may block
# for ever if another process reads the same input.
STOP_CHECK_SECONDS = 0.1
READER_STOP_SECONDS = 1.0

# nsqd may refuse only one message of the batch.
_SPLIT_CODES = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToNsqOptions:
    """The options of to_nsq."""

    version: bool = option(False, BOOL, "print the version and exit", key=None)
    topic: str = option("", STRING, "topic to publish to", key=None)
    nsqd_tcp_address: tuple[str, ...] = option(
        (),
        STRINGS,
        "TCP address of an nsqd: host:port, or the path of a unix socket; each gets every message",
        key=None,
    )
    delimiter: str = option(
        "\n", STRING, "byte that ends a record", key=None, default_text="a newline"
    )
    rate: int = option(0, INT, "maximum number of messages per second; 0 for no limit", key=None)
    producer_opt: tuple[str, ...] = option(
        (),
        CLIENT_OPTIONS,
        "client option of the producer: name,value, or name alone for true",
        key=None,
    )


def check(options: ToNsqOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    check_values(options)
    if not options.topic:
        raise ConfigError("--topic required")
    if not names.is_valid(options.topic):
        raise ConfigError("--topic is invalid")
    if len(_delimiter(options)) != 1:
        raise ConfigError("--delimiter must be a single byte")
    if not options.nsqd_tcp_address:
        raise ConfigError("--nsqd-tcp-address required")
    _config(options)


def run(options: ToNsqOptions, log: Logger) -> int:
    """Publish standard input. Raises ClientError if a record was not confirmed."""
    return run_tool(lambda stop: _publish_all(options, stop, log), log)


def _config(options: ToNsqOptions) -> ClientConfig:
    return client_config("to_nsq", "--producer-opt", options.producer_opt)


def _delimiter(options: ToNsqOptions) -> bytes:
    return options.delimiter.encode(errors="surrogateescape")


async def _publish_all(options: ToNsqOptions, stop: asyncio.Event, log: Logger) -> int:
    config = _config(options)
    if options.rate > 0:
        log.info("Throttling messages rate to max:%d/second", options.rate)
    async with AsyncExitStack() as stack:
        publishers = [
            _Publisher(await stack.enter_async_context(Producer(address, config=config)), options)
            for address in dict.fromkeys(options.nsqd_tcp_address)
        ]
        records, read_count = _records(_delimiter(options), stop), 0
        throttle = Throttle(options.rate)
        try:
            async with _limit_after_stop(stop):
                async for batch in records:
                    read_count += len(batch)
                    await _publish(batch, publishers, throttle)
        except (ClientError, TimeoutError) as failure:
            stop.set()
            read_count += sum([len(batch) async for batch in records])
            left_count = read_count - min(each.confirmed_count for each in publishers)
            raise ClientError(_describe_failure(failure, left_count)) from failure
    return 0


async def _publish(
    records: Sequence[bytes], publishers: Sequence["_Publisher"], throttle: "Throttle"
) -> None:
    start = 0
    while start < len(records):
        end = start + await throttle.take(len(records) - start)
        await asyncio.gather(*(each.publish(records[start:end]) for each in publishers))
        start = end


@asynccontextmanager
async def _limit_after_stop(stop: asyncio.Event) -> AsyncIterator[None]:
    """Raises TimeoutError if the block does not end within STOP_SECONDS after `stop`."""

    async def limit_from_stop() -> None:
        await stop.wait()
        limit.reschedule(asyncio.get_running_loop().time() + STOP_SECONDS)

    async with asyncio.timeout(None) as limit:
        limiting = asyncio.create_task(limit_from_stop())
        try:
            yield
        finally:
            limiting.cancel()


def _describe_failure(failure: Exception, left_count: int) -> str:
    reason = str(failure) or f"publishing took longer than {STOP_SECONDS:g} s after the signal"
    return f"{reason} ({format_count(left_count, 'record')} read but not published)"


class _Publisher:
    """Publishes to one nsqd, in order."""

    def __init__(self, producer: Producer, options: ToNsqOptions) -> None:
        self._producer = producer
        self._topic = options.topic
        self._batch_size_max = _config(options).max_batch_size
        self.confirmed_count = 0

    async def publish(self, records: Sequence[bytes]) -> None:
        """Return when all records are confirmed. Raises the first ClientError."""
        batches = [self._publish(run) for run in split_into_batches(records, self._batch_size_max)]
        await asyncio.gather(*batches)

    async def _publish(self, batch: Sequence[bytes]) -> None:
        """Publish a batch with one MPUB, which nsqd stores completely or not at all. If nsqd
        refuses the batch because of one record, publish the records before this record one by
        one, and raise RefusedError."""
        try:
            await self._producer.publish_many(self._topic, batch)
            self.confirmed_count += len(batch)
        except RefusedError as refusal:
            if len(batch) == 1 or refusal.code not in _SPLIT_CODES:
                raise
            for record in batch:
                await self._producer.publish(self._topic, record)
                self.confirmed_count += 1


async def _records(delimiter: bytes, stop: asyncio.Event) -> AsyncIterator[list[bytes]]:
    splitter = RecordSplitter(delimiter)
    async for chunk in _chunks(stop):
        if records := splitter.feed(chunk):
            yield records
    if records := splitter.rest():
        yield records


async def _chunks(stop: asyncio.Event) -> AsyncIterator[bytes]:
    """The chunks of standard input, until its end or until `stop` is set. Raises Error if it
    cannot be read. A thread reads it, because an event loop cannot wait for files."""
    if sys.stdin is None:
        raise Error("standard input is closed")
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(READ_AHEAD_CHUNKS)
    reading = (sys.stdin.fileno(), queue, asyncio.get_running_loop(), stop)
    threading.Thread(target=_read, args=reading, daemon=True).start()
    stopped = asyncio.create_task(stop.wait())
    try:
        while chunk := await _next_chunk(queue, stopped):
            yield chunk
    finally:
        stopped.cancel()


def _read(
    fd: int,
    queue: asyncio.Queue[bytes | OSError],
    loop: asyncio.AbstractEventLoop,
    stop: asyncio.Event,
) -> None:
    """Put every chunk into the queue; the last item is an empty chunk or an error."""
    chunk: bytes | OSError = b"?"
    with suppress(CancelledError, RuntimeError):  # the loop has ended
        while isinstance(chunk, bytes) and chunk:
            try:
                chunk = _read_chunk(fd, stop)
            except OSError as error:
                chunk = error
            asyncio.run_coroutine_threadsafe(queue.put(chunk), loop).result()


def _read_chunk(fd: int, stop: asyncio.Event) -> bytes:
    """The next chunk; empty at the end, or when `stop` is set."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not stop.is_set():
        if poll.poll(STOP_CHECK_SECONDS * 1000):
            with suppress(BlockingIOError):  # another process has read it
                return os.read(fd, READ_BYTES)
    return b""


async def _next_chunk(queue: asyncio.Queue[bytes | OSError], stopped: asyncio.Task[bool]) -> bytes:
    """The next chunk; empty at the end, or if the thread does not react to a stop."""
    getting = asyncio.create_task(queue.get())
    await asyncio.wait({getting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({getting}, timeout=READER_STOP_SECONDS)
    if getting.cancel():
        return b""
    chunk = getting.result()
    if isinstance(chunk, OSError):
        raise Error(f"standard input cannot be read: {chunk.strerror}")
    return chunk


# nsqd's default limit is 1 MiB; a record far above it means that the delimiter is wrong.
RECORD_BYTES_MAX = 256 << 20


class RecordSplitter:
    """Splits bytes into records. Skips empty records; the last record needs no delimiter."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._pieces: list[bytes] = []  # of the incomplete record
        self._pieces_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The records that `data` completes. Raises Error if a record is too long."""
        first, *others = data.split(self._delimiter)
        if not others:
            self._keep(first)
            return []
        records = [self._take_incomplete() + first, *others]
        self._keep(records.pop())
        return [record for record in records if record]

    def rest(self) -> list[bytes]:
        """The last record, if any; call it at the end of the input."""
        return [record] if (record := self._take_incomplete()) else []

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        if self._pieces_bytes > RECORD_BYTES_MAX:
            raise Error(f"no delimiter {self._delimiter!r} within {RECORD_BYTES_MAX} bytes")

    def _take_incomplete(self) -> bytes:
        record = b"".join(self._pieces)
        self._pieces.clear()
        self._pieces_bytes = 0
        return record


class Throttle:
    """Limits publishing to `per_second` messages; 0 for no limit. Unused allowance is kept for a
    second."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._allowance = 1.0
        self._counted_at = asyncio.get_running_loop().time()

    async def take(self, wanted: int) -> int:
        """Wait until at least one message may be published. Returns how many may be published now,
        at most `wanted`."""
        if self._per_second <= 0:
            return wanted
        missing = 1 - self._grown_allowance()
        if missing > 0:
            await asyncio.sleep(missing / self._per_second)
            self._allowance = max(1.0, self._grown_allowance())
        count = min(wanted, int(self._allowance))
        self._allowance -= count
        return count

    def _grown_allowance(self) -> float:
        now = asyncio.get_running_loop().time()
        grown = self._allowance + (now - self._counted_at) * self._per_second
        self._allowance = min(grown, float(self._per_second))
        self._counted_at = now
        return self._allowance
