"""The raw client, against a socket that says what it is told to."""

import socket
from collections.abc import Iterator

import pytest

from penstock.common.errors import ProtocolError
from penstock.protocol import commands, frames
from penstock.protocol.frames import MessageFrame, ResponseFrame
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError


class Server:
    """The other end."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def connect(self, **options: object) -> tuple[RawClient, socket.socket]:
        host, port = self._listening.getsockname()
        client = RawClient(f"{host}:{port}", timeout_seconds=60, **options)  # type: ignore[arg-type]
        accepted, _ = self._listening.accept()
        accepted.settimeout(60)
        return client, accepted


@pytest.fixture
def server() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Server(listening)


def test_opening_is_the_magic_unless_told_otherwise(server: Server) -> None:
    for options, expected in (({}, b"  V2"), ({"opening": b"  V1"}, b"  V1")):
        client, peer = server.connect(**options)
        with client, peer:
            assert expected == peer.recv(100)


def test_frames_are_given_as_what_they_are(server: Server) -> None:
    client, peer = server.connect()
    (message,) = frames.render_messages([b"body"], first_id=0x1F, timestamp_ns=7)
    with client, peer:
        peer.sendall(frames.OK + message + frames.error(ProtocolError("E_BAD", "very bad")))

        assert b"OK" == client.response()
        assert MessageFrame(7, 1, b"000000000000001f", b"body") == client.message()
        with pytest.raises(WireError, match=r"^E_BAD very bad$"):
            client.response()


def test_heartbeats_are_answered_on_the_way_to_something_else(server: Server) -> None:
    client, peer = server.connect()
    with client, peer:
        peer.sendall(frames.HEARTBEAT + frames.OK + frames.HEARTBEAT)

        assert b"OK" == client.response()
        assert commands.MAGIC + commands.nop() == peer.recv(100)
        assert ResponseFrame(b"_heartbeat_") == client.next_frame()


def test_end_and_silence_are_told_apart(server: Server) -> None:
    client, peer = server.connect()
    with client, peer:
        assert client.is_silent(seconds=0.01)
        with pytest.raises(TimeoutError):
            client.next_frame(seconds=0.01)

        peer.shutdown(socket.SHUT_WR)

        assert not client.is_silent(seconds=1)
        with pytest.raises(DisconnectedError):
            client.next_frame()


def test_bytes_can_be_read_as_they_are_between_frames(server: Server) -> None:
    client, peer = server.connect()
    with client, peer:
        peer.sendall(frames.OK * 2 + frames.CLOSE_WAIT + b"\0\0")
        peer.shutdown(socket.SHUT_WR)

        assert b"OK" == client.response()
        assert frames.OK == client.read(len(frames.OK))
        assert b"CLOSE_WAIT" == client.response()
        assert b"\0\0" == client.read_to_end()


def test_sending_to_a_full_connection_takes_only_what_fits(server: Server) -> None:
    client, peer = server.connect()
    with client, peer:
        sent = 0
        while (taken := client.send_some(b"x" * 1_000_000, seconds=0.05)) > 0:
            sent += taken

        assert sent > 0
