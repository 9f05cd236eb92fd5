"""Snappy and deflate on TCP connections, with and without TLS."""

import random
import ssl
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.net.tls.certificates import Authority
from tests.nsqd.refusal_counts import refusal_counts

from penstock.net.tls import client_context
from penstock.protocol import commands
from penstock.protocol.compression import STREAM_IDENTIFIER, Deflate, Snappy
from penstock.protocol.frames import OK, MessageFrame, ResponseFrame
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError
from penstock.testing.waiting import wait_until

MESSAGES = 10_000

# The connections by their negotiated features.
UPGRADES: dict[str, Any] = {
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "TLS": {"tls_v1": True},
    "TLS and snappy": {"tls_v1": True, "snappy": True},
    "TLS and deflate": {"tls_v1": True, "deflate": True},
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def nsqd(authority: Authority) -> Iterator[NsqdProcess]:
    server = authority.issue("server")
    flags = [f"--tls-cert={server.cert}", f"--tls-key={server.key}", "--https-address="]
    with run_nsqd(*flags, "--snappy", "--deflate") as process:
        yield process


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return client_context(root_ca=authority.root_ca)


@pytest.fixture(params=list(UPGRADES))
def features(request: pytest.FixtureRequest) -> Any:
    return UPGRADES[request.param]


def upgraded(
    nsqd: NsqdProcess, context: ssl.SSLContext, *, tls_v1: bool = False, **features: object
) -> RawClient:
    client = nsqd.connect()
    answer = client.upgrade(tls=context if tls_v1 else None, **features)

    asked = {"tls_v1": tls_v1, "snappy": "snappy" in features, "deflate": "deflate" in features}
    assert asked == {name: answer[name] for name in asked}
    return client


def test_small_and_large_messages_arrive_unchanged(
    nsqd: NsqdProcess, context: ssl.SSLContext, features: dict[str, Any], topic: str
) -> None:
    noise = random.Random(5).randbytes(1_000_000)
    bodies = [b"x", b"x" * 1_000_000, noise, b"y" * 70_000, noise[:100], noise[:65_536]]
    client = upgraded(nsqd, context, **features)
    for body in bodies:
        assert b"OK" == client.call(commands.pub(topic, body))
    assert b"OK" == client.call(commands.mpub(topic, bodies))
    client.subscribe(topic, "c", rdy=100)

    assert bodies * 2 == [message.body for message in client.messages(len(bodies) * 2)]


def test_a_consumer_gets_everything_and_finishes_it(
    nsqd: NsqdProcess, context: ssl.SSLContext, features: dict[str, Any], topic: str
) -> None:
    producer, consumer = (upgraded(nsqd, context, **features) for _ in range(2))
    consumer.subscribe(topic, "c", rdy=2500)
    bodies = [b"message %d" % number for number in range(MESSAGES)]
    for start in range(0, MESSAGES, 1000):
        producer.call(commands.mpub(topic, bodies[start : start + 1000]))

    received: list[bytes] = []
    while len(received) < MESSAGES:
        some = [consumer.message(), *consumer.received_frames()]
        messages = [frame for frame in some if isinstance(frame, MessageFrame)]
        received += [message.body for message in messages]
        consumer.send(commands.fins([message.id for message in messages]))
    assert bodies == received
    consumer.call(commands.cls())
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0)


def test_heartbeats_are_sent_and_answered(nsqd: NsqdProcess, context: ssl.SSLContext) -> None:
    clients = [
        upgraded(nsqd, context, **features, heartbeat_interval=1000)
        for features in UPGRADES.values()
    ]
    for _ in range(3):  # a client that has not answered the first gets no third one
        for client in clients:
            assert ResponseFrame(b"_heartbeat_") == client.next_frame()
            client.send(commands.nop())


def test_commands_sent_before_the_response_are_read(nsqd: NsqdProcess, topic: str) -> None:
    """A client that knows the response need not wait for it."""
    layer, client = Deflate(), nsqd.connect()
    features = {"feature_negotiation": True, "deflate": True}
    client.send(commands.identify(features), layer.encode(commands.pub(topic, b"x")))

    assert b'"deflate":true' in client.response()
    client.compress(layer)
    assert [b"OK", b"OK"] == [client.response(), client.response()]


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
def test_commands_before_an_uncompressed_cls_are_executed(
    nsqd: NsqdProcess, topic: str, kind: str
) -> None:
    """On a busy machine, nsqjs sends an uncompressed CLS together with its last FIN."""
    nsqd.publish(topic, b"x")
    client = nsqd.connect()
    client.upgrade(snappy=kind == "snappy", deflate=kind == "deflate")
    client.subscribe(topic, "c", rdy=1)
    client.send_beneath(client.encoded(commands.fin(client.message().id)) + commands.cls())
    client.close()

    wait_until(lambda: nsqd.shows(topic, "c", client_count=0), "it to be gone")
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, requeue_count=0)


class TestNegotiation:
    def test_only_one_compression_can_be_negotiated(self, nsqd: NsqdProcess) -> None:
        client = nsqd.connect()
        expected = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"

        with pytest.raises(WireError, match=expected):
            client.identify(snappy=True, deflate=True)
        with pytest.raises(DisconnectedError):
            client.next_frame()

    def test_a_disabled_compression_is_not_offered(self) -> None:
        with run_nsqd("--snappy=false") as nsqd:
            client = nsqd.connect()
            answer = client.upgrade(snappy=True, deflate=True)

            assert (False, True) == (answer["snappy"], answer["deflate"])
            assert b"OK" == client.call(commands.pub("t", b"x"))
            assert nsqd.connect().identify(snappy=True)["snappy"] is False

    @pytest.mark.parametrize(("asked", "level"), [(0, 6), (1, 1), (6, 6), (9, 6)])
    def test_the_requested_deflate_level_is_limited(
        self, nsqd: NsqdProcess, asked: int, level: int
    ) -> None:
        answer = nsqd.connect().identify(deflate=True, deflate_level=asked)

        assert (level, 6) == (answer["deflate_level"], answer["max_deflate_level"])


class TestBytes:
    """The bytes on the wire, read by other implementations."""

    def test_deflate_is_raw_and_flushed(self, nsqd: NsqdProcess) -> None:
        client = nsqd.connect()
        client.identify(deflate=True)
        plain, text = zlib.decompressobj(-zlib.MAX_WBITS), b""
        while len(text) < len(OK):
            text += plain.decompress(client.read(1))

        assert OK == text

    def test_snappy_begins_with_its_identifier_and_leaves_small_chunks_alone(
        self, nsqd: NsqdProcess
    ) -> None:
        client = nsqd.connect()
        client.identify(snappy=True)
        expected = STREAM_IDENTIFIER + b"\x01\x0e\x00\x00"

        assert expected == client.read(len(expected))
        assert OK == client.read(4 + len(OK))[4:]


@pytest.mark.parametrize(
    ("name", "garbage"),
    [
        ("deflate", b"\xff" * 100),
        ("deflate", zlib.compress(b"NOP\n")),
        ("snappy", b"NOP\n" * 10),
        ("snappy", Snappy().encode(b"NOP\n" * 100)[:-1] + b"!"),
        ("snappy", STREAM_IDENTIFIER + b"\x00\x00\xff\xff"),
    ],
    ids=["not deflate", "zlib's header", "not snappy", "wrong checksum", "huge chunk"],
)
def test_invalid_compressed_data_closes_the_connection(
    nsqd: NsqdProcess, name: str, garbage: bytes
) -> None:
    before = refusal_counts(nsqd)["corrupt_stream"]
    client = nsqd.connect()
    client.upgrade(snappy=name == "snappy", deflate=name == "deflate")
    client.send_beneath(garbage)

    with pytest.raises((DisconnectedError, ConnectionResetError)):
        client.next_frame()
    assert before + 1 == refusal_counts(nsqd)["corrupt_stream"]
