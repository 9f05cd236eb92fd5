"""Shows what Penstock is for: publish, consume, kill the broker in full swing, and lose nothing.

Run it by `make demo`. The broker is the real program, in a process and a temporary folder of its
own; everything is said to it over TCP and HTTP.
"""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import Disconnected, RawClient
from penstock.wire import commands
from penstock.wire.frames import Message

BATCH = 200
SLOW_RDY = 20  # messages a consumer takes at a time, so few that it falls behind
FAST_RDY = 2500
UNDER_LOAD_SECONDS = 1.5

console = Console(highlight=False)


def main() -> None:
    """The show, from beginning to end."""
    with run_nsqd() as nsqd:
        scene("A broker")
        tell(f"nsqd listens on {nsqd.tcp_address} (TCP) and {nsqd.http_address} (HTTP)")
        tell(f"its messages are in {nsqd.data_path}")

        scene("Publish over HTTP, consume over TCP")
        hello(nsqd)

        scene("Publish and consume at full speed, then kill -9")
        load = under_load(nsqd)
        tell(f"{len(load.acknowledged):,} messages were published and acknowledged")
        tell(f"{len(load.received):,} were delivered when the broker was killed")

        scene("Start it again, on what is left on disk")
        started = time.perf_counter()
        nsqd.start()
        tell(f"serving again after {time.perf_counter() - started:.2f} s")
        before = set(load.received)
        after = drain(nsqd, load.acknowledged - before)
        lost = load.acknowledged - before - after
        tell(f"{len(after - before):,} more were delivered, {len(after & before):,} again")
        console.print(f"\n  acknowledged messages lost: {len(lost)}", style="bold green")
        assert not lost

        scene("Stop it cleanly, and check what is on disk")
        nsqd.terminate()
        subprocess.run(
            [sys.executable, "-m", "penstock.cli.penstock", "check", nsqd.data_path], check=True
        )


def hello(nsqd: NsqdProcess) -> None:
    """One message, all the way."""
    nsqd.post("/topic/create?topic=greetings")
    nsqd.post("/channel/create?topic=greetings&channel=demo")
    tell("POST /pub?topic=greetings  <-  Hello, penstock")
    nsqd.post("/pub?topic=greetings", b"Hello, penstock")
    with nsqd.connect() as consumer:
        consumer.subscribe("greetings", "demo", rdy=1)
        message = consumer.message()
        tell(f"message {message.id.decode()}  ->  {message.body.decode()}")
        consumer.send(commands.fin(message.id))


@dataclass
class Load:
    """What the two ends of a topic know when the broker is gone."""

    acknowledged: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)


def under_load(nsqd: NsqdProcess) -> Load:
    """Publishes and consumes numbers until the broker is killed."""
    load = Load()
    nsqd.post("/topic/create?topic=numbers")
    nsqd.post("/channel/create?topic=numbers&channel=demo")
    ends = [
        threading.Thread(target=publish, args=(nsqd, load.acknowledged)),
        threading.Thread(target=consume, args=(nsqd, load.received)),
    ]
    for end in ends:
        end.start()
    time.sleep(UNDER_LOAD_SECONDS)
    nsqd.kill()
    for end in ends:
        end.join()
    return load


def publish(nsqd: NsqdProcess, acknowledged: set[int]) -> None:
    """Publishes batches of numbers, and notes those that were answered OK."""
    next_number = 0
    with RawClient(nsqd.tcp_address) as producer, suppress(Disconnected, OSError):
        while True:
            batch = range(next_number, next_number + BATCH)
            producer.call(commands.mpub("numbers", [b"%d" % number for number in batch]))
            acknowledged.update(batch)
            next_number += BATCH


def consume(nsqd: NsqdProcess, received: set[int]) -> None:
    """Finishes what it gets, and notes the numbers."""
    with RawClient(nsqd.tcp_address) as consumer, suppress(Disconnected, OSError):
        consumer.subscribe("numbers", "demo", rdy=SLOW_RDY)
        while True:
            received.update(take_and_finish(consumer))


def drain(nsqd: NsqdProcess, expected: set[int]) -> set[int]:
    """Consumes until all that is expected has come, or nothing more comes."""
    received: set[int] = set()
    with RawClient(nsqd.tcp_address) as consumer, suppress(TimeoutError):
        consumer.subscribe("numbers", "demo", rdy=FAST_RDY)
        while not expected <= received:
            received.update(take_and_finish(consumer))
    return received


def take_and_finish(consumer: RawClient) -> list[int]:
    """Waits for messages, finishes all that have come, and returns their numbers."""
    frames = [consumer.message(), *consumer.received_frames()]
    messages = [frame for frame in frames if isinstance(frame, Message)]
    consumer.send(*(commands.fin(message.id) for message in messages))
    return [int(message.body) for message in messages]


def scene(title: str) -> None:
    """Announces what comes next."""
    console.print(f"\n[bold cyan]{title}[/bold cyan]")


def tell(fact: str) -> None:
    """Says what has happened."""
    console.print(f"  {fact}")


if __name__ == "__main__":
    main()
