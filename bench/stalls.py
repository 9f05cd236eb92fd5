"""How long one large operation blocks other clients of nsqd.

    python -m bench.stalls                     # all of them, about ten minutes
    python -m bench.stalls --only delete --scale 0.1

Each scenario prepares a real nsqd and then runs one operation, while a probe publishes to another
topic every 2 ms. The longest time that the probe waited for its OK is the stall. Time in which nsqd
or the probe waited for a CPU core is subtracted, so that other load on the machine does not count.
"""

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from bench import procfs
from penstock.protocol import commands
from penstock.protocol.frames import MessageFrame
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import RawClient

__all__ = ["SCENARIOS", "Probe", "main"]

PROBE_SECONDS = 0.002
MIB = 1 << 20
HOUR_MS = 3_600_000
TOPIC, CHANNEL = "t", "c"
_PROCESSES = multiprocessing.get_context("fork")
LONG = "--max-req-timeout=2h"


class Row(NamedTuple):
    """A line of the table."""

    name: str
    value: float
    unit: str


class Probe:
    """Publishes from its own process; `worst_ms` is the maximum time until an OK."""

    def __init__(self, nsqd: NsqdProcess) -> None:
        self._nsqd = nsqd
        self._stop = _PROCESSES.Event()
        self._worst_ms = _PROCESSES.Value("d", 0.0)
        self._process = _PROCESSES.Process(target=self._run, daemon=True)

    @property
    def worst_ms(self) -> float:
        """The longest wait so far."""
        return float(self._worst_ms.value)

    def __enter__(self) -> Self:
        self._process.start()
        time.sleep(0.3)
        self._worst_ms.value = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.3)
        self._stop.set()
        self._process.join()

    def _run(self) -> None:
        with RawClient(self._nsqd.tcp_address) as client:
            while not self._stop.wait(PROBE_SECONDS):
                began = _own_seconds(self._nsqd)
                client.call(commands.pub("probe", b"x"))
                waited_ms = 1000 * (_own_seconds(self._nsqd) - began)
                self._worst_ms.value = max(self._worst_ms.value, waited_ms)


def _own_seconds(nsqd: NsqdProcess) -> float:
    """The monotonic clock, less the time that nsqd or this process waited for a CPU core."""
    starved = procfs.starved_seconds(os.getpid()) + procfs.starved_seconds(nsqd.pid)
    return time.monotonic() - starved


@contextmanager
def run_nsqd(*flags: str) -> Iterator[NsqdProcess]:
    """Runs nsqd on a temporary data path, and kills it at the end."""
    with tempfile.TemporaryDirectory(prefix="stalls-") as folder, tempfile.TemporaryFile() as log:
        nsqd = NsqdProcess(Path(folder), flags, log.fileno())
        nsqd.start()
        try:
            yield nsqd
        finally:
            nsqd.kill()


def quiet(scale: float) -> Iterator[Row]:
    """No operation: the latency of the probe itself."""
    with run_nsqd() as nsqd, Probe(nsqd) as probe:
        time.sleep(max(2 * scale, 0.2))
    yield Row("quiet", probe.worst_ms, "ms")


def delete(scale: float) -> Iterator[Row]:
    """A topic of 990 segments is deleted."""
    with run_nsqd(f"--max-bytes-per-file={MIB}") as nsqd:
        _create(nsqd, TOPIC, CHANNEL)
        _fill(nsqd, int(990 * scale), message_bytes=MIB - 1000)
        with Probe(nsqd) as probe:
            nsqd.post(f"/topic/delete?topic={TOPIC}")
        yield Row("delete a topic of 990 segments", probe.worst_ms, "ms")


def empty(scale: float) -> Iterator[Row]:
    """A channel is emptied, which trims 2 GB of the log."""
    with run_nsqd() as nsqd:
        _create(nsqd, TOPIC, CHANNEL)
        _fill(nsqd, int(2000 * scale), message_bytes=MIB - 1000)
        with Probe(nsqd) as probe:
            nsqd.post(f"/channel/empty?topic={TOPIC}&channel={CHANNEL}")
            time.sleep(1)
        yield Row("empty a channel of 2 GB", probe.worst_ms, "ms")


def deferred(scale: float) -> Iterator[Row]:
    """300,000 deferred messages after a restart."""
    count = int(300_000 * scale)
    with run_nsqd(LONG, "--max-defer-timeout=2h") as nsqd:
        _create(nsqd, TOPIC, CHANNEL)
        with RawClient(nsqd.tcp_address) as client:
            _pipeline(client, commands.dpub(TOPIC, HOUR_MS, b"x" * 100), count)
        yield from _restarted(nsqd, f"{count:,} deferred", count)


def requeued(scale: float) -> Iterator[Row]:
    """1,000,000 messages that were requeued with a delay, after a restart."""
    count = int(1_000_000 * scale)
    with run_nsqd(LONG) as nsqd:
        _create(nsqd, TOPIC, CHANNEL)
        for _ in range(count // 1000):
            nsqd.http("POST", f"/mpub?topic={TOPIC}", b"\n".join([b"x" * 100] * 1000))
        consumer = nsqd.consumer(TOPIC, CHANNEL, rdy=2500)
        left = count // 1000 * 1000
        while left:
            frames = consumer.received_frames() or [consumer.next_frame(seconds=60)]
            ids = [frame.id for frame in frames if isinstance(frame, MessageFrame)]
            consumer.send(*(commands.req(message_id, HOUR_MS) for message_id in ids))
            left -= len(ids)
        consumer.close()
        yield from _restarted(nsqd, f"{count:,} requeued", count)


def _restarted(nsqd: NsqdProcess, what: str, count: int) -> Iterator[Row]:
    _stop(nsqd)
    began = time.monotonic()
    _start(nsqd)
    yield Row(f"{what}: start", 1000 * (time.monotonic() - began), "ms")
    stats = nsqd.stats(TOPIC, CHANNEL)
    yield Row(f"{what}: counted as such after the start", stats["deferred_count"] / count, "of 1")
    with Probe(nsqd) as probe:
        nsqd.consumer(TOPIC, CHANNEL, rdy=1)
        time.sleep(1)
    yield Row(f"{what}: first SUB after a restart", probe.worst_ms, "ms")


def come_due(scale: float) -> Iterator[Row]:
    """100,000 deferred messages come due at the same time."""
    count = int(100_000 * scale)
    with run_nsqd() as nsqd:
        _create(nsqd, TOPIC, CHANNEL)
        began = time.monotonic()
        with RawClient(nsqd.tcp_address) as client:
            for _ in range(count // 100):
                defer_ms = 20_000 - int(1000 * (time.monotonic() - began))
                _pipeline(client, commands.dpub(TOPIC, max(defer_ms, 0), b"x" * 100), 100)
        time.sleep(max(began + 19 - time.monotonic(), 0))
        with Probe(nsqd) as probe:
            time.sleep(3)
        yield Row(f"{count:,} messages come due", probe.worst_ms, "ms")


def behind(scale: float) -> Iterator[Row]:
    """A deferred message in a channel that is 20,000 messages behind, with a slow consumer."""
    with run_nsqd() as nsqd:
        _create(nsqd, TOPIC, CHANNEL)
        with RawClient(nsqd.tcp_address) as client:
            _pipeline(client, commands.pub(TOPIC, b"x" * 100), int(20_000 * scale))
        due_at = time.time() + 1
        nsqd.http("POST", f"/pub?topic={TOPIC}&defer=1000", b"due")
        stats = nsqd.stats(TOPIC, CHANNEL)
        consumer = nsqd.consumer(TOPIC, CHANNEL, rdy=1)
        while (message := consumer.message(seconds=60)).body != b"due":
            time.sleep(0.001)
            consumer.send(commands.fin(message.id))
        late_ms = 1000 * (time.time() - due_at)
        yield Row("deferred, 20,000 behind: late by", late_ms, "ms")
        yield Row("deferred, 20,000 behind: deferred_count", stats["deferred_count"], "")


def stats(scale: float) -> Iterator[Row]:
    """/stats of 20,000 channels."""
    with run_nsqd() as nsqd:
        for topic in range(int(200 * scale)):
            _create(nsqd, f"t{topic}", *(f"c{number}" for number in range(100)))
        for name in ("/stats?format=json", "/stats", "/metrics"):
            with Probe(nsqd) as probe:
                for _ in range(3):
                    nsqd.http("GET", name)
            yield Row(f"GET {name} of 20,000 channels", probe.worst_ms, "ms")


def idle_channel(scale: float) -> Iterator[Row]:
    """87 messages a second to 50 channels that keep up, in a topic whose idle channel retains 3,000
    segments."""
    with run_nsqd("--max-bytes-per-file=10000") as nsqd:
        _create(nsqd, TOPIC, *(f"c{number}" for number in range(50)), "idle")
        _fill(nsqd, int(3000 * scale), message_bytes=9900)
        for number in range(50):
            nsqd.post(f"/channel/empty?topic={TOPIC}&channel=c{number}")
        consumers = [nsqd.consumer(TOPIC, f"c{number}", rdy=100) for number in range(50)]
        time.sleep(5)  # until the segments are synced and have their index files
        with RawClient(nsqd.tcp_address) as producer, Probe(nsqd) as probe:
            began, cpu = time.monotonic(), procfs.cpu_seconds(nsqd.pid)
            while time.monotonic() < began + 10:
                producer.call(commands.pub(TOPIC, b"x"))
                for consumer in consumers:
                    consumer.send(commands.fin(consumer.message().id))
                time.sleep(1 / 87)
            used = (procfs.cpu_seconds(nsqd.pid) - cpu) / (time.monotonic() - began)
        yield Row("idle channel of 3,000 segments, 50 others: CPU", 100 * used, "%")
        yield Row("idle channel of 3,000 segments, 50 others: stall", probe.worst_ms, "ms")


def topics(scale: float) -> Iterator[Row]:
    """10,000 topics: stop and start."""
    with run_nsqd() as nsqd:
        with RawClient(nsqd.tcp_address) as client:
            for topic in range(int(10_000 * scale)):
                client.call(commands.pub(f"t{topic}", b"x"))
                if not topic % 10:
                    nsqd.post(f"/channel/create?topic=t{topic}&channel={CHANNEL}")
        yield from _timed(nsqd, "10,000 topics: stop", _stop)
        yield from _timed(nsqd, "10,000 topics: start after a stop", _start)
        with RawClient(nsqd.tcp_address) as client:
            for topic in range(int(10_000 * scale)):
                client.call(commands.pub(f"t{topic}", b"x"))
        nsqd.kill()
        yield from _timed(nsqd, "10,000 topics: start after a kill", _start)


def _stop(nsqd: NsqdProcess) -> None:
    nsqd.close_clients()
    nsqd.send_signal(signal.SIGTERM)
    nsqd.wait(seconds=300)


def _start(nsqd: NsqdProcess) -> None:
    nsqd.start(seconds=300)


def _timed(nsqd: NsqdProcess, name: str, step: Callable[[NsqdProcess], None]) -> Iterator[Row]:
    began = time.monotonic()
    step(nsqd)
    yield Row(name, time.monotonic() - began, "s")


def _create(nsqd: NsqdProcess, topic: str, *channels: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    for channel in channels:
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")


def _fill(nsqd: NsqdProcess, count: int, *, message_bytes: int) -> None:
    """Publishes messages one by one."""
    command = commands.pub(TOPIC, b"x" * message_bytes)
    with RawClient(nsqd.tcp_address) as client:
        for _ in range(count):
            client.call(command)


def _pipeline(client: RawClient, command: bytes, count: int) -> None:
    """Sends the same publish many times, a thousand at once, and waits for the answers."""
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        client.send(command * size)
        for _ in range(size):
            client.response(seconds=60)


SCENARIOS: dict[str, Callable[[float], Iterator[Row]]] = {
    "quiet": quiet,
    "delete": delete,
    "empty": empty,
    "deferred": deferred,
    "requeued": requeued,
    "come-due": come_due,
    "behind": behind,
    "stats": stats,
    "idle-channel": idle_channel,
    "topics": topics,
}


def main(arguments: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description="Measure how long operations stall nsqd.")
    parser.add_argument("--only", action="append", choices=[*SCENARIOS], help="Scenario to run.")
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the full size.")
    args = parser.parse_args(arguments)
    for name in args.only or SCENARIOS:
        for row in SCENARIOS[name](args.scale):
            print(f"{row.name:<55} {row.value:>12,.1f} {row.unit}", flush=True)


if __name__ == "__main__":
    main()
