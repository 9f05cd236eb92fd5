import socket
from collections.abc import Callable

import pytest
from bench.load import BODY, Endpoint, LoadError
from bench.redis import Redis, RedisReader

Serve = Callable[[Callable[[socket.socket], None]], tuple[str, int]]


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


def batch(*ids: bytes) -> bytes:
    """A response to XREADGROUP."""
    entries = b"".join(b"*2\r\n" + bulk(one) + command(b"d", BODY) for one in ids)
    return b"*1\r\n*2\r\n" + bulk(b"stream") + b"*%d\r\n" % len(ids) + entries


def expect(peer: socket.socket, expected: bytes) -> None:
    assert expected == peer.recv(len(expected), socket.MSG_WAITALL)


def test_a_reader_acknowledges_batches_however_they_are_split(serve: Serve) -> None:
    def redis(peer: socket.socket) -> None:
        name = b"reader-%d" % peer.getpeername()[1]
        group = (b"GROUP", b"group", name, b"COUNT", b"200", b"BLOCK", b"100")
        read = command(b"XREADGROUP", *group, b"STREAMS", b"stream", b">")
        expect(peer, read)
        first = batch(b"17-0", b"17-1")
        for byte in first:
            peer.sendall(bytes([byte]))
        expect(peer, command(b"XACK", b"stream", b"group", b"17-0", b"17-1") + read)
        peer.sendall(b":2\r\n*-1\r\n")
        expect(peer, read)
        peer.sendall(batch(b"18-10"))
        expect(peer, command(b"XACK", b"stream", b"group", b"18-10") + read)
        peer.sendall(b":1\r\n")

    reader = RedisReader(serve(redis), "stream", "group")
    with reader.open():
        reader.begin()
        received = 0
        while received < 3:
            received += reader.receive()
        reader.close()

    assert [bulk(b"17-0"), bulk(b"17-1"), bulk(b"18-10")] == list(reader.ids())


def test_a_reader_reports_an_error_of_redis(serve: Serve) -> None:
    def redis(peer: socket.socket) -> None:
        expect(peer, b"*11\r\n")
        peer.sendall(b"-NOGROUP No such key\r\n")

    reader = RedisReader(serve(redis), "stream", "group")
    with reader.open():
        reader.begin()
        with pytest.raises(LoadError, match="NOGROUP"):
            reader.receive()


@pytest.mark.parametrize("size", [1, 3])
def test_a_publisher_waits_for_the_ids_of_a_whole_batch(serve: Serve, size: int) -> None:
    request = command(b"XADD", b"stream", b"*", b"d", BODY) * size

    def redis(peer: socket.socket) -> None:
        for _ in range(2):
            expect(peer, request)
            peer.sendall(bulk(b"1700000000000-0") * (size - 1))
            peer.sendall(bulk(b"1700000000000-1")[:8])
            peer.sendall(bulk(b"1700000000000-1")[8:])

    tcp = serve(redis)
    publisher = Redis().publisher(
        Endpoint(tcp, tcp), "stream", connections=1, requests=2, batch=size
    )
    publisher.prepare()
    with publisher.sockets[0]:
        assert publisher.run().messages == 2 * size


def test_a_publisher_distinguishes_an_error_from_an_id(serve: Serve) -> None:
    def redis(peer: socket.socket) -> None:
        expect(peer, b"*5\r\n")
        peer.sendall(b"-MISCONF cannot write\r\n")

    tcp = serve(redis)
    publisher = Redis().publisher(Endpoint(tcp, tcp), "stream", connections=1, requests=1, batch=1)
    publisher.prepare()
    with publisher.sockets[0], pytest.raises(LoadError, match="MISCONF"):
        publisher.run()
