"""NSQ's wire, as the load speaks it: TCP for messages, HTTP for /pub, /ping and set-up.

All bodies have one length, so all message frames do. That is what makes a reader cheap: frames are
counted by division, and the FINs of a whole buffer are built with sixteen strided copies, one for
each byte of an id, whatever the number of messages.

    frame   0 size   4 type   8 timestamp   16 attempts   18 id   34 body
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from struct import Struct
from urllib.parse import urlencode

from bench.load import BODY, Address, Endpoint, LoadError, Publisher, Reader, connect, read_until

__all__ = [
    "BODY_AT",
    "FRAME_BYTES",
    "MAGIC",
    "OK",
    "SELDOM",
    "Nsq",
    "NsqReader",
    "fin_commands",
    "frame_count",
    "http_publisher",
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
FRAME_START = U32.pack(FRAME_BYTES - 4) + U32.pack(2)

FIN = b"FIN " + b"0" * ID_BYTES + b"\n"

RDY = 2500
"""The most that nsqd allows by default."""

SELDOM: Mapping[str, int] = {"heartbeat_interval": 60_000}
"""A consumer may not refuse heartbeats, but no run is long enough to see one of these."""

THROUGHPUT: Mapping[str, int] = {**SELDOM, "output_buffer_timeout": 25}
"""What a busy consumer asks for: of all waits for a flush the shortest."""


class Nsq:
    """The wire of every nsqd."""

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
        self, at: Endpoint, topic: str, *, connections: int, requests: int, batch: int
    ) -> Publisher:
        return Publisher(
            at.tcp,
            pub(topic, BODY) if batch == 1 else _mpub(topic, [BODY] * batch),
            _is_ok,
            connections=connections,
            requests=requests,
            batch=batch,
            opening=MAGIC + _identify(SELDOM),
            greeting=OK,
        )

    def reader(self, at: Endpoint, topic: str, channel: str) -> Reader:
        return NsqReader(at.tcp, topic, channel)


class NsqReader:
    """A consumer that finishes what it gets. With `identify=None` it negotiates nothing."""

    def __init__(
        self,
        address: Address,
        topic: str,
        channel: str,
        *,
        identify: Mapping[str, int] | None = THROUGHPUT,
    ) -> None:
        self.channel = channel
        self._address = address
        self._topic = topic
        self._identify = identify
        self._finished: list[bytearray] = []

    def open(self) -> socket.socket:
        identify = b"" if self._identify is None else _identify(self._identify)
        self.socket = connect(self._address)
        self.socket.sendall(MAGIC + identify + f"SUB {self._topic} {self.channel}\n".encode())
        read_until(self.socket, OK * (2 if identify else 1))
        self._buffer = bytearray(2 * RDY * FRAME_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        return self.socket

    def begin(self) -> None:
        self.socket.sendall(b"RDY %d\n" % RDY)

    def receive(self) -> int:
        start = self._filled
        filled = start + self.socket.recv_into(self._view[start:])
        if filled == start:
            raise LoadError("the server closed the connection")
        count = frame_count(self._view[:filled])
        if count:
            fins = fin_commands(self._buffer, count)
            self.socket.sendall(fins)
            self._finished.append(fins)
        # What is left of an unfinished frame moves to the front.
        end = count * FRAME_BYTES
        self._filled = filled - end
        self._view[: self._filled] = self._view[end:filled]
        return count

    def close(self) -> None:
        # Commands are worked off in order, so the answer to CLS means that every FIN has been.
        self.socket.sendall(b"CLS\n")
        read_until(self.socket, CLOSE_WAIT)

    def ids(self) -> Iterator[bytes]:
        for fins in self._finished:
            for start in range(4, len(fins), len(FIN)):
                yield bytes(fins[start : start + ID_BYTES])


def frame_count(received: bytes | bytearray | memoryview) -> int:
    """How many whole message frames these bytes begin with. Raises if another frame comes first."""
    start = received[: len(FRAME_START)]
    if start != FRAME_START[: len(start)]:
        raise LoadError(f"not a message of {len(BODY)} bytes: {bytes(received[:60])!r}")
    return len(received) // FRAME_BYTES


def fin_commands(frames: bytes | bytearray, count: int) -> bytearray:
    """A FIN for each of the first `count` frames."""
    commands = bytearray(FIN * count)
    end = count * FRAME_BYTES
    for i in range(ID_BYTES):
        commands[4 + i :: len(FIN)] = frames[ID_AT + i : end : FRAME_BYTES]
    return commands


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n%s%s" % (topic.encode(), U32.pack(len(body)), body)


def http_publisher(at: Endpoint, topic: str, *, connections: int, requests: int) -> Publisher:
    """Publishes over keep-alive HTTP connections, one message a request."""
    path = "/pub?" + urlencode({"topic": topic})
    host, port = at.http
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    return Publisher(
        at.http, head.encode() + BODY, _is_http_ok, connections=connections, requests=requests
    )


def _identify(features: Mapping[str, int]) -> bytes:
    body = json.dumps(features).encode()
    return b"IDENTIFY\n" + U32.pack(len(body)) + body


def _mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    body = U32.pack(len(bodies)) + b"".join(U32.pack(len(one)) + one for one in bodies)
    return b"MPUB %s\n%s%s" % (topic.encode(), U32.pack(len(body)), body)


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
