"""Peers that mean no good, each against the running program, while another one is served.

`python -m bench.hostile` measures how long the other one waits, and how much memory nsqd takes.
`tests/nsqd/test_turns.py` tests that connections take turns.
"""

import itertools
import random
import select
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct

import pytest
from tests.net.tls.certificates import Authority
from tests.nsqd.off_disk import run_nsqd_off_disk
from tests.nsqd.refusal_counts import refusal_counts

from penstock.net.tls import client_context
from penstock.protocol import commands
from penstock.protocol.compression import STREAM_IDENTIFIER, Snappy
from penstock.protocol.frames import ErrorFrame, ResponseFrame
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient, WireError
from penstock.testing.waiting import wait_until

MIB = 1024 * 1024
GIB = 1024 * MIB

_INT32 = Struct(">i")


@contextmanager
def bystander(nsqd: NsqdProcess) -> Iterator[None]:
    """A client in a thread publishes one message after the other during the block, and one after
    it. Fails unless all are answered with OK.
    """
    client = nsqd.connect()
    is_over = threading.Event()

    def publish() -> list[bytes]:
        answers = []
        while not is_over.wait(0.001):
            answers.append(client.call(commands.pub("bystander", b"x")))
        return [*answers, client.call(commands.pub("bystander", b"x"))]

    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(publish)
        try:
            yield
        finally:
            is_over.set()
    assert {b"OK"} == set(publishing.result())
    assert b"OK" == nsqd.http("GET", "/ping").body


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def nsqd(authority: Authority) -> Iterator[NsqdProcess]:
    server = authority.issue("server")
    flags = [f"--tls-cert={server.cert}", f"--tls-key={server.key}", "--https-address="]
    with run_nsqd_off_disk(*flags) as process:
        process.publish("bystander", b"x")
        yield process


@pytest.fixture(scope="module")
def hasty() -> Iterator[NsqdProcess]:
    """An nsqd with short timeouts."""
    with run_nsqd_off_disk("--greeting-timeout=3s", "--command-timeout=2s") as process:
        yield process


def flood(client: RawClient, data: bytes, *, seconds: float, bytes_max: int = GIB) -> int:
    """Send this repeatedly for some seconds, or until the connection is closed. Returns the number
    of bytes.
    """
    deadline, sent, view = time.monotonic() + seconds, 0, memoryview(data)
    with suppress(ConnectionError):
        while time.monotonic() < deadline and sent < bytes_max:
            sent += client.send_some(view[sent % len(data) :], seconds=0.1)
    return sent


def is_closed(client: RawClient) -> bool:
    """Whether nsqd closes the connection, after any output."""
    with suppress(ConnectionResetError):
        client.read_to_end()
    return True


class TestSilence:
    def test_thousands_of_silent_connections_are_closed(self, hasty: NsqdProcess) -> None:
        before = refusal_counts(hasty)["timeout"]
        host, port = hasty.tcp_address.split(":")
        with bystander(hasty):
            silent = [socket.create_connection((host, int(port))) for _ in range(2000)]
            wait_until(lambda: refusal_counts(hasty)["timeout"] >= before + 2000, "the last to go")
        for peer in silent:
            assert b"" == peer.recv(1)
            peer.close()

    @pytest.mark.parametrize(
        "begun",
        [b" ", b"  V", b"  V2NOP", commands.MAGIC + commands.pub("t", b"x" * 100)],
        ids=["magic", "most of the magic", "a line", "a body"],
    )
    def test_single_bytes_do_not_extend_the_time_limit_of_a_command(
        self, hasty: NsqdProcess, begun: bytes
    ) -> None:
        """An incomplete command has a time limit."""
        client = hasty.connect(opening=b"")
        started = time.monotonic()
        with suppress(ConnectionError), bystander(hasty):
            for byte in itertools.cycle(begun):
                client.send(bytes([byte]) if byte != ord("\n") else b".")
                assert time.monotonic() - started < 60, "nsqd does not close the connection"
                if select.select([client], [], [], 0.05)[0]:
                    break

        assert is_closed(client)

    def test_a_client_without_heartbeats_may_be_silent_between_commands(
        self, hasty: NsqdProcess
    ) -> None:
        client = hasty.connect()
        client.identify(heartbeat_interval=-1)

        assert client.is_silent(seconds=3.5)
        assert b"OK" == client.call(commands.pub("t", b"x"))

    def test_connections_have_tcp_keepalive(self, nsqd: NsqdProcess) -> None:
        """The kernel sends keep-alive probes on connections without traffic."""
        client = nsqd.connect()
        client.identify(heartbeat_interval=-1)

        assert "02" == timer_of(nsqd, client)

    def test_a_half_closed_connection_is_closed(self, nsqd: NsqdProcess) -> None:
        client = nsqd.connect()
        client.send(commands.pub("t", b"x"))
        client.end_sending()

        assert ResponseFrame(b"OK") == client.next_frame()
        assert b"" == client.read_to_end()


def timer_of(nsqd: NsqdProcess, client: RawClient) -> str:
    """Kind of the kernel's timer for nsqd's end of a connection: 02 is keep-alive."""
    local, remote = (
        f"0100007F:{int(address.rpartition(':')[2]):04X}"
        for address in (nsqd.tcp_address, client.local_address)
    )
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if fields[1:3] == [local, remote]:
            return fields[5].partition(":")[0]
    raise AssertionError("no such connection")


class TestTooMuch:
    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            (b"PUB t\n", "E_BAD_MESSAGE PUB message too big 1073741824 > 1048576"),
            (b"DPUB t 1\n", "E_BAD_MESSAGE DPUB message too big 1073741824 > 1048576"),
            (b"MPUB t\n", "E_BAD_BODY MPUB body too big 1073741824 > 5242880"),
            (b"IDENTIFY\n", "E_BAD_BODY IDENTIFY body too big 1073741824 > 5242880"),
            (b"AUTH\n", "E_BAD_BODY AUTH body too big 1073741824 > 5242880"),
        ],
    )
    def test_an_announced_size_of_a_gigabyte_is_refused_at_once(
        self, nsqd: NsqdProcess, command: bytes, expected: str
    ) -> None:
        client = nsqd.connect()
        with bystander(nsqd):
            client.send(command, _INT32.pack(GIB))
            flood(client, b"x" * MIB, seconds=0.3)
            code, _, detail = expected.partition(" ")

            assert ErrorFrame(code, detail) == client.next_frame()
            assert is_closed(client)

    @pytest.mark.parametrize("upgrade", ["none", "snappy", "deflate", "TLS"])
    def test_an_endless_line_closes_the_connection(
        self, nsqd: NsqdProcess, authority: Authority, upgrade: str
    ) -> None:
        before = refusal_counts(nsqd)["line_too_long"]
        client = nsqd.connect()
        tls = client_context(root_ca=authority.root_ca) if upgrade == "TLS" else None
        client.upgrade(tls=tls, snappy=upgrade == "snappy", deflate=upgrade == "deflate")
        with bystander(nsqd), suppress(ConnectionError):
            for _ in range(1000):
                client.send(b"x" * 65_536)

        assert is_closed(client)
        assert before + 1 == refusal_counts(nsqd)["line_too_long"]

    def test_endless_commands_do_not_block_others(self, nsqd: NsqdProcess) -> None:
        client = nsqd.connect()
        with bystander(nsqd):
            sent = flood(client, commands.nop() * 65_536, seconds=60, bytes_max=2 * MIB)
            assert b"OK" == finish(client, commands.nop(), sent)

        assert sent >= 2 * MIB

    def test_endless_new_topics_do_not_block_others(self) -> None:
        publishes = [commands.pub(f"topic-{number}", b"x") for number in range(200)]
        with run_nsqd_off_disk("--max-topics=100") as nsqd:
            client = nsqd.connect()
            with bystander(nsqd):
                client.send(b"".join(publishes))
                answers = [client.next_frame(seconds=60) for _ in range(100)]
            limit = "PUB failed too many topics, the limit is 100"

            assert [ResponseFrame(b"OK")] * 99 == answers[:99]  # one belongs to the bystander
            assert ErrorFrame("E_PUB_FAILED", limit) == answers[99]
            assert 1 == refusal_counts(nsqd)["e_pub_failed"]


def finish(client: RawClient, command: bytes, sent: int) -> bytes:
    """Send the rest of a command that a flood has interrupted, and expect a response."""
    rest = -sent % len(command)
    client.send(command[len(command) - rest :], commands.pub("bystander", b"x"))
    return client.response(seconds=60)


def deflated(text: bytes, count: int) -> bytes:
    """A part of a deflate stream: `text` repeated `count` times, with a full flush."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return (compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)) * count


class TestBombs:
    """A few bytes that decompress to very many."""

    def test_a_gigabyte_of_compressed_zeros_is_refused(self, nsqd: NsqdProcess) -> None:
        bomb = deflated(bytes(MIB), 1024)
        client = nsqd.connect()
        client.upgrade(deflate=True)
        with bystander(nsqd), suppress(ConnectionError):
            client.send_beneath(bomb)

        assert len(bomb) < 2 * MIB
        assert is_closed(client)

    @pytest.mark.parametrize("kind", ["deflate", "snappy"])
    def test_endless_compressed_nops_do_not_block_others(
        self, nsqd: NsqdProcess, kind: str
    ) -> None:
        nops = commands.nop() * (MIB // 4)
        client = nsqd.connect()
        client.upgrade(snappy=kind == "snappy", deflate=kind == "deflate", heartbeat_interval=1000)
        bomb = deflated(nops, 100) if kind == "deflate" else Snappy().encode(nops * 20)
        left = nsqd.log.count("exiting ioloop")
        try:
            with bystander(nsqd):
                assert flood(client, bomb, seconds=1.0) > 50_000
        finally:
            client.reset()

        # This is work for minutes. nsqd notices the disconnect when it cannot send a heartbeat.
        wait_until(lambda: nsqd.log.count("exiting ioloop") > left, "nsqd to notice")

    @pytest.mark.parametrize("kind", ["deflate", "snappy"])
    def test_endless_compressed_publishes_use_bounded_memory(
        self, nsqd: NsqdProcess, kind: str
    ) -> None:
        publish = commands.pub("bomb", bytes(MIB))
        client = nsqd.connect()
        client.upgrade(snappy=kind == "snappy", deflate=kind == "deflate")
        client.send(commands.pub("bomb", b"x"))
        bomb = deflated(publish, 50) if kind == "deflate" else Snappy().encode(publish * 50)
        with bystander(nsqd):
            client.send_beneath(bomb)
            assert [b"OK"] * 51 == [client.response() for _ in range(51)]

    @pytest.mark.parametrize(
        "nothing",
        [b"\x80\x00\x00\x00", STREAM_IDENTIFIER, b"\x00\x05\x00\x00\xd8\xea\x82\xa2\x00"],
        ids=["padding", "identifiers", "chunks of nothing"],
    )
    def test_endless_empty_chunks_close_the_connection(
        self, nsqd: NsqdProcess, nothing: bytes
    ) -> None:
        before = refusal_counts(nsqd)["corrupt_stream"]
        client = nsqd.connect()
        client.upgrade(snappy=True)
        client.send_beneath(STREAM_IDENTIFIER)
        with bystander(nsqd):
            flood(client, nothing * 30_000, seconds=60)

        assert is_closed(client)
        assert before + 1 == refusal_counts(nsqd)["corrupt_stream"]


@pytest.mark.parametrize("upgrade", ["TLS", "deflate"])
def test_a_consumer_that_never_reads_gets_bounded_messages_and_is_closed(
    nsqd: NsqdProcess, authority: Authority, topic: str, upgrade: str
) -> None:
    """Its messages in flight are bounded; then nsqd closes the connection. The tests of flow
    control do the same without compression.
    """
    noise = random.Random(3).randbytes(40_000)
    producer = nsqd.connect()
    for _ in range(100):  # few at a time, because their own memory would count
        producer.call(commands.mpub(topic, [noise] * 10))
    stubborn = nsqd.connect(receive_buffer_bytes=8 * 1024)
    tls = client_context(root_ca=authority.root_ca) if upgrade == "TLS" else None
    stubborn.upgrade(tls=tls, deflate=upgrade == "deflate", heartbeat_interval=1000)
    with bystander(nsqd):
        stubborn.subscribe(topic, "c", rdy=2500)
        wait_until(lambda: nsqd.stats(topic, "c")["in_flight_count"], "something to be sent")
        assert nsqd.stats(topic, "c")["in_flight_count"] < 1000
        wait_until(lambda: nsqd.shows(topic, "c", client_count=0, depth=1000), "it to be gone")


class TestLimits:
    @pytest.mark.parametrize(
        ("flag", "text"),
        [
            ("--max-connections=5", "too many connections, the limit is 5"),
            (
                "--max-connections-per-address=5",
                "too many connections from 127.0.0.1, the limit is 5",
            ),
        ],
    )
    def test_connections_over_the_limit_get_an_error(self, flag: str, text: str) -> None:
        with run_nsqd(flag) as nsqd:
            admitted = [nsqd.connect() for _ in range(5)]
            for client in admitted:
                client.identify()

            refused = nsqd.connect()
            assert ErrorFrame("E_TOO_MANY_CONNECTIONS", text) == refused.next_frame()
            assert b"" == refused.read_to_end()
            answer = nsqd.http("GET", "/ping")
            assert (503, f"503 Service Unavailable: {text}") == (
                answer.status,
                answer.body.decode(),
            )
            assert [b"OK"] * 5 == [client.call(commands.pub("t", b"x")) for client in admitted]

            admitted.pop().close()
            wait_until(lambda: nsqd.http("GET", "/ping").status == 200, "the one to be gone")
            counts = refusal_counts(nsqd)
            assert 1 == counts["e_too_many_connections"]
            assert 1 <= counts["503"]

    def test_refused_connections_do_not_count_for_the_limit(self) -> None:
        """Otherwise they could keep all other clients out."""
        with run_nsqd("--max-connections=3") as nsqd:
            first = nsqd.connect()
            others = [nsqd.connect() for _ in range(2)]
            for client in (first, *others):
                client.identify()
            refused = [nsqd.connect() for _ in range(20)]
            for client in refused:
                client.next_frame()
            left = nsqd.log.count("exiting ioloop")
            first.close()
            wait_until(lambda: nsqd.log.count("exiting ioloop") > left, "it to be gone")

            assert nsqd.connect().identify()

    def test_channels_over_the_limit_are_refused(self) -> None:
        with run_nsqd("--max-channels-per-topic=2") as nsqd:
            for name in ("a", "b"):
                nsqd.connect().subscribe("t", name)

            expected = "E_SUB_FAILED SUB failed too many channels of t, the limit is 2"
            with pytest.raises(WireError, match=expected):
                nsqd.connect().subscribe("t", "c")
            nsqd.connect().subscribe("t", "a")
            assert 1 == refusal_counts(nsqd)["e_sub_failed"]


def test_endless_http_requests_do_not_block_others(nsqd: NsqdProcess) -> None:
    pings = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n" * 20_000
    host, port = nsqd.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer, bystander(nsqd):
        sending = threading.Thread(target=peer.sendall, args=(pings,))
        sending.start()
        answers = bytearray()
        while answers.count(b"HTTP/1.1 200 OK\r\n") < 20_000:
            answers += peer.recv(MIB)
        sending.join()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length:\r\n 1\r\n",
    ],
    ids=["two lengths", "length and chunks", "folded"],
)
def test_http_requests_that_could_smuggle_another_are_refused(
    nsqd: NsqdProcess, head: bytes
) -> None:
    """Some examples; the tests of the HTTP server have all of them."""
    before = refusal_counts(nsqd)["400"]
    host, port = nsqd.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        peer.sendall(b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n0\r\n\r\n")
        answer = b"".join(iter(lambda: peer.recv(65_536), b""))

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert 1 == answer.count(b"HTTP/1.1")
    assert before + 1 == refusal_counts(nsqd)["400"]
