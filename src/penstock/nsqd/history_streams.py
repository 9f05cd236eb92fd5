"""Streams of a topic's log to HTTP clients, as frames or as lines of JSON.

Dedicated threads read the disk, one piece at a time per client, after the client has taken the
piece before. A stream of any length thus blocks the event loop for a fraction of a millisecond at a
time, and holds one or two pieces in memory. The number of streams is limited.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from penstock.broker.topic import Topic
from penstock.common.errors import StorageError
from penstock.net.http_server import StreamAbortedError
from penstock.protocol import frames as wire
from penstock.storage import LogReader, StoredBatch, split_frames

__all__ = ["READERS_MAX", "HistoryStreams", "MessageLine", "encode_lines", "message_line"]

# With one piece here and one in the kernel for each, at most about 50 MB.
READERS_MAX = 32
PIECE_BYTES = 512 * 1024

# More threads do not read the page cache faster, and would delay live messages.
_THREADS = 2

# Frames that are encoded as JSON in one turn of the loop: a message takes some microseconds.
_JSON_BYTES = 32 * 1024

# Interval of heartbeats to a client that follows a log while nothing is published. They show that
# nsqd is alive, and nsqd notices a dead client.
HEARTBEAT_SECONDS = 5.0

# A client that follows a log gets the messages of this time together, so that a busy topic does not
# cost one read per publish.
_FOLLOW_SECONDS = 0.01


class HistoryStreams:
    """Reads history for all clients: limits the number of open streams, and owns the threads that
    read the files."""

    def __init__(self) -> None:
        self._open = 0
        self._is_closing = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="history")
        self._grown: dict[Topic, asyncio.Event] = {}

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self._open >= READERS_MAX

    def end_following(self) -> None:
        """Ends the streams that wait for new messages; the others continue to their end."""
        self._is_closing = True
        for event in self._grown.values():
            event.set()

    def close(self) -> None:
        """Stops the threads. All streams must have ended."""
        self._threads.shutdown(wait=False)

    async def frames(
        self, topic: Topic, reader: LogReader, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """The frames as stored in the log, in large pieces."""
        async with aclosing(self._batches(topic, reader, follow=follow)) as pieces:
            async for batches in pieces:
                if batches is None:
                    yield wire.HEARTBEAT
                else:
                    yield b"".join([found.frames for found in batches])

    async def lines(self, topic: Topic, reader: LogReader, *, follow: bool) -> AsyncIterator[bytes]:
        """A line of JSON for each message."""
        async with aclosing(self._batches(topic, reader, follow=follow)) as pieces:
            async for batches in pieces:
                for lines in [b"\n"] if batches is None else _encode_batches(batches):
                    yield lines

    async def _batches(
        self, topic: Topic, reader: LogReader, *, follow: bool
    ) -> AsyncGenerator[list[StoredBatch] | None, None]:
        """The batches of each read; None when a heartbeat is due."""
        loop = asyncio.get_running_loop()
        running: asyncio.Future[list[StoredBatch]] | None = None
        self._open += 1
        try:
            while True:
                read = reader.next_read(PIECE_BYTES)
                if read is not None:
                    running = loop.run_in_executor(self._threads, read.run)
                    found = await asyncio.shield(running)
                    running = None
                    yield reader.advance(read, found)
                elif reader.is_done or not follow or (self._is_closing and reader.is_endless):
                    return
                elif self._is_closing:
                    raise StreamAbortedError(
                        "nsqd is shutting down before the end of the requested range"
                    )
                elif not await self._wait_for_growth(topic):
                    yield None
        except StorageError as failure:
            raise StreamAbortedError(str(failure)) from failure
        finally:
            self._open -= 1
            if topic.closed:
                self._grown.pop(topic, None)  # it cannot grow any more
            # If the client has gone while a thread is reading, the file is closed after the read.
            if running is None:
                reader.close()
            else:
                running.add_done_callback(lambda _: reader.close())

    async def _wait_for_growth(self, topic: Topic) -> bool:
        """Waits for new messages; returns False if none came until the next heartbeat."""
        grown = self._grown.get(topic)
        if grown is None:
            grown = self._grown[topic] = asyncio.Event()
            topic.call_on_next_change(partial(self._on_change, topic))
        try:
            # Not `wait_for`: it can swallow a cancellation that comes as the topic grows.
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await grown.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(_FOLLOW_SECONDS)
        return True

    def _on_change(self, topic: Topic) -> None:
        self._grown.pop(topic).set()


def _encode_batches(batches: Iterable[StoredBatch]) -> Iterator[bytes]:
    """The lines of all messages, in pieces of about _JSON_BYTES."""
    lines: list[MessageLine] = []
    size = 0
    for batch, frames, _ in batches:
        for seq, frame in enumerate(split_frames(batch, frames), batch.first_seq):
            lines.append(message_line(seq, frame, batch.due_ns))
            size += len(frame)
            if size >= _JSON_BYTES:
                yield encode_lines(lines)
                lines, size = [], 0
    yield encode_lines(lines)


class MessageLine(msgspec.Struct, gc=False):
    """A message as a line of JSON. Keys that do not apply are left out:

        {"seq":1763240000123456,"id":"9a46643955d2a540","timestamp_ns":1763240000123456789,"body":"x"}

    A body that is not UTF-8 is in `body_base64`.
    """

    seq: int
    id: str
    timestamp_ns: int
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    due_ns: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    deadline_ns: int | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    client_address: str | UnsetType = UNSET


def message_line(seq: int, frame: bytes, due_ns: int = 0) -> MessageLine:
    """A published message; `due_ns` is the wall time until which it was deferred, or 0."""
    body = wire.body(frame)
    line = MessageLine(seq, wire.message_id(frame).decode(), wire.timestamp_ns(frame))
    try:
        line.body = body.decode()
    except UnicodeDecodeError:
        line.body_base64 = b64encode(body).decode()
    if due_ns:
        line.due_ns = due_ns
    return line


encode_lines = msgspec.json.Encoder().encode_lines
"""Encodes messages, with a line end after each."""
