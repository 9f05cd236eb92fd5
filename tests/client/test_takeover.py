"""Producers and consumers that find a replicated node by nsqlookupd, across takeovers."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.client.conftest import Run
from tests.client.eventually import eventually

from penstock.client import ClientConfig, Consumer, Message, Producer, blocking
from penstock.testing.etcd import has_etcd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.replicated import FAST_TAKEOVER, ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it"),
]

# Polls of nsqlookupd in this interval would be too late.
CONFIG = ClientConfig(lookupd_poll_interval=1000.0, response_timeout=3.0, publish_timeout=120.0)


@pytest.fixture
def lookupd() -> Iterator[NsqlookupdProcess]:
    with run_nsqlookupd() as process:
        yield process


@pytest.fixture
def node(lookupd: NsqlookupdProcess) -> Iterator[ReplicatedNode]:
    known = f"--lookupd-tcp-address={lookupd.tcp_address}"
    with run_replicated_node(flags=[*FAST_TAKEOVER, known]) as running:
        yield running


def registered(lookupd: NsqlookupdProcess) -> list[tuple[str, int]]:
    """TCP addresses and node ids of the nodes that nsqlookupd lists."""
    nodes = lookupd.http("GET", "/nodes").json()["producers"]
    return [(f"{each['broadcast_address']}:{each['tcp_port']}", each["node_id"]) for each in nodes]


def wait_for_registration(lookupd: NsqlookupdProcess, node: ReplicatedNode, node_id: int) -> None:
    """Wait until nsqlookupd lists only the leader, with the same node id as before."""
    leader = node.led_by
    wait_until(lambda: registered(lookupd) == [(leader.tcp_address, node_id)], "only the leader")


def test_publishing_and_consuming_continue(
    lookupd: NsqlookupdProcess, node: ReplicatedNode, topic: str, run_once: Run
) -> None:
    wait_until(lambda: registered(lookupd), "the leader to be listed")
    ((_, node_id),) = registered(lookupd)
    confirmed: set[bytes] = set()
    consumed: set[bytes] = set()
    is_over = False

    async def publish(producer: Producer, worker: int) -> None:
        number = 0
        while not is_over:
            body = b"%d-%d" % (worker, number)
            await producer.publish(topic, body)
            confirmed.add(body)
            number += 1
            await asyncio.sleep(0.01)

    async def handle(message: Message) -> None:
        consumed.add(message.body)

    async def more_is_published() -> None:
        wanted = len(confirmed) + 100
        await eventually(lambda: len(confirmed) > wanted, "publishes", seconds=120)

    async def takeovers() -> None:
        nonlocal is_over
        await more_is_published()
        killed = node.wait_for_leader()
        await asyncio.to_thread(node.kill, killed)
        await more_is_published()
        await asyncio.to_thread(node.start, killed)
        await asyncio.to_thread(node.wait_in_sync, 3)

        stopped = node.wait_for_leader()
        node.suspend(stopped)
        await asyncio.to_thread(wait_for_registration, lookupd, node, node_id)
        await more_is_published()
        node.resume(stopped)
        await asyncio.to_thread(node.wait_in_sync, 3)
        is_over = True

    async def scenario() -> None:
        async with (
            Producer(lookupd=lookupd.http_address, config=CONFIG) as producer,
            Consumer(topic, "c", lookupd=lookupd.http_address, config=CONFIG) as consumer,
        ):
            handling = asyncio.create_task(consumer.run(handle, concurrency=5))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(takeovers())
                for worker in range(3):
                    tasks.create_task(publish(producer, worker))
            await eventually(lambda: confirmed <= consumed, "all to be consumed", seconds=120)
            consumer.stop()
            await handling

    run_once(scenario())
    wait_for_registration(lookupd, node, node_id)


def test_blocking_clients_continue(
    lookupd: NsqlookupdProcess, node: ReplicatedNode, topic: str
) -> None:
    wait_until(lambda: registered(lookupd), "the leader to be listed")
    ((_, node_id),) = registered(lookupd)
    with (
        blocking.Producer(lookupd=lookupd.http_address, config=CONFIG) as producer,
        blocking.Consumer(topic, "c", lookupd=lookupd.http_address, config=CONFIG) as consumer,
    ):
        received: set[bytes] = set()

        def receive(body: bytes) -> bool:
            for message in consumer.batch(timeout=1.0):
                received.add(message.body)
                message.finish()
            return body in received

        producer.publish(topic, b"before")
        wait_until(lambda: receive(b"before"), "the first message")
        node.kill(node.wait_for_leader())
        producer.publish(topic, b"after")
        wait_until(lambda: receive(b"after"), "the second message")
        wait_for_registration(lookupd, node, node_id)


def test_a_publish_waits_for_members_in_sync(
    lookupd: NsqlookupdProcess, node: ReplicatedNode, topic: str, run_once: Run
) -> None:
    wait_until(lambda: registered(lookupd), "the leader to be listed")
    leader = node.wait_for_leader()
    others = [name for name in node.members if name != leader]

    async def scenario() -> None:
        async with Producer(lookupd=lookupd.http_address, config=CONFIG) as producer:
            node.kill(*others)
            await asyncio.to_thread(node.wait_in_sync, 1)
            publishing = asyncio.create_task(producer.publish(topic, b"x"))
            await asyncio.sleep(1)
            assert not publishing.done()
            await asyncio.to_thread(node.start, *others)
            await publishing

    run_once(scenario())
    node.wait_in_sync(3)
