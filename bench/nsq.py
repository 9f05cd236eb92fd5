"""NSQ's protocol as the load uses it: TCP for messages, HTTP for /pub, /ping and setup.

All bodies have the same length, so all message frames do. This makes a reader cheap: frames are
counted by division, and the FINs of a whole buffer are built with sixteen strided copies, one for
each byte of an id, whatever the number of messages.

    frame   0 size   4 type   8 timestamp   16 attempts   18 id   34 body
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from struct import Struct
from urllib.parse import urlencode

from bench.load import BODY, Address, Endpoint, LoadError, Publisher, Reader, connect, read_until

__all__ = [
    "BODY_AT",
    "CLOSE_WAIT",
    "FRAME_BYTES",
    "MAGIC",
    "OK",
    "RDY_MAX",
    "SELDOM",
    "U32",
    "Dial",
    "Nsq",
    "NsqReader",
    "dial",
    "fin_commands",
    "frame_count",
    "http_batch_publisher",
    "http_publisher",
    "identify",
    "mpub",
    "pub",
]

MAGIC = b"  V2"
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
CLOSE_WAIT = b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"
U32 = Struct(">I")

ID_AT = 18
ID_BYTES = 16
BODY_AT = ID_AT + ID_BYTES
FRAME_BYTES = BODY_AT + len(BODY)
MESSAGE_TYPE = U32.pack(2)

FIN = b"FIN " + b"0" * ID_BYTES + b"\n"

RDY_MAX = 2500
"""The default maximum of nsqd."""

BUFFER_BYTES_MIN = 64 * 1024

SELDOM: Mapping[str, int] = {"heartbeat_interval": 60_000}
"""A consumer cannot disable heartbeats, but no run is long enough for one of these."""

THROUGHPUT: Mapping[str, int] = {**SELDOM, "output_buffer_timeout": 25}
"""A busy consumer requests the shortest output buffer timeout."""


Dial = Callable[[Address, Mapping[str, int]], socket.socket]
"""Opens a connection and sends this IDENTIFY."""


def dial(address: Address, features: Mapping[str, int]) -> socket.socket:
    """A connection without TLS and compression."""
    peer = connect(address)
    peer.sendall(MAGIC + identify(features))
    read_until(peer, OK)
    return peer


class Nsq:
    """The protocol of every nsqd. `dial` adds TLS or compression; `body` is the message."""

    def __init__(self, dial: Dial = dial, body: bytes = BODY) -> None:
        self._dial = dial
        self._body = body

    def is_ready(self, at: Endpoint) -> bool:
        try:
            return _call(at.http, "GET", "/ping") == HTTPStatus.OK
        except (OSError, HTTPException):
            return False

    def create(self, at: Endpoint, topic: str, channels: Sequence[str]) -> None:
        _post(at.http, "/topic/create", topic=topic)
        for channel in channels:
            _post(at.http, "/channel/create", topic=topic, channel=channel)

    def publisher(
        self, at: Endpoint, *topics: str, connections: int, requests: int, batch: int
    ) -> Publisher:
        bodies = [self._body] * batch
        return self.requester(
            at,
            [pub(topic, self._body) if batch == 1 else mpub(topic, bodies) for topic in topics],
            connections=connections,
            requests=requests,
            batch=batch,
        )

    def requester(
        self,
        at: Endpoint,
        in_turn: Sequence[bytes],
        *,
        connections: int,
        requests: int,
        batch: int = 1,
    ) -> Publisher:
        """Publish with these commands, each of which contains `batch` messages."""
        return Publisher(
            partial(self._dial, at.tcp, SELDOM),
            in_turn,
            _is_ok,
            connections=connections,
            requests=requests,
            batch=batch,
        )

    def reader(self, at: Endpoint, topic: str, channel: str, *, ahead: int = RDY_MAX) -> Reader:
        return NsqReader(
            at.tcp, topic, channel, rdy=ahead, body_bytes=len(self._body), dial=self._dial
        )


class NsqReader:
    """A consumer that finishes its messages. With `identify=None` it negotiates nothing."""

    def __init__(
        self,
        address: Address,
        topic: str,
        channel: str,
        *,
        identify: Mapping[str, int] | None = THROUGHPUT,
        rdy: int = RDY_MAX,
        body_bytes: int = len(BODY),
        dial: Dial = dial,
    ) -> None:
        self.channel = channel
        self._address = address
        self._topic = topic
        self._identify = identify
        self._rdy = rdy
        self._frame_bytes = BODY_AT + body_bytes
        self._dial = dial
        self._finished: list[bytearray] = []

    def open(self) -> socket.socket:
        if self._identify is None:
            self.socket = connect(self._address)
            self.socket.sendall(MAGIC)
        else:
            self.socket = self._dial(self._address, self._identify)
        self.socket.sendall(f"SUB {self._topic} {self.channel}\n".encode())
        read_until(self.socket, OK)
        self._buffer = bytearray(max(2 * self._rdy * self._frame_bytes, BUFFER_BYTES_MIN))
        self._view = memoryview(self._buffer)
        self._filled = 0
        return self.socket

    def begin(self) -> None:
        self.socket.sendall(b"RDY %d\n" % self._rdy)

    def receive(self) -> int:
        start, frame_bytes = self._filled, self._frame_bytes
        filled = start + self.socket.recv_into(self._view[start:])
        if filled == start:
            raise LoadError("the server closed the connection")
        count = frame_count(self._view[:filled], frame_bytes)
        if count:
            fins = fin_commands(self._buffer, count, frame_bytes)
            self.socket.sendall(fins)
            self._finished.append(fins)
        # Move the incomplete frame to the front.
        end = count * frame_bytes
        self._filled = filled - end
        self._view[: self._filled] = self._view[end:filled]
        return count

    def close(self) -> None:
        # nsqd processes commands in order, so the response to CLS confirms all FINs.
        self.socket.sendall(b"CLS\n")
        read_until(self.socket, CLOSE_WAIT)

    def ids(self) -> Iterator[bytes]:
        for fins in self._finished:
            for start in range(4, len(fins), len(FIN)):
                yield bytes(fins[start : start + ID_BYTES])


def frame_count(received: bytes | bytearray | memoryview, frame_bytes: int = FRAME_BYTES) -> int:
    """Number of complete message frames at the start. Raises LoadError if another frame comes
    first.
    """
    expected = U32.pack(frame_bytes - 4) + MESSAGE_TYPE
    start = received[: len(expected)]
    if start != expected[: len(start)]:
        body_bytes = frame_bytes - BODY_AT
        raise LoadError(f"not a message of {body_bytes} bytes: {bytes(received[:60])!r}")
    return len(received) // frame_bytes


def fin_commands(
    frames: bytes | bytearray, count: int, frame_bytes: int = FRAME_BYTES
) -> bytearray:
    """A FIN for each of the first `count` frames."""
    commands = bytearray(FIN * count)
    end = count * frame_bytes
    for i in range(ID_BYTES):
        commands[4 + i :: len(FIN)] = frames[ID_AT + i : end : frame_bytes]
    return commands


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n%s%s" % (topic.encode(), U32.pack(len(body)), body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    body = _multi_body(bodies)
    return b"MPUB %s\n%s%s" % (topic.encode(), U32.pack(len(body)), body)


def identify(features: Mapping[str, object]) -> bytes:
    body = json.dumps(features).encode()
    return b"IDENTIFY\n" + U32.pack(len(body)) + body


def http_publisher(at: Endpoint, topic: str, *, connections: int, requests: int) -> Publisher:
    """Publishes over keep-alive HTTP connections, one message per request."""
    request = _http_post(at, "/pub?" + urlencode({"topic": topic}), BODY)
    return _http_requester(at, request, connections=connections, requests=requests)


def http_batch_publisher(
    at: Endpoint, topic: str, *, connections: int, requests: int, batch: int
) -> Publisher:
    """Publishes over HTTP with `batch` messages per request, in MPUB's format."""
    path = "/mpub?" + urlencode({"topic": topic, "binary": "true"})
    request = _http_post(at, path, _multi_body([BODY] * batch))
    return _http_requester(at, request, connections=connections, requests=requests, batch=batch)


def _http_requester(
    at: Endpoint, request: bytes, *, connections: int, requests: int, batch: int = 1
) -> Publisher:
    return Publisher(
        partial(connect, at.http),
        [request],
        _is_http_ok,
        connections=connections,
        requests=requests,
        batch=batch,
    )


def _http_post(at: Endpoint, path: str, body: bytes) -> bytes:
    host, port = at.http
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _multi_body(bodies: Sequence[bytes]) -> bytes:
    return U32.pack(len(bodies)) + b"".join(U32.pack(len(one)) + one for one in bodies)


def _is_ok(reply: bytes) -> bool:
    if reply == OK:
        return True
    if not OK.startswith(reply):
        raise LoadError(f"not an OK: {reply[:60]!r}")
    return False


def _is_http_ok(reply: bytes) -> bool:
    if not reply.startswith(b"HTTP/1.1 200"[: len(reply)]):
        raise LoadError(f"not a 200: {reply[:60]!r}")
    return reply.endswith(b"\r\n\r\nOK")


def _post(http: Address, path: str, **arguments: str) -> None:
    path = f"{path}?{urlencode(arguments)}"
    status = _call(http, "POST", path)
    if status != HTTPStatus.OK:
        raise LoadError(f"POST {path}: {status}")


def _call(http: Address, method: str, path: str) -> int:
    connection = HTTPConnection(*http, timeout=10)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    finally:
        connection.close()
