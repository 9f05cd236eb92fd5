"""Finding nsqds by a running nsqlookupd, and by one without long polling."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.client.conftest import Run
from tests.client.eventually import eventually
from tests.client.stand_in import stand_in
from tests.nsqd.auth_server import AuthServer, auth_server

from penstock.client import ClientConfig, Consumer, Producer, blocking
from penstock.client.discovery import parse_tcp_addresses
from penstock.common.errors import NotConnectedError
from penstock.net.http_client.messages import HttpReply
from penstock.protocol import lookup_v1
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.waiting import wait_until

# With the long interval, only a long poll or an urgent poll is in time.
SELDOM = ClientConfig(lookupd_poll_interval=1000.0)
OFTEN = ClientConfig(lookupd_poll_interval=0.1)


@pytest.fixture(scope="module")
def lookupd() -> Iterator[NsqlookupdProcess]:
    with run_nsqlookupd() as process:
        yield process


@contextmanager
def registered(lookupd: NsqlookupdProcess, nsqd: NsqdProcess, *topics: str) -> Iterator[None]:
    """nsqlookupd lists the nsqd for the duration of the block, as if it had registered."""
    peer = lookupd.node("127.0.0.1", tcp_port=int(nsqd.tcp_address.rpartition(":")[2]))
    for topic in topics:
        peer.call(lookup_v1.register(topic))
    yield
    peer.close()
    wait_until(lambda: not lookupd.http("GET", "/nodes").json()["producers"], "its end")


def test_a_topic_that_appears_is_found_at_once(
    lookupd: NsqlookupdProcess, nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    nsqd.publish(topic, b"x")

    async def scenario() -> None:
        addresses = [lookupd.http_address, "127.0.0.1:1"]  # an unreachable nsqlookupd is ignored
        async with Consumer(topic, "c", lookupd=addresses, config=SELDOM) as consumer:
            with registered(lookupd, nsqd, topic):
                message = await anext(consumer)
                message.finish()

    run(scenario())


def test_a_producer_uses_the_nodes_that_lookupds_know(
    lookupd: NsqlookupdProcess, nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    async def scenario() -> None:
        with pytest.raises(NotConnectedError, match="no nsqlookupd knows an nsqd"):
            await Producer(lookupd=lookupd.http_address).start()
        with registered(lookupd, nsqd):
            async with Producer(lookupd=f"http://{lookupd.http_address}/") as producer:
                await producer.publish(topic, b"x")

    run(scenario())
    with (
        registered(lookupd, nsqd),
        blocking.Producer(lookupd=lookupd.http_address) as producer,
    ):
        producer.publish(topic, b"y")
    assert 2 == nsqd.stats(topic)["message_count"]


def test_the_blocking_consumer_finds_nsqds_too(
    lookupd: NsqlookupdProcess, nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    with blocking.Consumer(topic, "c", lookupd=lookupd.http_address, config=SELDOM) as consumer:
        assert consumer.receive(timeout=0.2) is None
        with registered(lookupd, nsqd, topic):
            message = consumer.receive(timeout=60)
        assert message is not None
        assert b"x" == message.body
        message.finish()


@pytest.fixture
def old_lookupd(nsqd: NsqdProcess) -> Iterator[AuthServer]:
    """An nsqlookupd that gives all requests the same response, and has no long polling."""
    node = {"broadcast_address": "127.0.0.1", "tcp_port": int(nsqd.tcp_address.rpartition(":")[2])}
    with auth_server({"channels": [], "producers": [node]}) as server:
        yield server


def test_a_lookupd_that_does_not_wait_is_polled(
    old_lookupd: AuthServer, nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    nsqd.publish(topic, b"x")
    known, unknown = (200, old_lookupd.answer), (404, {"message": "TOPIC_NOT_FOUND"})
    old_lookupd.status, old_lookupd.answer = unknown

    async def scenario() -> None:
        async with Consumer(topic, "c", lookupd=old_lookupd.address, config=OFTEN) as consumer:
            await eventually(lambda: len(old_lookupd.asked) >= 3, "polls")
            old_lookupd.status, old_lookupd.answer = known
            (await anext(consumer)).finish()

    run(scenario())
    assert {f"/lookup?topic={topic}&wait=0s"} == {asked.target for asked in old_lookupd.asked}


def test_a_producer_without_nsqd_polls_lookupd_more_often(
    old_lookupd: AuthServer, nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    with stand_in() as peer:
        only_peer = {"broadcast_address": "127.0.0.1", "tcp_port": int(peer.address.split(":")[1])}
        only_nsqd, old_lookupd.answer = old_lookupd.answer, {"producers": [only_peer]}

        async def scenario() -> None:
            async with Producer(lookupd=old_lookupd.address, config=SELDOM) as producer:
                await producer.publish(topic, b"x")
                old_lookupd.answer = only_nsqd
                peer.close()
                await producer.publish(topic, b"y")

        run(scenario())
    assert 1 == nsqd.stats(topic)["message_count"]


def test_the_secret_is_sent_to_lookupds_unless_disabled(
    old_lookupd: AuthServer, run_once: Run
) -> None:
    async def scenario(config: ClientConfig) -> None:
        async with Producer(lookupd=old_lookupd.address, config=config):
            pass

    run_once(scenario(ClientConfig(auth_secret="secret")))
    run_once(scenario(ClientConfig(auth_secret="secret", skip_lookupd_authorization=True)))

    headers = [asked.headers.get("Authorization") for asked in old_lookupd.asked]
    assert ["Bearer secret", None] == headers


def test_a_node_that_has_registered_no_address_does_not_hide_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [("", 4150), ("a", 0), ("a", 70000), ("a\nb", 1), ("/run/x", 1), ("::1", 1), ("b", 2)]
    producers = [{"broadcast_address": host, "tcp_port": port} for host, port in nodes]

    reply = HttpReply(200, {}, json.dumps({"producers": producers}).encode())
    found = parse_tcp_addresses("http://l/lookup", reply)
    assert {"[::1]:1", "b:2"} == found
    assert 5 == len(caplog.messages)
    assert r"http://l/lookup: not an address (host:port): 'a\nb:1'" in caplog.messages


@pytest.mark.parametrize(
    ("status", "answer", "complaint"),
    [
        (500, {}, "got response 500"),
        (404, {"message": "NOT_FOUND"}, "got response 404: this is not an nsqlookupd"),
        (200, b"nonsense", "unexpected response"),
        (200, {"producers": 7}, "unexpected response"),
    ],
)
def test_an_invalid_response_of_a_lookupd_is_an_error(
    old_lookupd: AuthServer, run: Run, status: int, answer: object, complaint: str
) -> None:
    old_lookupd.status, old_lookupd.answer = status, answer

    async def scenario() -> None:
        await Consumer("t", "c", lookupd=old_lookupd.address).start()

    complaint = f"no nsqlookupd answered: http://{old_lookupd.address}/lookup.*: {complaint}"
    with pytest.raises(NotConnectedError, match=complaint):
        run(scenario())
    with pytest.raises(NotConnectedError, match=complaint):
        blocking.Consumer("t", "c", lookupd=old_lookupd.address).start()
