"""Our client, compared with other Python clients, with one nsqd: `python -m bench.clients`.

Each load runs in its own process for some seconds: 200-byte messages, 1,000 unconfirmed publishes
or 1,000 messages in flight, every publish confirmed and every message finished. It counts messages
per second, and per second of the client's CPU time, which is reliable on a busy machine.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import ansq
import nsq
import uvloop

from bench.load import BODY
from penstock.client import Consumer, Message, Producer, blocking
from penstock.testing.nsqd import run_nsqd

__all__ = ["LOADS", "main", "measure"]

SECONDS = 4.0
UNDER_WAY = 1000
BATCH = 200
BACKLOG = 2_500_000
"""More messages than any client consumes in the time of a run."""


class Meter:
    """Counts messages until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.count = 0
        self.seconds = seconds
        self.is_running = True

    async def run(self) -> None:
        """Print the rates for the parent process."""
        began, cpu_began, first = time.perf_counter(), time.process_time(), self.count
        await asyncio.sleep(self.seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        self.is_running = False
        count = self.count - first
        print(json.dumps([count / elapsed, count / cpu]), flush=True)


async def publish_each(meter: Meter, publish: Callable[[], Awaitable[Any]]) -> None:
    """Concurrent publishes, each of which waits for its confirmation."""

    async def go_on() -> None:
        while meter.is_running:
            await publish()
            meter.count += 1

    await asyncio.gather(meter.run(), *(go_on() for _ in range(UNDER_WAY)))


async def publish_batches(meter: Meter, publish: Callable[[], Awaitable[Any]]) -> None:
    """Concurrent multi-publishes."""

    async def go_on() -> None:
        while meter.is_running:
            await publish()
            meter.count += BATCH

    await asyncio.gather(meter.run(), *(go_on() for _ in range(UNDER_WAY // BATCH)))


# Ours ---------------------------------------------------------------------------------------------


async def penstock_publish(address: str, meter: Meter) -> None:
    async with Producer(address) as producer:
        await publish_each(meter, lambda: producer.publish("bench", BODY))


async def penstock_publish_many(address: str, meter: Meter) -> None:
    async with Producer(address) as producer:
        await publish_batches(meter, lambda: producer.publish_many("bench", [BODY] * BATCH))


async def penstock_consume(address: str, meter: Meter) -> None:
    async with Consumer("bench", "load", nsqd=address, max_in_flight=UNDER_WAY) as consumer:

        async def handle(_message: Message) -> None:
            meter.count += 1

        handling = asyncio.create_task(consumer.run(handle))
        await meter.run()
        consumer.stop()
        await handling


# pynsq --------------------------------------------------------------------------------------------


async def pynsq_writer(address: str) -> Any:
    writer = nsq.Writer([address])
    while not writer.conns:  # noqa: ASYNC110 (pynsq has no event for this)
        await asyncio.sleep(0.01)
    return writer


def pynsq_call(command: Callable[..., object], *args: object) -> Awaitable[bytes]:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    command("bench", *args, callback=lambda _connection, data: answer.set_result(data))
    return answer


async def pynsq_publish(address: str, meter: Meter) -> None:
    writer = await pynsq_writer(address)
    await publish_each(meter, lambda: pynsq_call(writer.pub, BODY))


async def pynsq_publish_many(address: str, meter: Meter) -> None:
    writer = await pynsq_writer(address)
    await publish_batches(meter, lambda: pynsq_call(writer.mpub, [BODY] * BATCH))


async def pynsq_consume(address: str, meter: Meter) -> None:
    def handle(_message: nsq.Message) -> bool:
        meter.count += 1
        return True

    nsq.Reader(
        "bench",
        "load",
        message_handler=handle,
        nsqd_tcp_addresses=[address],
        max_in_flight=UNDER_WAY,
    )
    await meter.run()


# ansq ---------------------------------------------------------------------------------------------


async def ansq_publish(address: str, meter: Meter) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
    await publish_each(meter, lambda: writer.pub("bench", BODY))
    await writer.close()


async def ansq_publish_many(address: str, meter: Meter) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
    await publish_batches(meter, lambda: writer.mpub("bench", *[BODY] * BATCH))
    await writer.close()


async def ansq_consume(address: str, meter: Meter) -> None:
    reader = await ansq.create_reader("bench", "load", nsqd_tcp_addresses=[address])
    for connection in reader.connections:
        await connection.rdy(UNDER_WAY)

    async def go_on() -> None:
        async for message in reader.messages():
            await message.fin()
            meter.count += 1

    handling = asyncio.create_task(go_on())
    await meter.run()
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    await reader.close()


# All of them --------------------------------------------------------------------------------------

LOADS: dict[str, dict[str, Callable[[str, Meter], Coroutine[Any, Any, None]]]] = {
    "publish, one by one": {
        "penstock": penstock_publish,
        "pynsq": pynsq_publish,
        "ansq": ansq_publish,
    },
    f"publish, {BATCH} at a time": {
        "penstock": penstock_publish_many,
        "pynsq": pynsq_publish_many,
        "ansq": ansq_publish_many,
    },
    "consume": {"penstock": penstock_consume, "pynsq": pynsq_consume, "ansq": ansq_consume},
}


def main() -> None:
    """Run all loads one after the other and print a table."""
    print(f"{'':24}{'':10}{'msgs/s':>12}{'per CPU-s':>12}")
    for load, clients in LOADS.items():
        for client in clients:
            rate, per_cpu_second = measure(load, client)
            print(f"{load:24}{client:10}{rate:12,.0f}{per_cpu_second:12,.0f}", flush=True)


def measure(
    load: str, client: str, *, seconds: float = SECONDS, backlog: int = BACKLOG
) -> tuple[float, float]:
    """Run one load against a new nsqd; returns messages per second and per CPU-second."""
    with run_nsqd("--max-rdy-count=2500") as nsqd:
        if load == "consume":
            with blocking.Producer(nsqd.tcp_address) as producer:
                producer.publish_many("bench", [BODY] * backlog)
        args = (nsqd.tcp_address, load, client, str(seconds))
        command = [sys.executable, "-m", "bench.clients", *args]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=True
        )
    rate, per_cpu_second = json.loads(done.stdout)
    return rate, per_cpu_second


if __name__ == "__main__":
    match sys.argv[1:]:
        case [address, load, client, seconds]:
            uvloop.run(LOADS[load][client](address, Meter(float(seconds))))
        case _:
            main()
