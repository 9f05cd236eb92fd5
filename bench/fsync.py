"""Measures `--sync-every=1`: publishes per second, latency, memory; and the disk's own rate.

    python -m bench.fsync --data-path /path/on/the/disk/to/measure

The disk's rate is measured first: threads each append 200 bytes to their own file and fsync it.
Then connections publish single messages, each waiting for its OK, to one topic and to one topic
each. Finally one connection sends messages of 1 MB, without waiting for an OK, to an nsqd with a
slow fsync; nsqd must stop reading from it, so that its memory stays bounded.
"""

import os
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from bench import procfs
from bench.load import BODY, Address, allow_sockets
from bench.targets import Server, Target, penstock, running
from penstock.protocol import commands, frames

__all__ = ["disk_rate", "main", "publish_rate"]

DISK_THREADS = 16
LARGE_BODY = bytes(1_000_000)
LOADS = ((1, 1), (64, 1), (64, 64), (200, 200))
SLOW_FSYNC_SECONDS = 2.0

_SLOW_NSQD = f"""
import os, time
from {{module}} import main
fsync = os.fsync
def slow_fsync(fd):
    if os.fstat(fd).st_size > {len(LARGE_BODY)}:
        time.sleep({SLOW_FSYNC_SECONDS})
    fsync(fd)
os.fsync = slow_fsync
main()
"""


def disk_rate(folder: Path, seconds: float, threads: int = DISK_THREADS) -> float:
    """Appends with an fsync each, per second, over all threads, each on its own file."""
    counts = [0] * threads
    stop_at = time.monotonic() + seconds

    def append(number: int) -> None:
        fd = os.open(folder / f"disk-rate-{number}", os.O_CREAT | os.O_WRONLY)
        try:
            while time.monotonic() < stop_at:
                os.write(fd, BODY)
                os.fsync(fd)
                counts[number] += 1
        finally:
            os.close(fd)

    workers = [threading.Thread(target=append, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds


def publish_rate(
    at: Address, connections: int, topics: int, seconds: float
) -> tuple[float, list[float]]:
    """PUBs per second, and the sorted latencies in ms; each connection waits for every OK."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector, _connected(at, connections) as sockets:
        sent_at: dict[socket.socket, float] = {}
        requests: dict[socket.socket, bytes] = {}
        for number, each in enumerate(sockets):
            requests[each] = commands.pub(f"topic-{number % topics}", BODY)
            selector.register(each, selectors.EVENT_READ, each)
        _warm_up(sockets, requests)
        started_at = time.monotonic()
        stop_at = started_at + seconds
        for each in sockets:
            sent_at[each] = time.monotonic()
            each.sendall(requests[each])
        while (now := time.monotonic()) < stop_at:
            for key, _ in selector.select(stop_at - now):
                each = key.data
                _expect_ok(each)
                now = time.monotonic()
                latencies.append((now - sent_at[each]) * 1000)
                sent_at[each] = now
                each.sendall(requests[each])
    return len(latencies) / seconds, sorted(latencies)


def pipelined_peak(server: Server, seconds: float) -> tuple[int, float]:
    """Bytes that one connection could send in this time, and nsqd's peak memory in MB."""
    request = commands.pub("large", LARGE_BODY)
    sent = 0
    stop_at = time.monotonic() + seconds
    with _connected(server.at.tcp, 1) as (connection,):
        connection.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while time.monotonic() < stop_at:
                for _, events in selector.select(0.1):
                    if events & selectors.EVENT_READ:
                        connection.recv(1 << 16)
                    if events & selectors.EVENT_WRITE:
                        sent += connection.send(request[sent % len(request) :])
    return sent, procfs.peak_rss_bytes(server.pid) / 1e6


@contextmanager
def _connected(at: Address, count: int) -> Iterator[Sequence[socket.socket]]:
    allow_sockets(count)
    sockets = [socket.create_connection(at) for _ in range(count)]
    try:
        for each in sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.sendall(commands.MAGIC)
        yield sockets
    finally:
        for each in sockets:
            each.close()


def _warm_up(sockets: Sequence[socket.socket], requests: dict[socket.socket, bytes]) -> None:
    """Creates the topics, so that their creation is not measured."""
    for each in sockets:
        each.sendall(requests[each])
        _expect_ok(each)


def _expect_ok(connection: socket.socket) -> None:
    reply = connection.recv(len(frames.OK))
    if reply != frames.OK:
        raise SystemExit(f"nsqd answered {reply!r}")


@click.command()
@click.option("--data-path", type=click.Path(path_type=Path), help="Folder on the disk to measure.")
@click.option("--seconds", default=4.0, show_default=True, help="Length of each measurement.")
def main(*, data_path: Path | None, seconds: float) -> None:
    """Measure publishing with --sync-every=1."""
    if data_path is not None:
        tempfile.tempdir = str(data_path)
    with tempfile.TemporaryDirectory(prefix="bench-disk-") as folder:
        rate = disk_rate(Path(folder), seconds)
    click.echo(f"disk, {DISK_THREADS} threads on {DISK_THREADS} files: {rate:,.0f} fsync/s")
    click.echo("connections  topics    PUB/s  of disk  p50 ms  p99 ms")
    for connections, topics in LOADS:
        with running(penstock(), "--sync-every=1") as server:
            published, latencies = publish_rate(server.at.tcp, connections, topics, seconds)
        p50, p99 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
        click.echo(
            f"{connections:>11} {topics:>7} {published:>8,.0f} {published / rate:>8.2f}"
            f" {p50:>7.1f} {p99:>7.1f}"
        )
    with running(_on_slow_disk(), "--sync-every=1") as server:
        sent, peak_mb = pipelined_peak(server, 2 * seconds)
    click.echo(
        f"1 MB PUBs without waiting, fsync takes {SLOW_FSYNC_SECONDS:g} s: "
        f"{sent / 1e6:,.0f} MB sent, peak memory {peak_mb:,.0f} MB"
    )


def _on_slow_disk() -> Target:
    """Our nsqd, with a slow fsync."""
    ours = penstock()
    python, _, module, *flags = ours.command
    return replace(ours, command=(python, "-c", _SLOW_NSQD.format(module=module), *flags))


if __name__ == "__main__":
    main()
