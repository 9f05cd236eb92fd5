"""Messages between a leader and a follower, and their encoding. Pure.

A follower connects to the leader's TCP port and sends `MAGIC` instead of NSQ's `  V2`. Then both
sides send messages, each as a size (4 bytes, big-endian) and a MessagePack array whose first
element is the kind of the message.

    follower                       leader
    Hello                     ->
                              <-   Welcome, or Refuse and the end of the connection
    HaveTopic, one per topic  ->
    Damaged, if necessary     ->
    HaveAll                   ->
                              <-   RemoveTopic, CutSegment: what the leader does not have
                              <-   OpenTopic, Batches, Journal, ...: what the follower lacks
    Ack                       ->
                              <-   everything that the leader writes, as it happens
    Ack                       ->

The leader numbers the messages after `Welcome` from 1 on. `Ack.position` is the number of the last
message that the follower has applied, and fsynced if `Welcome.must_sync` is set. An `Ack` covers
all earlier messages, too.
"""

from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec

from penstock.common.errors import CorruptStreamError

__all__ = [
    "CHUNK_BYTES",
    "MAGIC",
    "MESSAGE_BYTES_MAX",
    "Ack",
    "Batches",
    "CutSegment",
    "Damaged",
    "FollowerMessage",
    "FormatSettings",
    "HaveAll",
    "HaveTopic",
    "Hello",
    "Journal",
    "JournalState",
    "KeepAlive",
    "LeaderMessage",
    "MetadataFile",
    "OpenTopic",
    "Refuse",
    "RemoveSegment",
    "RemoveTopic",
    "SegmentState",
    "StreamDecoder",
    "Welcome",
    "decode_follower",
    "decode_leader",
    "encode_message",
]

MAGIC = b" PSR"

# Bytes of a file in one message. A larger message would delay others, a smaller one costs more.
CHUNK_BYTES = 256 * 1024

MESSAGE_BYTES_MAX = 64 * 1024 * 1024

_SIZE_BYTES = 4


class _Message(msgspec.Struct, frozen=True, array_like=True):
    pass


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """A segment of a member. Two segments of a log with the same first number and epoch agree up to
    the end of the shorter one, because an epoch has one writer."""

    first_seq: int
    epoch: int
    """Of the first batch, and of all others."""
    end: int
    """Length of the file."""
    next_seq: int


class JournalState(msgspec.Struct, frozen=True, array_like=True):
    """The current journal file of a topic."""

    generation: int
    end: int
    crc: int
    """CRC-32C of its content."""


# From the follower


class Hello(_Message, frozen=True, tag=1):
    """The first message. The leader refuses a follower of another cluster, node or data path."""

    cluster: str
    node: str
    node_uuid: str
    member: str
    incarnation: str
    epoch: int
    """The highest epoch that the follower knows. A leader of a lower epoch has been replaced."""
    token: str
    version: int


class HaveTopic(_Message, frozen=True, tag=2):
    """A topic of the follower's copy, and the state of its files."""

    name: str
    log_id: bytes
    segments: list[SegmentState]
    journal: JournalState | None


class HaveAll(_Message, frozen=True, tag=3):
    """End of the list of topics: the follower has sent `HaveTopic` for each."""


class Ack(_Message, frozen=True, tag=4):
    """The follower has applied all messages up to `position`."""

    position: int


class Damaged(_Message, frozen=True, tag=5):
    """On an earlier connection, the leader has sent bytes of this segment that were not valid. The
    leader must check its file."""

    topic: str
    log_id: bytes
    first_seq: int


FollowerMessage: TypeAlias = Hello | HaveTopic | HaveAll | Ack | Damaged


# From the leader


class Welcome(_Message, frozen=True, tag=16):
    """The leader accepts the follower."""

    epoch: int
    must_sync: bool
    """Acknowledge only what is fsynced."""


class Refuse(_Message, frozen=True, tag=17):
    """The leader refuses the follower, and closes the connection."""

    reason: str
    epoch: int


class OpenTopic(_Message, frozen=True, tag=18):
    """Assigns a number to a topic; the following messages name the topic by this number. The
    follower creates the topic if its copy lacks it."""

    topic: int
    name: str
    log_id: bytes


class CutSegment(_Message, frozen=True, tag=19):
    """Remove the bytes of a segment from `end` on: the leader does not have them."""

    topic: int
    first_seq: int
    end: int


class Batches(_Message, frozen=True, tag=20):
    """Bytes of a segment. If the last batch is incomplete, the next message about this segment
    begins with the rest of it."""

    topic: int
    first_seq: int
    position: int
    data: bytes


class Journal(_Message, frozen=True, tag=21):
    """Bytes of the topic's journal. Position 0 starts a new file of this generation, which replaces
    the journal files of earlier generations."""

    topic: int
    generation: int
    position: int
    data: bytes


class RemoveSegment(_Message, frozen=True, tag=22):
    """The leader has trimmed a segment."""

    topic: int
    first_seq: int


class RemoveTopic(_Message, frozen=True, tag=23):
    """The topic was deleted, or the leader has never had this log."""

    name: str
    log_id: bytes


class FormatSettings(_Message, frozen=True, tag=24):
    """Lines of the leader's format file."""

    node_id: int
    reserved_below: int


class MetadataFile(_Message, frozen=True, tag=25):
    """Content of nsqd.dat."""

    content: bytes


class KeepAlive(_Message, frozen=True, tag=26):
    """Heartbeat of the leader, sent when there is no other message to send."""


LeaderMessage: TypeAlias = (
    Welcome
    | Refuse
    | OpenTopic
    | CutSegment
    | Batches
    | Journal
    | RemoveSegment
    | RemoveTopic
    | FormatSettings
    | MetadataFile
    | KeepAlive
)

_encoder = msgspec.msgpack.Encoder()
_from_follower: msgspec.msgpack.Decoder[FollowerMessage] = msgspec.msgpack.Decoder(FollowerMessage)
_from_leader: msgspec.msgpack.Decoder[LeaderMessage] = msgspec.msgpack.Decoder(LeaderMessage)
_M = TypeVar("_M")


def encode_message(message: FollowerMessage | LeaderMessage) -> bytes:
    """Encode a message with its size."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_SIZE_BYTES) + body


class StreamDecoder(Generic[_M]):
    """Decodes messages from the bytes of a connection."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_M]) -> None:
        """Use `decode_follower` or `decode_leader`."""
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[_M]:
        """Yield the messages that are complete now. Raises CorruptStreamError."""
        if not self._buffer and _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES]) == len(data):
            # Exactly one message, as usual: saves two copies.
            try:
                message = self._decoder.decode(memoryview(data)[_SIZE_BYTES:])
            except msgspec.MsgspecError as error:
                raise CorruptStreamError(f"invalid message: {error}") from error
            yield message
            return
        self._buffer += data
        at = 0
        try:
            while at + _SIZE_BYTES <= len(self._buffer):
                size = int.from_bytes(self._buffer[at : at + _SIZE_BYTES])
                if size > self.message_bytes_max:
                    raise CorruptStreamError(f"a message of {size} bytes is too large")
                end = at + _SIZE_BYTES + size
                if end > len(self._buffer):
                    break
                body = bytes(self._buffer[at + _SIZE_BYTES : end])
                at = end
                yield self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise CorruptStreamError(f"invalid message: {error}") from error
        finally:
            del self._buffer[:at]


def decode_follower() -> StreamDecoder[FollowerMessage]:
    """A decoder for the messages of a follower."""
    return StreamDecoder(_from_follower)


def decode_leader() -> StreamDecoder[LeaderMessage]:
    """A decoder for the messages of a leader."""
    return StreamDecoder(_from_leader)
