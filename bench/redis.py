"""Redis Streams as the load uses it: XADD to publish, XREADGROUP and XACK to consume.

A batch is a pipeline of XADDs. A reader acknowledges a batch and requests the next one in one
write. Replies are not parsed: a regular expression finds the ids, in the form that XACK needs.
"""

import re
import socket
from collections.abc import Iterator, Sequence
from functools import partial

from bench.load import BODY, Address, Endpoint, LoadError, Publisher, Reader, connect, read_until

__all__ = ["Redis", "RedisReader"]

READ_COUNT = 200
"""Messages per read: of 100 to 2,500, the fastest for Redis."""

BLOCK_MS = 100
RECEIVE_BYTES = 1024 * 1024

BODY_END = b"$%d\r\n%s\r\n" % (len(BODY), BODY)
NOTHING = b"*-1\r\n"
ACKNOWLEDGED = re.compile(rb":\d+\r\n")
READ_START = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
ENTRY_ID = re.compile(rb"(\$\d+\r\n\d+-\d+\r\n)\*2\r\n")


class Redis:
    """The protocol of redis-server: a topic is a stream, a channel a consumer group."""

    def is_ready(self, at: Endpoint) -> bool:
        try:
            with connect(at.tcp) as peer:
                peer.sendall(_command("PING"))
                return peer.recv(64) == b"+PONG\r\n"
        except OSError:
            return False

    def create(self, at: Endpoint, topic: str, channels: Sequence[str]) -> None:
        with connect(at.tcp) as peer:
            for channel in channels:
                peer.sendall(_command("XGROUP", "CREATE", topic, channel, "$", "MKSTREAM"))
                read_until(peer, b"+OK\r\n")

    def publisher(
        self, at: Endpoint, *topics: str, connections: int, requests: int, batch: int
    ) -> Publisher:
        def is_reply(reply: bytes) -> bool:
            if not reply.startswith(b"$"):
                raise LoadError(f"not an entry id: {reply[:60]!r}")
            return reply.count(b"\r\n") == 2 * batch  # length and id, a line each

        return Publisher(
            partial(connect, at.tcp),
            [_command("XADD", topic, "*", "d", BODY.decode()) * batch for topic in topics],
            is_reply,
            connections=connections,
            requests=requests,
            batch=batch,
        )

    def reader(self, at: Endpoint, topic: str, channel: str, *, ahead: int = READ_COUNT) -> Reader:
        return RedisReader(at.tcp, topic, channel, min(ahead, READ_COUNT))


class RedisReader:
    """A member of a consumer group that acknowledges its messages."""

    def __init__(
        self, address: Address, topic: str, channel: str, read_count: int = READ_COUNT
    ) -> None:
        self.channel = channel
        self._address = address
        self._topic = topic
        self._read_count = read_count
        self._received = b""
        self._unacknowledged = False
        self._ids: list[list[bytes]] = []

    def open(self) -> socket.socket:
        self.socket = connect(self._address)
        # Consumer names must be unique within the group; the port is.
        name = f"reader-{self.socket.getsockname()[1]}"
        limits = ("COUNT", str(self._read_count), "BLOCK", str(BLOCK_MS))
        group = ("GROUP", self.channel, name, *limits)
        self._read = _command("XREADGROUP", *group, "STREAMS", self._topic, ">")
        return self.socket

    def begin(self) -> None:
        self.socket.sendall(self._read)

    def receive(self) -> int:
        received = self.socket.recv(RECEIVE_BYTES)
        if not received:
            raise LoadError("the server closed the connection")
        self._received += received
        self._take_acknowledgement()
        if self._received == NOTHING:
            self._received = b""
            self.begin()
            return 0
        return self._finish_batch()

    def close(self) -> None:
        while self._unacknowledged:
            self._received += self.socket.recv(RECEIVE_BYTES)
            self._take_acknowledgement()

    def ids(self) -> Iterator[bytes]:
        for ids in self._ids:
            yield from ids

    def _take_acknowledgement(self) -> None:
        if acknowledged := ACKNOWLEDGED.match(self._received):
            self._received = self._received[acknowledged.end() :]
            self._unacknowledged = False

    def _finish_batch(self) -> int:
        start = READ_START.match(self._received)
        if not start:
            if self._received.startswith(b"-"):
                raise LoadError(f"not a batch: {self._received[:60]!r}")
            return 0
        count = int(start[1])
        if self._received.count(BODY_END) < count:
            return 0
        ids = ENTRY_ID.findall(self._received)
        if len(ids) != count:
            raise LoadError(f"{len(ids)} ids in a batch of {count}")
        head = _array(count + 3) + b"".join(map(_bulk, ("XACK", self._topic, self.channel)))
        self.socket.sendall(head + b"".join(ids) + self._read)
        self._unacknowledged = True
        self._ids.append(ids)
        self._received = b""
        return count


def _command(*words: str) -> bytes:
    return _array(len(words)) + b"".join(map(_bulk, words))


def _array(length: int) -> bytes:
    return b"*%d\r\n" % length


def _bulk(word: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word.encode())
