"""The shop as a process: publishes events and writes the ledger.

    python -m examples.shop.generator LEDGER --nsqd HOST:PORT --nsqd HOST:PORT

It publishes for some seconds, waits for a line on stdin, and then publishes the order that closes
the shop. At each of these steps, and every half second, it prints the number of acknowledged events
as JSON. An event is retried until an nsqd acknowledges it; then it is added to the ledger.
"""

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec
from examples.shop.events import Event, Shop, body_of
from examples.shop.ledger import encode_lines

from penstock.client import ClientConfig, ClientError, Producer

__all__ = ["Status"]

TICK_SECONDS = 0.05
STATUS_SECONDS = 0.5

# Generous, because a killed broker may restart slowly on a busy machine.
TIMEOUT_SECONDS = 120.0

CLOSING_MS = 3_600_000
"""Offset of the last order's time into the future."""


class Status(msgspec.Struct, frozen=True):
    """A line that the generator prints; `step` is `open`, `closed` or `done`."""

    step: str
    acknowledged: int


class Generator:
    """Publishes the events of a shop."""

    def __init__(self, producer: Producer, shop: Shop, ledger: BinaryIO) -> None:
        self._producer = producer
        self._shop = shop
        self._ledger = ledger
        self._acknowledged = 0

    async def run(self, seconds: float) -> None:
        """Publish events for this long."""
        ends_at = time.monotonic() + seconds
        status_at = 0.0
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic()) < ends_at:
                group.create_task(self.publish(list(self._shop.events_until(_now_ms()))))
                if now >= status_at:
                    self.print_status("open")
                    status_at = now + STATUS_SECONDS
                await asyncio.sleep(TICK_SECONDS)
        self.print_status("closed")

    async def close_shop(self) -> None:
        await self.publish([self._shop.closing(_now_ms() + CLOSING_MS)])
        self.print_status("done")

    async def publish(self, events: Iterable[Event]) -> None:
        """Publish events until all are acknowledged, and add them to the ledger."""
        by_topic: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_topic[event.topic].append(event)
        await asyncio.gather(*(self._publish(*each) for each in by_topic.items()))

    async def _publish(self, topic: str, events: list[Event]) -> None:
        """Publish in one command, which nsqd stores completely or not at all."""
        bodies = [body_of(event) for event in events]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                await self._producer.publish_many(topic, bodies)
                break
            except ClientError:
                if time.monotonic() > deadline:
                    raise
        self._ledger.write(encode_lines(events))
        self._acknowledged += len(events)

    def print_status(self, step: str) -> None:
        self._ledger.flush()
        print(msgspec.json.encode(Status(step, self._acknowledged)).decode(), flush=True)


async def run(args: argparse.Namespace) -> None:
    shop = Shop(per_second=args.rate, began_ms=_now_ms())
    config = ClientConfig(reconnect_delay_max=1.0)
    with args.ledger.open("wb") as ledger:
        async with Producer(args.nsqd, config=config) as producer:
            generator = Generator(producer, shop, ledger)
            await generator.run(args.seconds)
            if await asyncio.to_thread(sys.stdin.readline):
                await generator.close_shop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Publish the events of a shop, and write a ledger."
    )
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--nsqd", action="append", required=True, metavar="HOST:PORT")
    parser.add_argument("--rate", type=float, default=3000, help="events per second")
    parser.add_argument("--seconds", type=float, default=45)
    args = parser.parse_args()
    try:
        asyncio.run(run(args))
    except* ClientError as group:
        sys.exit(f"generator: {group.exceptions[0]}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
