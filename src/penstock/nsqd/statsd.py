"""Reports to statsd over UDP, with NSQ's metric names.

Every interval, the metrics of all topics and channels are rendered, one per line; counters as their
growth since the last report. The lines are joined into packets, which are spread over the interval,
up to a second before its end, so that network and statsd do not get them all at once.

Errors are logged and affect nothing else. The host name of statsd is resolved for every report,
because its address may change.
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
from penstock.nsqd.stats import merged_latency

__all__ = ["Statsd", "StatsdReport", "StatsdSettings", "split_packets", "statsd_prefix"]

# Timeout of the DNS lookup.
LOOKUP_SECONDS = 1.0

# Packets that are rendered in one turn of the event loop: some hundreds of lines.
PACKETS_PER_TURN = 32

_Named = TypeVar("_Named", Topic, Channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsdSettings:
    """Destination and content of the reports."""

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
    """Prefix of metric names: expands `%s` to the node, and adds a dot at the end if missing."""
    if not prefix:
        return ""
    host = f"[{address}]" if ":" in address else address
    node = f"{host}:{port}".replace(".", "_").replace(":", "_")
    expanded = prefix.replace("%s", node)
    return expanded if expanded.endswith(".") else expanded + "."


def split_packets(lines: Iterable[bytes], bytes_max: int) -> Iterator[bytes]:
    """Fills packets with whole lines. A line longer than a packet gets its own."""
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > bytes_max:
            yield packet
            packet = b""
        packet += line
    if packet:
        yield packet


class StatsdReport:
    """Renders metrics as lines; remembers the counters for the next report."""

    def __init__(self, settings: StatsdSettings) -> None:
        self._settings = settings
        self._counts: dict[str, int] = {}
        self._last_counts: dict[str, int] = {}

    def lines(self, topics: Iterable[Topic], memory: MemoryStats | None) -> Iterator[bytes]:
        """The lines of one report."""
        self._last_counts, self._counts = self._counts, {}
        for topic in self._sorted_by_name(topics):
            yield from self._topic_lines(f"topic.{topic.name}", topic)
            for channel in self._sorted_by_name(topic.channels.values()):
                name = f"topic.{topic.name}.channel.{channel.name}"
                yield from self._channel_lines(name, channel)
        if memory is not None:
            yield from self._memory_lines(memory)

    def _sorted_by_name(self, items: Iterable[_Named]) -> list[_Named]:
        with_ephemeral = self._settings.with_ephemeral
        reported = [item for item in items if with_ephemeral or not item.ephemeral]
        return sorted(reported, key=lambda item: item.name)

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
        latency = merged_latency(channels, self._settings.quantiles)
        for each in latency["percentiles"] or ():
            # nsq compat: rounded to a whole percent, so that 0.999 is named 100.
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
        # A count that has shrunk belongs to a new topic or channel with the same name.
        growth = count - last_count if count >= last_count else count
        return f"{self._settings.prefix}{name}:{growth}|c\n".encode()


class Statsd:
    """Sends a report every interval, from `start` to `stop`."""

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
        self._report = StatsdReport(settings)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sends the first report after one interval."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Sends the rest of a started report at once, and ends."""
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
            except (OSError, UnicodeError) as failure:  # UnicodeError: an invalid host name
                address = self._settings.address
                self._log.error("failed to send to statsd(%s) - %s", address, failure)
            except Exception:  # noqa: BLE001 (it is logged, with traceback)
                self._log.exception("STATSD: a report failed")
            # Keep the rhythm of the first report; skip missed intervals.
            due += interval * max(math.ceil((loop.time() - due) / interval), 1)

    async def _send_report(self) -> None:
        """Raises OSError; for a failed packet, after all packets have been tried."""
        settings, failure = self._settings, 0
        with await _connect(settings.address) as connection:
            self._log.info("STATSD: pushing stats to %s", settings.address)
            started = asyncio.get_running_loop().time()
            rendered = await self._render_packets()
            for index, packet in enumerate(rendered):
                await self._wait_until(started + settings.spread_seconds * index / len(rendered))
                try:
                    connection.send(packet)
                except OSError as error:
                    failure = error.errno or 0
            # The refusal of the last packets arrives a moment later.
            await self._wait_until(started + settings.spread_seconds)
            failure = failure or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))

    async def _render_packets(self) -> list[bytes]:
        memory = self._memory() if self._settings.with_memory else None
        lines = self._report.lines(list(self._topics.values()), memory)
        rendered: list[bytes] = []
        for packet in split_packets(lines, self._settings.packet_bytes_max):
            rendered.append(packet)
            if len(rendered) % PACKETS_PER_TURN == 0:
                await asyncio.sleep(0)
        return rendered

    async def _wait_until(self, due: float) -> bool:
        """Sleeps until `due` or `stop`; returns whether to continue."""
        delay = due - asyncio.get_running_loop().time()
        if delay > 0 and not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
        return not self._stopping.is_set()


async def _connect(address: str) -> socket.socket:
    """A non-blocking UDP socket to the address. Raises OSError."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            addresses = await loop.getaddrinfo(
                host.strip("[]") or "localhost", int(port), type=socket.SOCK_DGRAM
            )
    except TimeoutError:
        raise TimeoutError("DNS lookup timed out") from None
    family, kind, protocol, _, socket_address = addresses[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        connection.connect(socket_address)
    except OSError:
        connection.close()
        raise
    return connection
