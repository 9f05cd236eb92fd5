"""python -m bench.hostile: latency of a client, and growth of nsqd's memory, during an attack.

For each attack a new nsqd is started. A client publishes one message after the other during the
attack; the table shows its maximum and 99th percentile latency, and the growth of nsqd's resident
memory. Latencies are wall-clock times, so the machine should be idle otherwise.
"""

import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from bench import procfs
from bench.load import allow_sockets
from penstock.protocol import commands
from penstock.protocol.compression import Snappy
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until

__all__ = ["ATTACKS", "Effect", "main", "measure"]

MIB = 1024 * 1024
ATTACK_SECONDS = 1.0
SILENT_CONNECTIONS = 2_000
PINGS = 20_000


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of an attack on a client that publishes meanwhile, and on nsqd's memory."""

    publishes: int
    p99_ms: float
    longest_ms: float
    grown_mib: float


def commands_without_end(nsqd: NsqdProcess, seconds: float) -> None:
    client = nsqd.connect()
    data = memoryview(commands.nop() * 65_536)
    sent, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        sent += client.send_some(data[sent % len(data) :], seconds=0.1)


def compressed_commands(nsqd: NsqdProcess, seconds: float) -> None:
    client = nsqd.connect()
    client.upgrade(deflate=True)
    bomb = memoryview(_deflated(commands.nop() * (MIB // 4), 100))
    sent, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        sent += client.send_some(bomb[sent % len(bomb) :], seconds=0.1)
    client.reset()


def compressed_publishes(nsqd: NsqdProcess, _seconds: float) -> None:
    client = nsqd.connect()
    client.upgrade(snappy=True)
    client.send_beneath(Snappy().encode(commands.pub("bomb", bytes(MIB)) * 50))
    for _ in range(50):
        client.response()


def requests_without_end(nsqd: NsqdProcess, _seconds: float) -> None:
    pings = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n" * PINGS
    host, port = nsqd.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        sending = threading.Thread(target=peer.sendall, args=(pings,))
        sending.start()
        answers = bytearray()
        while answers.count(b"HTTP/1.1 200 OK\r\n") < PINGS:
            answers += peer.recv(MIB)
        sending.join()


def silent_connections(nsqd: NsqdProcess, seconds: float) -> None:
    allow_sockets(SILENT_CONNECTIONS)
    host, port = nsqd.tcp_address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(SILENT_CONNECTIONS)]
    time.sleep(seconds)
    for peer in silent:
        peer.close()


def consumer_that_never_reads(nsqd: NsqdProcess, seconds: float) -> None:
    producer = nsqd.connect()
    for _ in range(100):
        producer.call(commands.mpub("unread", [bytes(40_000)] * 10))
    consumer = nsqd.connect(receive_buffer_bytes=8 * 1024)
    consumer.subscribe("unread", "c", rdy=2500)
    wait_until(lambda: nsqd.stats("unread", "c")["in_flight_count"], "a message to be sent")
    time.sleep(seconds)


ATTACKS: Mapping[str, Callable[[NsqdProcess, float], None]] = {
    "commands without end": commands_without_end,
    "compressed commands": compressed_commands,
    "compressed publishes": compressed_publishes,
    "HTTP requests without end": requests_without_end,
    f"{SILENT_CONNECTIONS:,} silent connections": silent_connections,
    "a consumer that never reads": consumer_that_never_reads,
}


def measure(attack: Callable[[NsqdProcess, float], None], seconds: float) -> Effect:
    """Runs one attack on a fresh nsqd."""
    with run_nsqd() as nsqd:
        client = nsqd.connect()
        client.call(commands.pub("polite", b"x"))
        before = procfs.rss_bytes(nsqd.pid)
        is_over = threading.Event()
        waits: list[float] = []
        publishing = threading.Thread(target=_publish, args=(client, is_over, waits))
        publishing.start()
        try:
            attack(nsqd, seconds)
        finally:
            is_over.set()
            publishing.join()
        grown = procfs.peak_rss_bytes(nsqd.pid) - before
    waits.sort()
    return Effect(
        len(waits), waits[len(waits) * 99 // 100] * 1000, waits[-1] * 1000, max(grown, 0) / MIB
    )


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(ATTACKS)), help="This attack only.")
@click.option("--seconds", default=ATTACK_SECONDS, show_default=True, help="Length of an attack.")
def main(*, only: Sequence[str], seconds: float) -> None:
    """Measure how nsqd serves a client while another one attacks it."""
    table = Table(title="A client that publishes during an attack", title_justify="left")
    for column in ("attack", "publishes", "p99, ms", "longest, ms", "memory grown, MiB"):
        table.add_column(column, justify="left" if column == "attack" else "right")
    for name, attack in ATTACKS.items():
        if not only or name in only:
            effect = measure(attack, seconds)
            table.add_row(
                name,
                f"{effect.publishes:,}",
                f"{effect.p99_ms:.1f}",
                f"{effect.longest_ms:.1f}",
                f"{effect.grown_mib:.1f}",
            )
    Console().print(table)


def _publish(client: RawClient, is_over: threading.Event, waits: list[float]) -> None:
    while True:
        began = time.monotonic()
        client.call(commands.pub("polite", b"x"))
        waits.append(time.monotonic() - began)
        if is_over.wait(0.001):
            return


def _deflated(text: bytes, count: int) -> bytes:
    """`text` repeated `count` times, as a part of a deflate stream."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return (compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)) * count


if __name__ == "__main__":
    main()
