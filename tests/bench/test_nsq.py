import socket
from collections.abc import Callable

import pytest
from bench.load import BODY, Endpoint, LoadError
from bench.nsq import (
    CLOSE_WAIT,
    OK,
    Nsq,
    NsqReader,
    fin_commands,
    frame_count,
    http_publisher,
)

Serve = Callable[[Callable[[socket.socket], None]], tuple[str, int]]


def message_id(number: int) -> bytes:
    return b"%016x" % number


def frame(number: int) -> bytes:
    size = 4 + 8 + 2 + 16 + len(BODY)
    return size.to_bytes(4) + (2).to_bytes(4) + bytes(8) + b"\0\1" + message_id(number) + BODY


def fins(*numbers: int) -> bytes:
    return b"".join(b"FIN %s\n" % message_id(number) for number in numbers)


def expect(peer: socket.socket, expected: bytes) -> None:
    assert expected == peer.recv(len(expected), socket.MSG_WAITALL)


def test_fins_carry_the_ids_of_the_frames() -> None:
    frames = b"".join(map(frame, range(300)))

    assert fins(*range(300)) == fin_commands(frames, 300)


def test_only_complete_frames_count() -> None:
    assert frame_count(frame(1) * 3 + frame(2)[:-1]) == 3
    assert frame_count(frame(1)[:-1]) == 0
    assert frame_count(frame(1)[:5]) == 0
    assert frame_count(b"") == 0


@pytest.mark.parametrize("start", [OK, b"\0\0\0\x0f\0\0\0\1E_INVALID", b"\0\0\1"])
def test_any_other_frame_is_refused(start: bytes) -> None:
    with pytest.raises(LoadError, match="not a message of 200 bytes"):
        frame_count(start)


class TestReader:
    def test_it_finishes_frames_however_they_are_split(self, serve: Serve) -> None:
        """Reads two and a half frames, then the rest and one more, then EOF."""
        stream = b"".join(map(frame, range(4)))
        cut = len(stream) * 5 // 8

        def nsqd(peer: socket.socket) -> None:
            expect(peer, b"  V2SUB topic channel\n")
            peer.sendall(OK)
            expect(peer, b"RDY 2500\n")
            peer.sendall(stream[:cut])
            expect(peer, fins(0, 1))
            peer.sendall(stream[cut:])
            expect(peer, fins(2, 3) + b"CLS\n")
            peer.sendall(CLOSE_WAIT)

        reader = NsqReader(serve(nsqd), "topic", "channel", identify=None)
        with reader.open():
            reader.begin()
            received = 0
            while received < 4:
                received += reader.receive()
            reader.close()

        assert list(map(message_id, range(4))) == list(reader.ids())

    def test_it_reports_that_the_server_has_disconnected(self, serve: Serve) -> None:
        def nsqd(peer: socket.socket) -> None:
            expect(peer, b"  V2SUB topic channel\n")
            peer.sendall(OK)

        reader = NsqReader(serve(nsqd), "topic", "channel", identify=None)
        with reader.open(), pytest.raises(LoadError, match="closed the connection"):
            reader.receive()


@pytest.mark.parametrize("batch", [1, 2])
def test_a_publisher_waits_for_each_ok(serve: Serve, batch: int) -> None:
    one = b"\0\0\0\xc8" + BODY
    request = {1: b"PUB topic\n" + one, 2: b"MPUB topic\n\0\0\1\x9c\0\0\0\2" + one * 2}

    def nsqd(peer: socket.socket) -> None:
        expect(peer, b'  V2IDENTIFY\n\0\0\0\x1d{"heartbeat_interval": 60000}')
        peer.sendall(OK)
        for _ in range(3):
            expect(peer, request[batch])
            peer.sendall(OK[:6])
            peer.sendall(OK[6:])

    tcp = serve(nsqd)
    publisher = Nsq().publisher(Endpoint(tcp, tcp), "topic", connections=1, requests=3, batch=batch)
    publisher.prepare()
    with publisher.sockets[0]:
        assert publisher.run().messages == 3 * batch


def test_a_publisher_distinguishes_an_error_from_an_ok(serve: Serve) -> None:
    def nsqd(peer: socket.socket) -> None:
        expect(peer, b'  V2IDENTIFY\n\0\0\0\x1d{"heartbeat_interval": 60000}')
        peer.sendall(OK)
        expect(peer, b"PUB topic\n")
        peer.sendall(b"\0\0\0\x10\0\0\0\1E_PUB_FAILED")

    tcp = serve(nsqd)
    publisher = Nsq().publisher(Endpoint(tcp, tcp), "topic", connections=1, requests=1, batch=1)
    publisher.prepare()
    with publisher.sockets[0], pytest.raises(LoadError, match="E_PUB_FAILED"):
        publisher.run()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK", None),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "not a 200"),
    ],
)
def test_http_publishes_need_a_200(serve: Serve, answer: bytes, error: str | None) -> None:
    def nsqd(peer: socket.socket) -> None:
        host, port = peer.getsockname()
        head = f"POST /pub?topic=topic HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 200"
        expect(peer, head.encode() + b"\r\n\r\n" + BODY)
        peer.sendall(answer)

    http = serve(nsqd)
    publisher = http_publisher(Endpoint(http, http), "topic", connections=1, requests=1)
    publisher.prepare()
    with publisher.sockets[0]:
        if error is None:
            assert publisher.run().messages == 1
        else:
            with pytest.raises(LoadError, match=error):
                publisher.run()
