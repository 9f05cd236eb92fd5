"""Figures for a statsd, by UDP: NSQ's names, and how they are sent.

Every interval the figures of all topics and channels are written down, one to a line, counters as
their growth since the last time. The lines are put into packets, which are cut between lines, and
the packets are spread over the interval, up to a second before its end, so that neither the network
nor the statsd has to take them all at once.

Nothing that happens to a packet or to the name of its receiver is any concern of the rest of nsqd.
The name is looked up anew every time, because that is how such a receiver moves.
"""

import asyncio
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from penstock.broker.channel import Channel
from penstock.broker.topic import Topic
from penstock.common.logs import Logger
from penstock.nsqd.process_metrics import MemoryStats
from penstock.nsqd.stats import latency_of

__all__ = ["Report", "Statsd", "StatsdSettings", "packets", "statsd_prefix"]

# How long the lookup of the statsd's name may take.
LOOKUP_SECONDS = 1.0

# As many packets are made without letting others run: some hundreds of lines.
PACKETS_AT_ONCE = 32

_Named = TypeVar("_Named", Topic, Channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsdSettings:
    """Where the figures go, and which."""

    address: str  # host:port
    prefix: str  # as `statsd_prefix` makes it
    interval_seconds: float
    packet_bytes_max: int
    with_memory: bool
    with_ephemeral: bool
    quantiles: Sequence[float]

    @property
    def spread_seconds(self) -> float:
        """The time over which the packets of one report are sent."""
        return max(self.interval_seconds - 1, self.interval_seconds / 2)


def statsd_prefix(prefix: str, address: str, port: int) -> str:
    """What names begin with: `%s` stands for the node, and a dot follows unless it is there."""
    if not prefix:
        return ""
    host = f"[{address}]" if ":" in address else address
    node = f"{host}:{port}".replace(".", "_").replace(":", "_")
    expanded = prefix.replace("%s", node)
    return expanded if expanded.endswith(".") else expanded + "."


def packets(lines: Iterable[bytes], bytes_max: int) -> Iterator[bytes]:
    """Puts as many lines into each packet as it can hold; a longer line has one to itself."""
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > bytes_max:
            yield packet
            packet = b""
        packet += line
    if packet:
        yield packet


class Report:
    """Writes figures down, one to a line; remembers the counters for the next time."""

    def __init__(self, settings: StatsdSettings) -> None:
        self._settings = settings
        self._counts: dict[str, int] = {}
        self._last_counts: dict[str, int] = {}

    def lines(self, topics: Iterable[Topic], memory: MemoryStats | None) -> Iterator[bytes]:
        """The lines of one report."""
        self._last_counts, self._counts = self._counts, {}
        for topic in self._shown(topics):
            yield from self._topic_lines(f"topic.{topic.name}", topic)
            for channel in self._shown(topic.channels.values()):
                name = f"topic.{topic.name}.channel.{channel.name}"
                yield from self._channel_lines(name, channel)
        if memory is not None:
            yield from self._memory_lines(memory)

    def _shown(self, each: Iterable[_Named]) -> list[_Named]:
        with_ephemeral = self._settings.with_ephemeral
        shown = [one for one in each if with_ephemeral or not one.ephemeral]
        return sorted(shown, key=lambda one: one.name)

    def _topic_lines(self, name: str, topic: Topic) -> Iterator[bytes]:
        yield self._count(f"{name}.message_count", topic.message_count)
        yield self._count(f"{name}.message_bytes", topic.message_bytes)
        yield self._gauge(f"{name}.depth", topic.depth)
        yield self._gauge(f"{name}.backend_depth", topic.backend_depth)
        yield from self._latency_lines(name, topic.channels.values())

    def _channel_lines(self, name: str, channel: Channel) -> Iterator[bytes]:
        yield self._count(f"{name}.message_count", channel.message_count)
        yield self._gauge(f"{name}.depth", channel.depth)
        yield self._gauge(f"{name}.backend_depth", channel.backend_depth)
        yield self._gauge(f"{name}.in_flight_count", channel.in_flight_count)
        yield self._gauge(f"{name}.deferred_count", channel.deferred_count)
        yield self._count(f"{name}.requeue_count", channel.requeue_count)
        yield self._count(f"{name}.timeout_count", channel.timeout_count)
        yield self._gauge(f"{name}.clients", len(channel.subscribers))
        yield from self._latency_lines(name, [channel])

    def _latency_lines(self, name: str, channels: Iterable[Channel]) -> Iterator[bytes]:
        latency = latency_of(channels, self._settings.quantiles)
        for each in latency["percentiles"] or ():
            # nsq compat: a whole percent, so that 0.999 is called 100.
            percent = f"{each['quantile'] * 100:.0f}"
            yield self._gauge(f"{name}.e2e_processing_latency_{percent}", int(each["value"]))

    def _memory_lines(self, memory: MemoryStats) -> Iterator[bytes]:
        yield self._gauge("mem.heap_objects", memory["heap_objects"])
        yield self._gauge("mem.heap_idle_bytes", memory["heap_idle_bytes"])
        yield self._gauge("mem.heap_in_use_bytes", memory["heap_in_use_bytes"])
        yield self._gauge("mem.heap_released_bytes", memory["heap_released_bytes"])
        yield self._gauge("mem.gc_pause_usec_100", memory["gc_pause_usec_100"])
        yield self._gauge("mem.gc_pause_usec_99", memory["gc_pause_usec_99"])
        yield self._gauge("mem.gc_pause_usec_95", memory["gc_pause_usec_95"])
        yield self._gauge("mem.next_gc_bytes", memory["next_gc_bytes"])
        yield self._count("mem.gc_runs", memory["gc_total_runs"])

    def _gauge(self, name: str, value: int) -> bytes:
        return f"{self._settings.prefix}{name}:{value}|g\n".encode()

    def _count(self, name: str, count: int) -> bytes:
        last_count = self._last_counts.get(name, 0)
        self._counts[name] = count
        # A count that has shrunk is that of something new with an old name.
        growth = count - last_count if count >= last_count else count
        return f"{self._settings.prefix}{name}:{growth}|c\n".encode()


class Statsd:
    """Reports every interval, from `start` to `stop`."""

    def __init__(
        self,
        settings: StatsdSettings,
        topics: Mapping[str, Topic],
        memory: Callable[[], MemoryStats],
        log: Logger,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._memory = memory
        self._log = log
        self._report = Report(settings)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Makes the first report an interval from now."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Sends what is left of a report that has begun, and makes no more."""
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._log.info("STATSD: closing")

    async def _run(self) -> None:
        loop, interval = asyncio.get_running_loop(), self._settings.interval_seconds
        due = loop.time() + interval
        while await self._wait_until(due):
            try:
                await self._send_report()
            except (OSError, UnicodeError) as failure:  # the latter for what cannot be a name
                address = self._settings.address
                self._log.error("failed to send to statsd(%s) - %s", address, failure)
            except Exception:  # noqa: BLE001 (it is logged, with traceback)
                self._log.exception("STATSD: a report failed")
            # On the beat of the first, whatever it took; a beat that was missed is left out.
            due += interval * max(math.ceil((loop.time() - due) / interval), 1)

    async def _send_report(self) -> None:
        """Raises OSError, for a packet only after all of them have been tried."""
        settings, failure = self._settings, 0
        with await _connected(settings.address) as connection:
            self._log.info("STATSD: pushing stats to %s", settings.address)
            started = asyncio.get_running_loop().time()
            made = await self._make_packets()
            for index, packet in enumerate(made):
                await self._wait_until(started + settings.spread_seconds * index / len(made))
                try:
                    connection.send(packet)
                except OSError as error:
                    failure = error.errno or 0
            # That the last packets were refused is known only a moment later.
            await self._wait_until(started + settings.spread_seconds)
            failure = failure or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))

    async def _make_packets(self) -> list[bytes]:
        memory = self._memory() if self._settings.with_memory else None
        lines = self._report.lines(list(self._topics.values()), memory)
        made: list[bytes] = []
        for packet in packets(lines, self._settings.packet_bytes_max):
            made.append(packet)
            if len(made) % PACKETS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return made

    async def _wait_until(self, due: float) -> bool:
        """Returns whether we are to go on: at once, when we are not."""
        delay = due - asyncio.get_running_loop().time()
        if delay > 0 and not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
        return not self._stopping.is_set()


async def _connected(address: str) -> socket.socket:
    """A UDP socket to the address, which never blocks. Raises OSError."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            found = await loop.getaddrinfo(
                host.strip("[]") or "localhost", int(port), type=socket.SOCK_DGRAM
            )
    except TimeoutError:
        raise TimeoutError("its name could not be looked up in time") from None
    family, kind, protocol, _, where = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        connection.connect(where)
    except OSError:
        connection.close()
        raise
    return connection
