"""Three nsqds are killed and restarted at random while messages pass through them.

The environment variable `CHAOS_SECONDS=60` makes the test longer.
"""

import asyncio
import os
import time
from contextlib import ExitStack

import pytest
import uvloop
from tests.client.eventually import eventually
from tests.seeds import fresh_random

from penstock.client import Consumer, Message, Producer
from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import NsqdProcess, run_nsqd

CHAOS_SECONDS = float(os.environ.get("CHAOS_SECONDS", "8"))
PUBLISHERS = 20

# On a busy machine, the test takes longer than its minimum.
KILLS_MIN = 4
CONFIRMED_MIN = 1001


def nsqd_at_fixed_port(stack: ExitStack) -> NsqdProcess:
    """An nsqd that keeps its port after a restart."""
    address = stack.enter_context(reserved_address())
    return stack.enter_context(run_nsqd(f"--tcp-address={address}"))


@pytest.mark.slow
@pytest.mark.timeout(300 + CHAOS_SECONDS)
def test_every_confirmed_message_is_consumed_despite_faults(topic: str) -> None:
    chance = fresh_random("test_every_confirmed_message_is_consumed_despite_faults")
    confirmed: set[bytes] = set()
    consumed: set[bytes] = set()
    kills = 0
    harm_is_done = False

    async def publish(producer: Producer, worker: int) -> None:
        number = 0
        while not harm_is_done:
            body = b"%d-%d" % (worker, number)
            await producer.publish(topic, body)
            confirmed.add(body)
            number += 1
            await asyncio.sleep(0.001)

    async def handle(message: Message) -> None:
        consumed.add(message.body)

    async def do_harm(nsqds: list[NsqdProcess], until: float) -> None:
        nonlocal kills, harm_is_done
        while time.monotonic() < until or kills < KILLS_MIN or len(confirmed) < CONFIRMED_MIN:
            victim = chance.choice(nsqds)
            await asyncio.to_thread(victim.kill)
            kills += 1
            await asyncio.sleep(chance.random() * 0.5)
            await asyncio.to_thread(victim.start)
            await asyncio.sleep(chance.random() * 0.5)
        harm_is_done = True

    async def scenario() -> None:
        with ExitStack() as stack:
            nsqds = [nsqd_at_fixed_port(stack) for _ in range(3)]
            addresses = [nsqd.tcp_address for nsqd in nsqds]
            async with (
                Producer(addresses) as producer,
                Consumer(topic, "c", nsqd=addresses) as consumer,
            ):
                handling = asyncio.create_task(consumer.run(handle, concurrency=5))
                until = time.monotonic() + CHAOS_SECONDS
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(do_harm(nsqds, until))
                    for worker in range(PUBLISHERS):
                        tasks.create_task(publish(producer, worker))
                await eventually(lambda: confirmed <= consumed, "all to be consumed")
                consumer.stop()
                await handling

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 240 + CHAOS_SECONDS))
    assert kills >= KILLS_MIN
    assert len(confirmed) >= CONFIRMED_MIN
