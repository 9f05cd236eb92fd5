"""Messages between leader and follower are encoded and decoded."""

import pytest

from penstock.common.errors import CorruptStreamError
from penstock.replication.stream import (
    Ack,
    Batches,
    CutSegment,
    FollowerMessage,
    FormatSettings,
    HaveAll,
    HaveTopic,
    Hello,
    Journal,
    JournalState,
    KeepAlive,
    LeaderMessage,
    MetadataFile,
    OpenTopic,
    Refuse,
    RemoveSegment,
    RemoveTopic,
    SegmentState,
    Welcome,
    decode_follower,
    decode_leader,
    encode_message,
)

LOG_ID = bytes(range(16))
FROM_FOLLOWER: list[FollowerMessage] = [
    Hello("shop", "orders-1", "uuid", "a", "a1", 7, "secret", 1),
    HaveTopic("t", LOG_ID, [SegmentState(5, 2, 1000, 9)], JournalState(3, 400, 0xFFFFFFFF)),
    HaveTopic("empty", LOG_ID, [], None),
    HaveAll(),
    Ack(2**40),
]
FROM_LEADER: list[LeaderMessage] = [
    Welcome(7, must_sync=True),
    Refuse("another cluster", 9),
    OpenTopic(1, "t", LOG_ID),
    CutSegment(1, 5, 500),
    Batches(1, 5, 40, b"\0\xff" * 100),
    Journal(1, 3, 0, b"\x9ePSJ"),
    RemoveSegment(1, 5),
    RemoveTopic("t", LOG_ID),
    FormatSettings(617, 2**50),
    MetadataFile(b"{}"),
    KeepAlive(),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_of_a_follower_arrive_in_pieces(size: int) -> None:
    stream = b"".join(map(encode_message, FROM_FOLLOWER))
    decoder = decode_follower()
    pieces = (stream[at : at + size] for at in range(0, len(stream), size))

    assert FROM_FOLLOWER == [message for piece in pieces for message in decoder.feed(piece)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_of_a_leader_arrive_in_pieces(size: int) -> None:
    stream = b"".join(map(encode_message, FROM_LEADER))
    decoder = decode_leader()
    pieces = (stream[at : at + size] for at in range(0, len(stream), size))

    assert FROM_LEADER == [message for piece in pieces for message in decoder.feed(piece)]


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 8, b"\0\0\0\1\xc1", b"\0\0\0\2\x91\x63", encode_message(FROM_LEADER[0])],
    ids=["too large", "not MessagePack", "unknown kind", "message of a leader"],
)
def test_invalid_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStreamError):
        list(decode_follower().feed(data))
