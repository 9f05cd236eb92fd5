"""Messages from a topic's log on their way to an HTTP client, without anybody else noticing.

The disk is read in a few threads of our own, a piece at a time for each client, and only when the
client has taken the piece before. So a request costs the loop a fraction of a millisecond between
other events, and memory for a piece or two, however much is asked for; and only so many may be
under way at once.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

from penstock.broker.topic import Topic
from penstock.common.errors import StorageError
from penstock.net.http_server import StreamAbortedError
from penstock.nsqd.message_json import MessageLine, encode_lines, message_line
from penstock.protocol import frames as wire
from penstock.storage import LogReader, StoredBatch, split_frames

__all__ = ["READERS_MAX", "HistoryStreams"]

# With a piece in each one's hands, and one more at the kernel's, some 50 MB at the most.
READERS_MAX = 32
PIECE_BYTES = 512 * 1024

# More would not read a page cache faster, and would let more pieces come between two live messages.
_THREADS = 2

# Rendering JSON costs some microseconds a message: so much of it is done at once.
_JSON_BYTES = 32 * 1024

# To a client that follows a log which does not grow, something is sent so often. It need not wonder
# whether we are still there, and we come to know if it is not.
HEARTBEAT_SECONDS = 5.0

# A client that follows the end of a log is sent what has come in such a time, so that a busy topic
# does not cost a read for each publish.
_FOLLOW_SECONDS = 0.01


class HistoryStreams:
    """All that are under way."""

    def __init__(self) -> None:
        self._open = 0
        self._is_closing = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="history")
        self._grown: dict[Topic, asyncio.Event] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more can be begun for now."""
        return self._open >= READERS_MAX

    def end_following(self) -> None:
        """Nobody waits for more from here on; the others may come to their end."""
        self._is_closing = True
        for event in self._grown.values():
            event.set()

    def close(self) -> None:
        """Gives the threads back. Nobody reads any more."""
        self._threads.shutdown(wait=False)

    async def frames(
        self, topic: Topic, reader: LogReader, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """The frames as they are in the log, in large pieces."""
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
                for lines in [b"\n"] if batches is None else _lines_of(batches):
                    yield lines

    async def _batches(
        self, topic: Topic, reader: LogReader, *, follow: bool
    ) -> AsyncGenerator[list[StoredBatch] | None, None]:
        """What is read, piece by piece; None when nothing has come for a while."""
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
                    raise StreamAbortedError("nsqd stops before all that was asked for has come")
                elif not await self._is_there_more(topic):
                    yield None
        except StorageError as failure:
            raise StreamAbortedError(str(failure)) from failure
        finally:
            self._open -= 1
            if topic.closed:
                self._grown.pop(topic, None)  # it will never grow
            # The client may have gone while a thread was reading: the file stays open for that.
            if running is None:
                reader.close()
            else:
                running.add_done_callback(lambda _: reader.close())

    async def _is_there_more(self, topic: Topic) -> bool:
        """Waits for the topic to grow, but not for ever."""
        grown = self._grown.setdefault(topic, asyncio.Event())
        topic.on_grown = partial(self._has_grown, topic)
        try:
            # Not `wait_for`, which would not notice that a client leaves as the topic grows.
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await grown.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(_FOLLOW_SECONDS)
        return True

    def _has_grown(self, topic: Topic) -> None:
        topic.on_grown = None
        self._grown.pop(topic).set()


def _lines_of(batches: Iterable[StoredBatch]) -> Iterator[bytes]:
    """The lines of all messages, some at a time."""
    lines: list[MessageLine] = []
    size = 0
    for batch, frames in batches:
        for seq, frame in enumerate(split_frames(batch, frames), batch.first_seq):
            lines.append(message_line(seq, frame, batch.due_ns))
            size += len(frame)
            if size >= _JSON_BYTES:
                yield encode_lines(lines)
                lines, size = [], 0
    yield encode_lines(lines)
