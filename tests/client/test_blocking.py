"""The blocking clients with a running nsqd; test_failover.py tests failover."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.client.stand_in import stand_in

from penstock.client import ClientConfig
from penstock.client.blocking import Consumer, Producer
from penstock.common.errors import (
    ClientClosedError,
    ConfigError,
    NotConfirmedError,
    NotConnectedError,
    RefusedError,
)
from penstock.protocol.events import Identify
from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until


def test_published_messages_are_consumed(nsqd: NsqdProcess, topic: str) -> None:
    bodies = [b"%d" % number for number in range(3000)]
    config = ClientConfig(max_batch_size=1000)  # so that many commands are in flight
    with Producer(nsqd.tcp_address, config=config) as producer:
        producer.publish(topic, bodies[0])
        producer.publish_many(topic, iter(bodies[1:]))
        producer.publish_many(topic, [])

    with Consumer(topic, "c", nsqd=nsqd.tcp_address, max_in_flight=100) as consumer:
        received = [next(consumer) for _ in range(50)]
        for message in received:
            message.finish()
        while len(received) < len(bodies):
            batch = consumer.batch(70, timeout=60)
            assert 0 < len(batch) <= 70
            for message in batch:
                message.finish()
            received += batch
        assert consumer.receive(timeout=0.05) is None

    assert bodies == [message.body for message in received]
    wait_until(lambda: nsqd.shows(topic, "c", depth=0, in_flight_count=0), "the last answers")


def test_deferring_requeueing_and_touching(nsqd: NsqdProcess, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"later", defer=2.0)
        producer.publish(topic, b"now")
    config = ClientConfig(msg_timeout=6.0, output_buffer_timeout=0.025)
    with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:
        now = next(consumer)
        deadline = time.monotonic() + 6.5  # longer than the message timeout
        later = next(consumer)
        assert (b"now", b"later") == (now.body, later.body)
        later.requeue(0.1)
        again = next(consumer)
        assert (b"later", 2) == (again.body, again.attempts)
        again.finish()
        while time.monotonic() < deadline:
            now.touch()
            assert consumer.receive(timeout=0.1) is None
        now.finish()

    wait_until(lambda: nsqd.shows(topic, "c", in_flight_count=0, timeout_count=0), "the answers")


def test_threads_may_share_a_producer(nsqd: NsqdProcess, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer, ThreadPoolExecutor(8) as threads:
        publishes = [threads.submit(producer.publish, topic, b"x") for _ in range(200)]
        for publish in publishes:
            publish.result()

    assert 200 == nsqd.stats(topic)["message_count"]


def test_an_idle_producer_has_no_heartbeats_and_stays_usable() -> None:
    with stand_in() as peer, Producer(peer.address):
        (identify,) = (event for event in peer.heard if isinstance(event, Identify))

    assert b'"heartbeat_interval":-1' in identify.body


def test_a_connection_closed_while_idle_is_reopened(topic: str) -> None:
    with (
        reserved_address() as address,
        run_nsqd(f"--tcp-address={address}") as nsqd,
        Producer(address) as producer,
    ):
        producer.publish(topic, b"x")
        nsqd.restart()
        producer.publish(topic, b"y")

        assert 2 == nsqd.stats(topic)["depth"]


def test_it_consumes_all_nsqds_and_reconnects(nsqd: NsqdProcess, topic: str) -> None:
    with reserved_address() as address, run_nsqd(f"--tcp-address={address}") as second:
        for each in (nsqd, second):
            each.publish(topic, b"x")
        addresses = [nsqd.tcp_address, address]
        with Consumer(topic, "c", nsqd=addresses) as consumer:
            held = {message.address: message for message in (next(consumer), next(consumer))}
            assert set(addresses) == set(held)
            held[nsqd.tcp_address].finish()
            consumer.flush()
            second.kill()
            held[address].finish()
            second.start()
            again = consumer.receive(timeout=60)
            assert again is not None
            assert address == again.address
            again.finish()


def test_errors_name_the_cause(nsqd: NsqdProcess, topic: str) -> None:
    with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:1: Connection refused"):
        Consumer(topic, "c", nsqd="127.0.0.1:1").start()
    with pytest.raises(ConfigError, match="topic name 'no topic' is not valid"):
        Consumer("no topic", "c", nsqd=nsqd.tcp_address)
    with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(RefusedError, match="E_INVALID DPUB timeout 7200000 out of range"):
            producer.publish(topic, b"x", defer=7200)
        with pytest.raises(ValueError, match="must not be empty"):
            producer.publish(topic, b"")
        producer.publish(topic, b"still in use")
    with pytest.raises(ClientClosedError):
        producer.publish(topic, b"x")
    consumer = Consumer(topic, "c", nsqd=nsqd.tcp_address)
    consumer.close()
    with pytest.raises(ClientClosedError):
        next(consumer)


@pytest.mark.parametrize(
    ("peer_does", "complaint"),
    [
        ({"is_silent": True}, r"no response to IDENTIFY within 2 s"),
        (
            {"raw_answer": b"HTTP/1.1 400 Bad Request\r\n\r\n"},
            "not a frame: it is HTTP, which has another port",
        ),
    ],
)
def test_a_peer_that_is_not_nsqd_raises_not_connected(
    peer_does: dict[str, Any], complaint: str
) -> None:
    with stand_in() as peer:
        vars(peer).update(peer_does)
        config = ClientConfig(response_timeout=2.0)
        with pytest.raises(NotConnectedError, match=f"{peer.address}: {complaint}"):
            Consumer("t", "c", nsqd=peer.address, config=config).start()


def test_a_publish_that_is_never_confirmed_fails() -> None:
    with stand_in() as peer:
        config = ClientConfig(publish_timeout=4.0, response_timeout=1.5)
        with Producer(peer.address, config=config) as producer:
            peer.answers_publishes = False
            with pytest.raises(NotConfirmedError, match=r"no response within 1\.5 s"):
                producer.publish("t", b"x")
