"""JetStream as the load uses it, and a cluster of three nats-servers.

A batch is a write of several PUBs, each of which the stream acknowledges. A reader is a member of
the queue group of a push consumer; it acknowledges all messages of a read in one write. A regular
expression finds the subjects of the acknowledgements.

Streams and consumers have three replicas and are stored in files.
"""

import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.load import BODY, Address, LoadError, connect, read_some, read_until
from penstock.testing.addresses import reserved_address

__all__ = ["JetStream", "NatsReader", "dial_publisher", "has_nats", "run_jetstream"]

SERVERS = ("nats1", "nats2", "nats3")

RECEIVE_BYTES = 1024 * 1024
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
LEADER_ATTEMPTS = 30

UNACKED_MAX = 5_000
"""Of a consumer; two NSQ consumers with the default --max-rdy-count have as many."""

CONNECT = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
PING = b"PING\r\n"
PONG = b"PONG\r\n"

DELIVERED = re.compile(rb"MSG \S+ \d+ (\$JS\.ACK\.\S+) %d\r\n%s\r\n" % (len(BODY), BODY))

# The servers would check idle connections with PING, which the load does not answer.
CONFIG = """\
server_name: {name}
listen: "{client}"
ping_interval: "10m"
jetstream {{ store_dir: "{folder}", max_file: 50G }}
cluster {{ name: bench, listen: "{peer}", routes: [{routes}] }}
"""


def has_nats() -> bool:
    """Whether the program is installed; Debian has it in the package nats-server."""
    return shutil.which("nats-server") is not None


def dial_publisher(
    address: Address, stream: str, batch: int
) -> tuple[socket.socket, bytes, Callable[[bytes], bool]]:
    """A connection, the request that publishes `batch` messages, and whether a reply has all
    acknowledgements. Every connection has its own inbox for them."""
    peer = _dial(address)
    inbox = _inbox(peer)
    peer.sendall(b"SUB %s 1\r\n%s" % (inbox, PING))
    read_until(peer, PONG)
    request = b"PUB %s %s %d\r\n%s\r\n" % (stream.encode(), inbox, len(BODY), BODY)

    def is_reply(reply: bytes) -> bool:
        if b'"error"' in reply or b"-ERR" in reply:
            raise LoadError(f"not acknowledged: {reply[:200]!r}")
        return reply.count(b'"seq":') == batch and reply.endswith(b"\r\n")

    return peer, request * batch, is_reply


class NatsReader:
    """A member of the queue group of a push consumer."""

    def __init__(self, address: Address, stream: str, channel: str) -> None:
        self.channel = channel
        self._address = address
        self._stream = stream
        self._received = b""
        self._acked: list[list[bytes]] = []

    def open(self) -> socket.socket:
        self.socket = _dial(self._address)
        return self.socket

    def begin(self) -> None:
        subject = _deliver_subject(self._stream, self.channel)
        self.socket.sendall(f"SUB {subject} {self.channel} 1\r\n".encode())

    def receive(self) -> int:
        received = self.socket.recv(RECEIVE_BYTES)
        if not received:
            raise LoadError("the server closed the connection")
        self._received += received
        subjects, end = [], 0
        for delivered in DELIVERED.finditer(self._received):
            subjects.append(delivered[1])
            end = delivered.end()
        if subjects:
            self.socket.sendall(b"PUB " + b" 0\r\n\r\nPUB ".join(subjects) + b" 0\r\n\r\n")
            self._acked.append(subjects)
            self._received = self._received[end:]
        return len(subjects)

    def close(self) -> None:
        self.socket.sendall(PING)
        while not self._received.endswith(PONG):
            self._received += read_some(self.socket)

    def ids(self) -> Iterator[bytes]:
        """The numbers of the messages in the stream."""
        for subjects in self._acked:
            for subject in subjects:
                # $JS.ACK.<stream>.<consumer>.<deliveries>.<number in the stream>. ...
                yield subject.split(b".")[5]


class JetStream:
    """A running cluster."""

    def __init__(self, addresses: dict[str, Address], pids: dict[str, int]) -> None:
        self.pids = pids
        self._addresses = addresses

    @property
    def _any(self) -> Address:
        return self._addresses[SERVERS[0]]

    def create(self, stream: str, channel: str) -> tuple[str, Address]:
        """Create a stream and a consumer on the same leader; returns its name and its address."""
        info = self.request(
            f"STREAM.CREATE.{stream}",
            name=stream,
            subjects=[stream],
            storage="file",
            num_replicas=len(SERVERS),
        )
        leader = info["cluster"]["leader"]
        for _ in range(LEADER_ATTEMPTS):
            consumer = self.request(
                f"CONSUMER.DURABLE.CREATE.{stream}.{channel}",
                stream_name=stream,
                config={
                    "durable_name": channel,
                    "deliver_subject": _deliver_subject(stream, channel),
                    "deliver_group": channel,
                    "ack_policy": "explicit",
                    "max_ack_pending": UNACKED_MAX,
                },
            )
            if consumer["cluster"]["leader"] == leader:
                return leader, self._addresses[leader]
            self.request(f"CONSUMER.DELETE.{stream}.{channel}")
        raise LoadError("the consumer never has the same leader as its stream")

    def delete(self, stream: str) -> None:
        self.request(f"STREAM.DELETE.{stream}")

    def is_ready(self) -> bool:
        """Whether all servers are connected, and one of them leads."""
        try:
            self.request("STREAM.CREATE.ready", name="ready", num_replicas=len(SERVERS))
            self.request("STREAM.DELETE.ready")
        except (OSError, LoadError):
            return False
        return True

    def request(self, api: str, /, **body: object) -> Any:
        """The answer to a request of the JetStream API. Raises LoadError."""
        with _dial(self._any) as peer:
            peer.settimeout(5)
            content, inbox = json.dumps(body).encode() if body else b"", _inbox(peer)
            subject = f"$JS.API.{api}".encode()
            peer.sendall(b"SUB %s 1\r\nPUB %s %s " % (inbox, subject, inbox))
            peer.sendall(b"%d\r\n%s\r\n" % (len(content), content))
            received = b""
            while not (answer := re.search(rb"MSG %s 1 \d+\r\n(\{.*\})\r\n" % inbox, received)):
                received += read_some(peer)
        found = json.loads(answer[1])
        if "error" in found:
            raise LoadError(f"{api}: {found['error']}")
        return found


@contextmanager
def run_jetstream() -> Iterator[JetStream]:
    """Run three servers, with the default interval of fsync: two minutes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jetstream-")))
        clients = {name: stack.enter_context(reserved_address()) for name in SERVERS}
        peers = {name: stack.enter_context(reserved_address()) for name in SERVERS}
        routes = ", ".join(f'"nats://{peer}"' for peer in peers.values())
        pids = {}
        for name in SERVERS:
            config = folder / f"{name}.conf"
            config.write_text(
                CONFIG.format(
                    name=name,
                    client=clients[name],
                    peer=peers[name],
                    folder=folder / name,
                    routes=routes,
                )
            )
            process = subprocess.Popen(
                ["nats-server", "--config", str(config), "--log", str(folder / f"{name}.log")],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(_stop, process)
            pids[name] = process.pid
        cluster = JetStream({name: _address(text) for name, text in clients.items()}, pids)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not cluster.is_ready():
            if time.monotonic() > deadline:
                raise LoadError(f"JetStream does not answer after {START_SECONDS_MAX:.0f} s")
            time.sleep(0.2)
        yield cluster


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _dial(address: Address) -> socket.socket:
    peer = connect(address)
    peer.sendall(CONNECT + PING)
    read_until(peer, PONG)
    return peer


def _inbox(peer: socket.socket) -> bytes:
    return b"_INBOX.%d" % peer.getsockname()[1]


def _deliver_subject(stream: str, channel: str) -> str:
    return f"deliver.{stream}.{channel}"


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)
