"""Publishing on asyncio, to a running nsqd and to a peer that misbehaves."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.client.conftest import Run
from tests.client.eventually import eventually
from tests.client.stand_in import stand_in

from penstock.client import ClientConfig, Producer
from penstock.common.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    NotConfirmedError,
    NotConnectedError,
    QueueFullError,
    RefusedError,
)
from penstock.testing.nsqd import NsqdProcess, run_nsqd


def stored(nsqd: NsqdProcess, topic: str, count: int) -> list[bytes]:
    messages = nsqd.consumer(topic, "c", rdy=2500).messages(count)
    return [message.body for message in messages]


def test_published_messages_are_stored_in_order(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    bodies = [b"%d" % number for number in range(500)]

    async def scenario() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await asyncio.gather(*(producer.publish(topic, body) for body in bodies[:200]))
            await producer.publish_many(topic, bodies[200:400])
            futures = [producer.publish_nowait(topic, body) for body in bodies[400:]]
            await producer.flush()
            assert all(future.done() for future in futures)

    run(scenario())
    assert bodies == stored(nsqd, topic, 500)


def test_publishes_are_batched_and_several_batches_are_in_flight(run: Run) -> None:
    bodies = [b"%03d" % number for number in range(300)]
    config = ClientConfig(max_batch_size=4 + 100 * 7, max_batches_in_flight=2)

    async def scenario() -> None:
        with stand_in() as peer:
            peer.answers_publishes = False
            async with Producer(peer.address, config=config) as producer:
                publishes = [asyncio.create_task(producer.publish("t", body)) for body in bodies]
                await eventually(lambda: sum(map(len, peer.published)) == 200, "two batches")
                assert [bodies[:100], bodies[100:200]] == peer.published
                peer.release()
                await asyncio.gather(*publishes)
            assert bodies[200:] == peer.published[-1]

    run(scenario())


def test_a_deferred_message_is_delivered_later(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    async def scenario() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish(topic, b"later", defer=timedelta(seconds=3))
            await producer.publish_many(topic, [b"also", b"later"], defer=3.0)
            await producer.publish(topic, b"now")

    run(scenario())
    first, *others = stored(nsqd, topic, 4)
    assert b"now" == first
    assert [b"also", b"later", b"later"] == sorted(others)


def test_publish_many_splits_into_several_commands(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    bodies = [b"%d" % number for number in range(2000)]
    config = ClientConfig(max_batch_size=1000, max_queued_bytes=10_000)

    async def scenario() -> None:
        async with Producer(nsqd.tcp_address, config=config) as producer:
            await producer.publish_many(topic, iter(bodies))
            await producer.publish_many(topic, [])

    run(scenario())
    assert bodies == stored(nsqd, topic, 2000)


# Refused publishes --------------------------------------------------------------------------------


def test_only_the_refused_message_of_a_batch_fails(topic: str, run_once: Run) -> None:
    bodies = [b"good", b"too long" * 20, b"also good"]

    async def scenario(address: str) -> None:
        async with Producer(address) as producer:
            outcomes: list[Any] = await asyncio.gather(
                *(producer.publish(topic, body) for body in bodies), return_exceptions=True
            )
            assert [None, None] == [outcomes[0], outcomes[2]]
            assert isinstance(outcomes[1], RefusedError)
            refused = f"{address}: E_BAD_MESSAGE PUB message too big 160 > 100"
            assert refused == str(outcomes[1])
            with pytest.raises(RefusedError, match="E_BAD_MESSAGE MPUB message too big"):
                await producer.publish_many(topic, bodies)
            await producer.publish(topic, b"still in use")

    with run_nsqd("--max-msg-size=100") as nsqd:
        run_once(scenario(nsqd.tcp_address))
        assert {b"good", b"also good", b"still in use"} == set(stored(nsqd, topic, 3))


@pytest.mark.parametrize(
    ("topic", "body", "error"),
    [
        ("no topic", b"x", ValueError),
        ("t", b"", ValueError),
        ("t", "text", TypeError),
        ("", b"x", ValueError),
    ],
)
def test_invalid_publishes_are_not_sent(
    nsqd: NsqdProcess, run: Run, topic: str, body: Any, error: type[Exception]
) -> None:
    async def scenario() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            with pytest.raises(error):
                await producer.publish(topic, body)
            with pytest.raises(error):
                await producer.publish_many(topic, [body])
            with pytest.raises(error):
                producer.publish_nowait(topic, body)

    run(scenario())


def test_publish_waits_at_max_queued_bytes(run: Run) -> None:
    async def scenario() -> None:
        with stand_in() as peer:
            peer.answers_publishes = False
            config = ClientConfig(max_queued_bytes=1000)
            async with Producer(peer.address, config=config) as producer:
                first = producer.publish_nowait("t", b"x" * 1000)
                with pytest.raises(QueueFullError):
                    producer.publish_nowait("t", b"y")
                second = asyncio.create_task(producer.publish("t", b"y"))
                await eventually(lambda: [[b"x" * 1000]] == peer.published, "the first")
                assert not second.done()
                peer.release()
                await asyncio.gather(first, second)
            assert [b"y"] == peer.published[-1]

    run(scenario())


# Failures -----------------------------------------------------------------------------------------


def test_an_unreachable_nsqd_raises_not_connected(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:1: Connection refused"):
            async with Producer("127.0.0.1:1"):
                pass
        several = r"no nsqd can be used: 127.0.0.1:1: \S+ refused; 127.0.0.1:2: \S+ refused"
        with pytest.raises(NotConnectedError, match=several):
            await Producer(["127.0.0.1:1", "127.0.0.1:2"]).start()
        with pytest.raises(NotConnectedError, match=r"no\.such\.host\.invalid:4150: "):
            await Producer("no.such.host.invalid:4150").start()

    run(scenario())


def test_a_peer_that_is_not_nsqd_raises_not_connected(run: Run) -> None:
    config = ClientConfig(response_timeout=0.2)

    async def scenario() -> None:
        with stand_in() as peer:
            peer.is_silent = True
            with pytest.raises(NotConnectedError, match=r"no response to IDENTIFY within 0\.2 s"):
                await Producer(peer.address, config=config).start()
            peer.raw_answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
            with pytest.raises(
                NotConnectedError, match="not a frame: it is HTTP, which has another port"
            ):
                await Producer(peer.address).start()

    run(scenario())


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":4150", "host:http", "h:99999"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        Producer(address)


def test_it_needs_an_address() -> None:
    with pytest.raises(ConfigError, match="without an address: pass nsqd= or lookupd="):
        Producer()


def test_a_publish_that_is_never_confirmed_fails_in_time(run_once: Run) -> None:
    config = ClientConfig(publish_timeout=0.5, response_timeout=0.2)

    async def scenario() -> None:
        with stand_in() as peer:
            async with Producer(peer.address, config=config) as producer:
                peer.answers_publishes = False
                reason = f"not confirmed within 0.5 s: {peer.address}: no response within 0.2 s"
                with pytest.raises(NotConfirmedError, match=reason):
                    await producer.publish("t", b"x")

    run_once(scenario())


def test_a_cancelled_publish_does_not_affect_others(run: Run) -> None:
    async def scenario() -> None:
        with stand_in() as peer:
            peer.answers_publishes = False
            async with Producer(peer.address) as producer:
                impatient = asyncio.create_task(producer.publish("t", b"one"))
                patient = asyncio.create_task(producer.publish("t", b"two"))
                await eventually(lambda: peer.published, "the batch")
                impatient.cancel()
                peer.release()
                await patient
            assert impatient.cancelled()

    run(scenario())


def test_a_closed_producer_refuses_to_publish(nsqd: NsqdProcess, run: Run) -> None:
    async def scenario() -> None:
        producer = Producer(nsqd.tcp_address)
        with pytest.raises(ClientError, match="is not started"):
            await producer.publish("t", b"x")
        await producer.start()
        await producer.close()
        await producer.close()
        with pytest.raises(ClientClosedError):
            await producer.publish("t", b"x")

    run(scenario())


def test_close_waits_for_unconfirmed_publishes(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    async def scenario() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            published = [producer.publish_nowait(topic, b"x") for _ in range(100)]
        assert all(future.done() and future.exception() is None for future in published)

    run(scenario())
    assert 100 == nsqd.stats(topic)["message_count"]
