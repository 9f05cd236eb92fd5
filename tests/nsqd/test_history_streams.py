"""Streams that follow a log: content, heartbeats and end."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tests.broker.fakes import Host

from penstock.broker.topic import Topic
from penstock.net.http_server import StreamAbortedError
from penstock.nsqd import history_streams
from penstock.nsqd.history_streams import HistoryStreams
from penstock.protocol import frames as wire
from penstock.storage import LogReader, TopicLog
from penstock.storage.reader import ReadJob

Stream = Callable[[HistoryStreams, Topic, LogReader], AsyncIterator[bytes]]


def lines(streams: HistoryStreams, topic: Topic, reader: LogReader) -> AsyncIterator[bytes]:
    return streams.lines(topic, reader, follow=True)


def frames(streams: HistoryStreams, topic: Topic, reader: LogReader) -> AsyncIterator[bytes]:
    return streams.frames(topic, reader, follow=True)


def topic_of_one() -> tuple[Host, Topic, LogReader]:
    """A topic with one message, its broker, and a reader that starts after it."""
    host = Host()
    host.publish("t", "a")
    topic = host.broker.topic("t")
    assert isinstance(topic.log, TopicLog)
    return host, topic, LogReader(topic.log, topic.log.first_seq)


@pytest.mark.parametrize(("stream", "heartbeat"), [(lines, b"\n"), (frames, wire.HEARTBEAT)])
def test_heartbeats_while_nothing_is_published(
    monkeypatch: pytest.MonkeyPatch, stream: Stream, heartbeat: bytes
) -> None:
    monkeypatch.setattr(history_streams, "HEARTBEAT_SECONDS", 0.01)
    host, topic, reader = topic_of_one()

    async def follow() -> list[bytes]:
        streams = HistoryStreams()
        pieces = stream(streams, topic, reader)
        received = [await anext(pieces) for _ in range(3)]
        host.publish("t", "b")
        while (piece := await anext(pieces)) == heartbeat:
            pass
        received.append(piece)
        streams.end_following()
        received += [piece async for piece in pieces if piece != heartbeat]
        streams.close()
        return received

    first, *heartbeats, second = asyncio.run(follow())

    assert [heartbeat, heartbeat] == heartbeats
    assert b"a" in first
    assert b"b" in second


def test_a_client_that_disconnects_as_the_topic_grows_is_sent_no_more() -> None:
    host, topic, reader = topic_of_one()

    async def follow() -> None:
        streams = HistoryStreams()
        pieces = lines(streams, topic, reader)
        await anext(pieces)
        sending = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        host.publish("t", "b")
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        streams.close()

    asyncio.run(follow())


def test_deleting_a_topic_aborts_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_streams, "HEARTBEAT_SECONDS", 0.01)
    host, topic, reader = topic_of_one()

    async def follow() -> None:
        streams = HistoryStreams()
        pieces = frames(streams, topic, reader)
        await anext(pieces)
        host.broker.delete_topic("t")
        with pytest.raises(StreamAbortedError, match="the topic has been closed"):
            [piece async for piece in pieces]
        streams.close()

    asyncio.run(follow())


def test_a_long_log_is_read_at_the_pace_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that does not read costs the memory of one piece."""
    host = Host()
    for _ in range(20):
        host.publish("t", "x" * 100_000)
    topic = host.broker.topic("t")
    assert isinstance(topic.log, TopicLog)
    reader = LogReader(topic.log, topic.log.first_seq)
    reads = []
    next_read = LogReader.next_read

    def counted(self: LogReader, max_bytes: int) -> ReadJob | None:
        reads.append(max_bytes)
        return next_read(self, max_bytes)

    monkeypatch.setattr(LogReader, "next_read", counted)

    async def read() -> list[tuple[int, int]]:
        """The size of each piece, and the number of reads before it."""
        streams = HistoryStreams()
        pieces = streams.frames(topic, reader, follow=False)
        taken = [(len(piece), len(reads)) async for piece in pieces]
        streams.close()
        return taken

    taken = asyncio.run(read())

    assert len(taken) > 2
    assert list(range(1, len(taken) + 1)) == [count for _, count in taken]
    assert max(size for size, _ in taken) <= history_streams.PIECE_BYTES + 110_000
