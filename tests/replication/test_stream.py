"""Messages between leader and follower are encoded and decoded."""

import pytest

from penstock.common.errors import CorruptStreamError
from penstock.replication.stream import (
    Ack,
    Batches,
    CutSegment,
    FollowerMessage,
    HaveAll,
    HaveTopic,
    Heartbeat,
    Hello,
    Journal,
    JournalState,
    LeaderMessage,
    Metadata,
    OpenTopic,
    Refuse,
    RemoveSegment,
    RemoveTopic,
    SegmentState,
    Settings,
    StreamDecoder,
    Welcome,
    encode_message,
)

LOG_ID = bytes(range(16))
MESSAGES: list[FollowerMessage | LeaderMessage] = [
    Hello("shop", "orders-1", "uuid", "a", "a1", 7, "secret", 1),
    HaveTopic("t", LOG_ID, [SegmentState(5, 2, 1000, 9)], JournalState(3, 400, 0xFFFFFFFF)),
    HaveTopic("empty", LOG_ID, [], None),
    HaveAll(),
    Ack(2**40),
    Welcome(7, must_sync=True),
    Refuse("another cluster", 9),
    OpenTopic(1, "t", LOG_ID),
    CutSegment(1, 5, 500),
    Batches(1, 5, 40, b"\0\xff" * 100),
    Journal(1, 3, 0, b"\x9ePSJ"),
    RemoveSegment(1, 5),
    RemoveTopic("t", LOG_ID),
    Settings(617, 2**50),
    Metadata(b"{}"),
    Heartbeat(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: FollowerMessage | LeaderMessage) -> None:
    assert [message] == list(StreamDecoder().feed(encode_message(message)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_arrive_in_pieces(size: int) -> None:
    stream = b"".join(map(encode_message, MESSAGES))
    decoder = StreamDecoder()
    found = [
        message
        for at in range(0, len(stream), size)
        for message in decoder.feed(stream[at : at + size])
    ]

    assert MESSAGES == found


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\0\0\0\1\xc1", b"\0\0\0\2\x91\x63"])
def test_invalid_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStreamError):
        list(StreamDecoder().feed(data))
