"""Consuming on asyncio from a running nsqd."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from tests.client.conftest import Run
from tests.client.eventually import eventually
from tests.client.stand_in import stand_in

from penstock.client import ClientConfig, Consumer, Message
from penstock.common.errors import ConfigError, NotConnectedError, RefusedError
from penstock.protocol.events import Cls, Event, Fin, Sub
from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

EAGER = ClientConfig(
    default_requeue_delay=0.0,
    max_backoff_duration=0.0,
    output_buffer_timeout=0.025,
)


def ready_count(nsqd: NsqdProcess, topic: str) -> int:
    count: int = nsqd.stats(topic, "c")["clients"][0]["ready_count"]
    return count


def nsqd_shows(nsqd: NsqdProcess, topic: str, **figures: int) -> None:
    """Wait until nsqd shows these statistics of the channel."""
    wait_until(lambda: nsqd.shows(topic, "c", **figures), str(figures))


def count(heard: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in heard)


# Iterating ----------------------------------------------------------------------------------------


def test_messages_are_iterated_over_and_finished(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    bodies = [b"%d" % number for number in range(1000)]
    nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies))
    received: list[bytes] = []

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, max_in_flight=50) as consumer:
            async for message in consumer:
                assert (1, nsqd.tcp_address) == (message.attempts, message.address)
                received.append(message.body)
                message.finish()
                if len(received) == len(bodies):
                    break

    run(scenario())
    assert bodies == received
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, timeout_count=0, requeue_count=0)


def test_max_in_flight_is_never_exceeded(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, *[b"x"] * 20)

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, max_in_flight=5) as consumer:
            held = [await anext(consumer) for _ in range(5)]
            await eventually(lambda: nsqd.shows(topic, "c", in_flight_count=5, depth=15), "five")
            for message in held:
                message.finish()
            assert 5 == len(await consumer.batch())

    run(scenario())


def test_max_in_flight_can_be_changed_while_running(
    nsqd: NsqdProcess, topic: str, run_once: Run
) -> None:
    nsqd.publish(topic, *[b"x"] * 20)

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, max_in_flight=5) as consumer:
            await eventually(lambda: nsqd.shows(topic, "c", in_flight_count=5), "five")
            consumer.set_max_in_flight(7)
            await eventually(lambda: nsqd.shows(topic, "c", in_flight_count=7), "seven")
            with pytest.raises(ConfigError):
                consumer.set_max_in_flight(0)

    run_once(scenario())


def test_a_requeued_message_comes_again_after_its_delay(
    nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    nsqd.publish(topic, b"x")

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=EAGER) as consumer:
            (await anext(consumer)).requeue(0.3)
            began = time.monotonic()
            again = await anext(consumer)
            assert time.monotonic() - began >= 0.29
            assert 2 == again.attempts
            again.finish()
            await eventually(lambda: nsqd.shows(topic, "c", in_flight_count=0), "the answer")

    run(scenario())


def test_an_unanswered_message_is_redelivered_unless_touched(
    nsqd: NsqdProcess, topic: str, run_once: Run
) -> None:
    nsqd.publish(topic, b"touched", b"forgotten")

    async def scenario() -> None:
        config = ClientConfig(msg_timeout=4.0, output_buffer_timeout=0.025)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:
            touched, _forgotten = await anext(consumer), await anext(consumer)
            coming = asyncio.ensure_future(anext(consumer))
            while not (await asyncio.wait([coming], timeout=0.1))[0]:
                touched.touch()
            again = coming.result()
            assert (b"forgotten", 2) == (again.body, again.attempts)
            touched.finish()
            again.finish()
            await eventually(lambda: nsqd.shows(topic, "c", in_flight_count=0), "the answers")

    run_once(scenario())
    nsqd_shows(nsqd, topic, timeout_count=1, depth=0)


def test_keep_touching_touches_a_held_batch(nsqd: NsqdProcess, topic: str, run_once: Run) -> None:
    nsqd.publish(topic, b"kept")

    async def scenario() -> None:
        config = ClientConfig(msg_timeout=6.0)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:
            kept = await consumer.batch()
            touching = asyncio.create_task(consumer.keep_touching(lambda: kept))
            await asyncio.sleep(6.5)  # longer than the message timeout
            touching.cancel()
            kept[0].finish()

    run_once(scenario())
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, timeout_count=0, requeue_count=0)


def test_it_is_starved_near_the_rdy_count(nsqd: NsqdProcess, topic: str, run_once: Run) -> None:
    nsqd.publish(topic, *[b"x"] * 8)

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, max_in_flight=10) as consumer:
            held = [await anext(consumer) for _ in range(8)]
            assert not consumer.is_starved
            nsqd.publish(topic, b"x")
            held.append(await anext(consumer))
            assert consumer.is_starved
            for message in held:
                message.finish()
            assert not consumer.is_starved

    run_once(scenario())


def test_iteration_ends_after_stop(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"1", b"2", b"3")

    async def scenario() -> None:
        consumer = Consumer(topic, "c", nsqd=nsqd.tcp_address)
        received = []
        async for message in consumer:  # starts the consumer
            received.append(message.body)
            message.finish()
            if len(received) == 3:
                asyncio.get_running_loop().call_later(0.05, consumer.stop)
        assert [b"1", b"2", b"3"] == received
        assert [] == await consumer.batch()
        await consumer.close()

    run(scenario())


def test_close_requeues_queued_messages(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"1", b"2", b"3")

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:
            (await anext(consumer)).finish()
            await eventually(lambda: 2 == len(consumer.waiting), "the others")

    run(scenario())
    bodies = {message.body for message in nsqd.consumer(topic, "c", rdy=2).messages(2)}
    assert {b"2", b"3"} == bodies


def test_fins_of_one_loop_turn_are_sent_in_one_write(run: Run) -> None:
    async def scenario() -> None:
        with stand_in() as peer:
            peer.messages = 100
            async with Consumer("t", "c", nsqd=peer.address, max_in_flight=100) as consumer:
                held: list[Message] = []
                while len(held) < 100:
                    held += await consumer.batch()
                for message in held:
                    message.finish()
                await eventually(lambda: count(peer.heard, Fin), "FINs")
                (finished,) = (event for event in peer.heard if isinstance(event, Fin))
                assert [message.id for message in held] == finished.ids
            await eventually(lambda: count(peer.heard, Cls), "a farewell")

    run(scenario())


# Handling -----------------------------------------------------------------------------------------


def test_a_handler_finishes_by_returning_and_requeues_by_raising(
    nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    nsqd.publish(topic, b"good", b"bad at first", b"own answer")
    seen: list[tuple[bytes, int]] = []

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=EAGER) as consumer:

            async def handle(message: Message) -> None:
                seen.append((message.body, message.attempts))
                if message.attempts == 1 and message.body == b"bad at first":
                    raise RuntimeError("not yet")
                if message.attempts == 1 and message.body == b"own answer":
                    message.requeue(0.05)
                if len(seen) == 5:
                    consumer.stop()

            await consumer.run(handle)

    run(scenario())
    first = [(b"good", 1), (b"bad at first", 1), (b"own answer", 1)]
    assert sorted([*first, (b"bad at first", 2), (b"own answer", 2)]) == sorted(seen)
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, requeue_count=2)


def test_handlers_run_concurrently(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, *[b"x"] * 8)
    busy = most = done = 0

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:

            async def handle(_message: Message) -> None:
                nonlocal busy, most, done
                busy += 1
                most = max(most, busy)
                await eventually(lambda: most >= 4, "four handlers at once")
                busy -= 1
                done += 1
                if done == 8:
                    consumer.stop()

            await consumer.run(handle, concurrency=4)

    run(scenario())
    assert 4 == most


def test_messages_are_touched_during_a_long_handler(
    nsqd: NsqdProcess, topic: str, run_once: Run
) -> None:
    nsqd.publish(topic, b"1", b"2")
    attempts = []

    async def scenario() -> None:
        config = ClientConfig(msg_timeout=6.0)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            async def handle(message: Message) -> None:
                attempts.append(message.attempts)
                if len(attempts) == 2:
                    consumer.stop()
                else:
                    await asyncio.sleep(6.5)  # longer than the message timeout

            await consumer.run(handle)

    run_once(scenario())
    assert [1, 1] == attempts
    nsqd_shows(nsqd, topic, timeout_count=0, depth=0, in_flight_count=0)


@pytest.mark.parametrize("hook_fails_first", [False, True])
def test_a_message_that_fails_max_attempts_times_is_a_dead_letter(
    nsqd: NsqdProcess, topic: str, run: Run, *, hook_fails_first: bool
) -> None:
    nsqd.publish(topic, b"poison")
    attempts: list[int] = []
    dead: list[tuple[bytes, str]] = []

    async def scenario() -> None:
        config = ClientConfig(max_attempts=2, default_requeue_delay=0.0, max_backoff_duration=0.0)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            def handle(message: Message) -> None:  # a plain function is allowed
                attempts.append(message.attempts)
                raise ValueError("cannot be read")

            async def bury(message: Message, error: BaseException | None) -> None:
                dead.append((message.body, str(error)))
                if hook_fails_first and len(dead) == 1:
                    raise RuntimeError("no room")
                consumer.stop()

            await consumer.run(handle, dead_letter=bury)

    run(scenario())
    assert [1, 2] == attempts
    expected = [(b"poison", "cannot be read")]
    assert expected + [(b"poison", "None")] * hook_fails_first == dead
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, deferred_count=0)


def test_after_failures_it_backs_off_and_probes_with_one_message(
    nsqd: NsqdProcess, topic: str, run_once: Run
) -> None:
    nsqd.publish(topic, b"bad")

    async def scenario() -> None:
        # Each state lasts a second, so that the test can observe it.
        config = ClientConfig(backoff_multiplier=0.5, default_requeue_delay=2.0)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            async def handle(message: Message) -> None:
                if message.attempts == 1:
                    raise RuntimeError("no")

            handling = asyncio.create_task(consumer.run(handle))
            await eventually(lambda: 0 == ready_count(nsqd, topic), "holding back")
            await eventually(lambda: 1 == ready_count(nsqd, topic), "a try")
            await eventually(lambda: 200 == ready_count(nsqd, topic), "all to flow again")
            consumer.stop()
            await handling

    run_once(scenario())


def test_stop_lets_handlers_process_queued_messages(
    nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    nsqd.publish(topic, *[b"x"] * 5)
    handled: list[Message] = []

    async def scenario() -> None:
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:

            async def handle(message: Message) -> None:
                await eventually(lambda: handled or 4 == len(consumer.waiting), "all five")
                consumer.stop()
                handled.append(message)

            await consumer.run(handle)

    run(scenario())
    assert 5 == len(handled)
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, requeue_count=0)


def test_handlers_still_running_after_close_timeout_are_cancelled(
    nsqd: NsqdProcess, topic: str, run: Run
) -> None:
    nsqd.publish(topic, b"x")

    async def scenario() -> None:
        config = ClientConfig(close_timeout=0.1)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            async def handle(_message: Message) -> None:
                consumer.stop()
                await asyncio.sleep(100)

            await consumer.run(handle)

    run(scenario())
    nsqd_shows(nsqd, topic, depth=1, in_flight_count=0, requeue_count=1)


def test_close_waits_for_handlers(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"x")

    async def scenario() -> None:
        begun = asyncio.Event()

        async def handle(_message: Message) -> None:
            begun.set()
            await asyncio.sleep(0.1)

        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:
            handling = asyncio.create_task(consumer.run(handle))
            await begun.wait()
        await handling

    run(scenario())
    nsqd_shows(nsqd, topic, depth=0, in_flight_count=0, requeue_count=0)


def test_a_cancelled_waiter_passes_its_message_to_another(run: Run) -> None:
    async def scenario() -> None:
        with stand_in() as peer:
            async with Consumer("t", "c", nsqd=peer.address) as consumer:
                first, second = (asyncio.create_task(anext(consumer)) for _ in range(2))
                await asyncio.sleep(0)  # both are waiting now
                (connection,) = consumer._allocations
                consumer.delivered(connection, [Message(connection, 1, 1, b"0" * 16, b"x")])
                first.cancel()  # it is scheduled, but has not run yet
                assert b"x" == (await second).body

    run(scenario())


def test_cancelling_run_requeues_held_messages(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"x")

    async def scenario() -> None:
        begun = asyncio.Event()

        async def handle(_message: Message) -> None:
            begun.set()
            await asyncio.sleep(100)

        async with Consumer(topic, "c", nsqd=nsqd.tcp_address) as consumer:
            handling = asyncio.create_task(consumer.run(handle))
            await begun.wait()
            handling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await handling

    run(scenario())
    nsqd_shows(nsqd, topic, depth=1, in_flight_count=0)


def test_a_dead_letter_that_fails_is_redelivered(nsqd: NsqdProcess, topic: str, run: Run) -> None:
    nsqd.publish(topic, b"poison")

    async def scenario() -> None:
        config = ClientConfig(max_attempts=1, close_timeout=0.1)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:

            def handle(_message: Message) -> None:
                raise ValueError("cannot be read")

            async def bury(_message: Message, _error: BaseException | None) -> None:
                consumer.stop()
                await asyncio.sleep(100)

            await consumer.run(handle, dead_letter=bury)

    run(scenario())
    nsqd_shows(nsqd, topic, depth=1, in_flight_count=0, requeue_count=1)


# Several nsqds, and none --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nsqds(nsqd: NsqdProcess) -> Iterator[list[NsqdProcess]]:
    with run_nsqd() as second, run_nsqd() as third:
        yield [nsqd, second, third]


def test_connections_take_turns_if_max_in_flight_is_too_low(
    nsqds: list[NsqdProcess], topic: str, run_once: Run
) -> None:
    for number, each in enumerate(nsqds):
        each.publish(topic, *[b"%d" % number] * 3)
    received = []

    async def scenario() -> None:
        config = ClientConfig(
            max_in_flight=1,
            low_rdy_idle_timeout=0.1,
            rdy_redistribute_interval=0.05,
            output_buffer_timeout=0.025,
        )
        addresses = [each.tcp_address for each in nsqds]
        async with Consumer(topic, "c", nsqd=addresses, config=config) as consumer:
            for _ in range(9):
                message = await anext(consumer)
                received.append(message.body)
                message.finish()

    run_once(scenario())
    assert sorted([b"0", b"1", b"2"] * 3) == sorted(received)


def test_it_reconnects_to_a_restarted_nsqd(topic: str, run_once: Run) -> None:
    async def scenario() -> None:
        with reserved_address() as address, run_nsqd(f"--tcp-address={address}") as nsqd:
            async with Consumer(topic, "c", nsqd=address) as consumer:
                nsqd.publish(topic, b"before")
                before = await anext(consumer)
                assert b"before" == before.body
                await asyncio.to_thread(nsqd.kill)
                before.finish()  # fails without effect
                await asyncio.to_thread(nsqd.restart)
                again = await anext(consumer)
                assert b"before" == again.body
                again.finish()

    run_once(scenario())


def test_an_invalid_subscription_is_refused(nsqd: NsqdProcess, run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:1: Connection refused"):
            async with Consumer("t", "c", nsqd="127.0.0.1:1"):
                pass
        config = ClientConfig(msg_timeout=100_000.0)
        with pytest.raises(RefusedError, match="E_BAD_BODY IDENTIFY msg timeout"):
            await Consumer("t", "c", nsqd=nsqd.tcp_address, config=config).start()

    run(scenario())
    with pytest.raises(ConfigError, match="channel name 'no channel' is not valid"):
        Consumer("t", "no channel", nsqd=nsqd.tcp_address)
    with pytest.raises(ConfigError, match="without an address: pass nsqd= or lookupd="):
        Consumer("t", "c")


def test_a_silent_connection_is_closed(run_once: Run) -> None:
    config = ClientConfig(read_timeout=0.2, heartbeat_interval=0.1)

    async def scenario() -> None:
        with stand_in() as peer:
            async with Consumer("t", "c", nsqd=peer.address, config=config):
                await eventually(lambda: count(peer.heard, Sub) >= 2, "a second subscription")

    run_once(scenario())
