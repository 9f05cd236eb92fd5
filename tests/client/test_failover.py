"""Confirmed messages are not lost when nsqds fail."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.client.conftest import Run
from tests.client.eventually import eventually

from penstock.client import ClientConfig, Producer
from penstock.client.blocking import Consumer as BlockingConsumer
from penstock.client.blocking import Producer as BlockingProducer
from penstock.common.errors import NotConfirmedError
from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd


@pytest.fixture(scope="module")
def nsqds() -> Iterator[tuple[NsqdProcess, NsqdProcess]]:
    """nsqds that keep their ports, so that no other process takes them while they are down."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(reserved_address()) for _ in range(2)]
        first, second = (
            stack.enter_context(run_nsqd(f"--tcp-address={address}")) for address in addresses
        )
        yield first, second


@pytest.fixture
def pair(nsqds: tuple[NsqdProcess, NsqdProcess]) -> tuple[NsqdProcess, NsqdProcess]:
    """Both nsqds, running, whatever the last test did."""
    for nsqd in nsqds:
        if not nsqd.is_running:
            nsqd.start()
    return nsqds


def drained(nsqd: NsqdProcess, topic: str) -> set[bytes]:
    """The bodies of all messages of the topic."""
    bodies: set[bytes] = set()
    with BlockingConsumer(topic, "c", nsqd=nsqd.tcp_address, max_in_flight=2500) as consumer:
        while not nsqd.shows(topic, "c", depth=0, in_flight_count=0):
            for message in consumer.batch(timeout=0.1):
                bodies.add(message.body)
                message.finish()
            consumer.flush()
    return bodies


def test_no_confirmed_message_is_lost_when_an_nsqd_is_killed_under_load(
    pair: tuple[NsqdProcess, NsqdProcess], topic: str, run_once: Run
) -> None:
    first, second = pair
    confirmed: set[bytes] = set()

    async def scenario() -> None:
        async with Producer([first.tcp_address, second.tcp_address]) as producer:
            go_on = True

            async def publish(worker: int) -> None:
                number = 0
                while go_on:
                    body = b"%d-%d" % (worker, number)
                    await producer.publish(topic, body)
                    confirmed.add(body)
                    number += 1

            async with asyncio.TaskGroup() as publishers:
                for worker in range(50):
                    publishers.create_task(publish(worker))
                await eventually(lambda: len(confirmed) > 5_000, "the load")
                first.kill()
                at_the_kill = len(confirmed)
                await eventually(lambda: len(confirmed) > at_the_kill + 5_000, "more load")
                go_on = False

    run_once(scenario())
    first.restart()
    kept_by_first, kept_by_second = drained(first, topic), drained(second, topic)
    assert kept_by_first
    assert kept_by_second
    assert set() == confirmed - kept_by_first - kept_by_second


def test_a_hanging_nsqd_does_not_delay_the_others(
    pair: tuple[NsqdProcess, NsqdProcess], topic: str, run_once: Run
) -> None:
    hung, healthy = pair
    bodies = [b"%d" % number for number in range(20)]

    async def scenario() -> None:
        config = ClientConfig(response_timeout=3.0)
        addresses = [hung.tcp_address, healthy.tcp_address]
        async with Producer(addresses, config=config) as producer:
            hung.send_signal(signal.SIGSTOP)
            for body in bodies:
                await producer.publish(topic, body)

    run_once(scenario())
    hung.send_signal(signal.SIGCONT)
    assert set(bodies) <= drained(healthy, topic) | drained(hung, topic)


def test_a_stopping_nsqd_is_replaced_by_another(
    pair: tuple[NsqdProcess, NsqdProcess], topic: str, run_once: Run
) -> None:
    leaving, staying = pair

    async def scenario() -> None:
        async with Producer([leaving.tcp_address, staying.tcp_address]) as producer:
            await producer.publish_many(topic, [b"before"] * 2)
            leaving.terminate()
            for _ in range(10):
                await producer.publish(topic, b"after")

    run_once(scenario())
    assert b"after" in drained(staying, topic)


def test_the_blocking_producer_fails_over_to_the_next_nsqd(
    pair: tuple[NsqdProcess, NsqdProcess], topic: str
) -> None:
    first, second = pair
    config = ClientConfig(publish_timeout=5.0)
    with BlockingProducer([first.tcp_address, second.tcp_address], config=config) as producer:
        producer.publish(topic, b"before")
        first.kill()
        producer.publish_many(topic, [b"after"] * 3)
        second.kill()
        reason = rf"not confirmed within 5 s: .*{second.tcp_address}: Connection refused"
        with pytest.raises(NotConfirmedError, match=reason):
            producer.publish(topic, b"nowhere")

    first.restart()
    second.restart()
    assert ({b"before"}, {b"after"}) == (drained(first, topic), drained(second, topic))
