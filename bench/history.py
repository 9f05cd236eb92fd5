"""python -m bench.history: cost of reading a topic's history, and its effect on live clients.

A topic is filled; its whole history is read as frames over HTTP. Then messages are published to
another topic at a steady pace, and timed, while the history is read again and again.
"""

import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection

import click

from bench import procfs
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd

__all__ = ["HistoryCost", "main", "measure"]

BATCH, BODY = 200, b"x" * 200
FRAMES = {"Accept": "application/vnd.penstock.frames"}
LIVE_PER_SECOND = 2_000


@dataclass(frozen=True, slots=True)
class HistoryCost:
    """Cost of a full read, and latency of live messages during such reads."""

    mb_per_cpu_second: float
    live_p50_ms: float
    live_p99_ms: float


def measure(messages: int, live_seconds: float) -> HistoryCost:
    """Fills a topic with this many messages and reads it."""
    with run_nsqd() as nsqd:
        producer = nsqd.connect()
        for _ in range(messages // BATCH):
            producer.call(commands.mpub("t", [BODY] * BATCH))
        before = procfs.cpu_seconds(nsqd.pid)
        size = _read_all(nsqd)
        cpu_seconds = max(procfs.cpu_seconds(nsqd.pid) - before, 1 / procfs.TICKS_PER_SECOND)
        latencies = sorted(_live_latencies_ms(nsqd, int(live_seconds * LIVE_PER_SECOND)))
    return HistoryCost(
        size / cpu_seconds / 1e6,
        latencies[len(latencies) // 2],
        latencies[len(latencies) * 99 // 100],
    )


@click.command()
@click.option("--messages", default=1_000_000, show_default=True, help="Messages in the history.")
@click.option("--seconds", default=3.0, show_default=True, help="Length of the live traffic.")
def main(*, messages: int, seconds: float) -> None:
    """Measure reading a topic's history back."""
    cost = measure(messages, seconds)
    click.echo(f"frames read: {cost.mb_per_cpu_second:,.0f} MB per CPU-second of nsqd")
    click.echo(
        f"live messages meanwhile: p50 {cost.live_p50_ms:.2f} ms, p99 {cost.live_p99_ms:.2f} ms"
    )


def _read_all(nsqd: NsqdProcess) -> int:
    """Reads all messages as frames; returns the number of bytes."""
    connection = HTTPConnection(nsqd.http_address, timeout=60)
    connection.request("GET", "/topic/messages?topic=t", headers=FRAMES)
    response, piece, size = connection.getresponse(), bytearray(1 << 20), 0
    while count := response.readinto(piece):
        size += count
    connection.close()
    return size


def _live_latencies_ms(nsqd: NsqdProcess, count: int) -> list[float]:
    consumer, producer = nsqd.consumer("live", "c", rdy=100), nsqd.connect()
    latencies_ms: list[float] = []
    is_over = threading.Event()

    def consume() -> None:
        for _ in range(count):
            message = consumer.message()
            latencies_ms.append((time.monotonic_ns() - int(message.body)) / 1e6)
            consumer.send(commands.fin(message.id))

    def keep_reading() -> None:
        while not is_over.is_set():
            _read_all(nsqd)

    threads = [threading.Thread(target=consume), threading.Thread(target=keep_reading)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    for number in range(count):
        time.sleep(max(started + number / LIVE_PER_SECOND - time.monotonic(), 0))
        producer.call(commands.pub("live", b"%d" % time.monotonic_ns()))
    threads[0].join()
    is_over.set()
    threads[1].join()
    return latencies_ms


if __name__ == "__main__":
    main()
