"""`nsq_stat`: statistics of one channel over all its nodes, as NSQ's rows or as a live view."""

import asyncio
import time
from collections.abc import Callable

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.admin_api.cluster import Cluster, ClusterStats, NodeStats
from penstock.common.errors import HttpRequestError
from penstock.tools.display import format_count, format_number, format_rate, sparkline
from penstock.tools.live_screen import LiveScreen
from penstock.tools.rates import QueueMeter, QueueStats, RateSample
from penstock.tools.stdout_writer import StdoutWriter

__all__ = ["HEADER", "ChannelNotFoundError", "ChannelView", "format_row"]

ROWS_PER_HEADER = 25

HEADER = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)

_TREND_WIDTH_MAX = 60
_QUIET, _TITLE, _ALARM = "dim", "bold", "yellow"


class ChannelNotFoundError(HttpRequestError):
    """No node has the channel."""

    def __init__(self, topic: str, channel: str) -> None:
        super().__init__(topic, channel)
        self.topic = topic
        self.channel = channel

    def __str__(self) -> str:
        where = f"in stats metadata for topic({self.topic})"
        return f"ERROR: failed to find channel({self.channel}) {where}"


def format_row(stats: QueueStats) -> str:
    """A row in NSQ's format."""
    rates = stats.rates or RateSample()
    return (
        f"{round(rates.ingress):7d} {round(rates.egress):7d}"
        f" | {stats.depth:7d} {stats.depth - stats.disk_depth:7d} {stats.disk_depth:7d}"
        f" {stats.in_flight:5d} {stats.deferred:5d}"
        f" | {stats.requeues:7d} {stats.timeouts:7d} {stats.messages:12d} {stats.clients:7d}\n"
    )


class ChannelView:
    """Polls the statistics of one channel and shows them."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        channel: str,
        *,
        interval_seconds: float,
        count: int,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._channel = channel
        self._interval_seconds = interval_seconds
        self._count = count
        self._meter = QueueMeter()
        self._stats = QueueStats(topic, channel)
        self._snapshot = ClusterStats(0.0, [], [])
        self._failures: list[HttpRequestError] = []

    async def print_rows(self, output: StdoutWriter, warn: Callable[[str], None]) -> None:
        """Write rows, the first after one interval. Raises HttpRequestError if no node answers or
        has the channel, and the errors of `output`."""
        loop = asyncio.get_running_loop()
        await self._poll()
        next_at, rows = loop.time(), 0
        while rows < self._count:
            if rows % ROWS_PER_HEADER == 0:
                await output.write(HEADER.encode())
            next_at = max(next_at + self._interval_seconds, loop.time())
            await asyncio.sleep(next_at - loop.time())
            await self._poll()
            for failure in self._failures:
                warn(str(failure))
            await output.write(format_row(self._stats).encode())
            rows += 1

    async def show_live(self, console: Console) -> None:
        """Show the live view until the user exits; then print it once more below. Raises
        HttpRequestError if at first no node answers or has the channel."""
        await self._poll()
        screen = LiveScreen(
            console,
            lambda: self.render(console),
            self._refresh,
            interval_seconds=self._interval_seconds,
            count=self._count,
        )
        await screen.run()
        console.print(self.render(console))

    async def _poll(self) -> None:
        snapshot = await self._cluster.snapshot(self._topic, self._channel)
        all_stats = {stats.channel: stats for stats in self._meter.observe(snapshot)}
        if self._channel not in all_stats:
            raise snapshot.failures[0] if snapshot.failures else self._not_found()
        self._stats, self._snapshot = all_stats[self._channel], snapshot
        self._failures = snapshot.failures

    def _not_found(self) -> ChannelNotFoundError:
        return ChannelNotFoundError(self._topic, self._channel)

    async def _refresh(self) -> None:
        try:
            await self._poll()
        except HttpRequestError as failure:
            self._failures = [failure]

    # Rendering.

    def render(self, console: Console) -> RenderableType:
        """Rates and depth with sparklines, counters, nodes, and errors."""
        width = min(max(console.size.width - 30, 10), _TREND_WIDTH_MAX)
        notes = [Text(f" {each}", _ALARM, overflow="ellipsis") for each in self._failures]
        parts: list[RenderableType] = [self._title(), "", self._trends(width, console), ""]
        parts += [self._counters(), ""]
        if len(self._snapshot.nodes) > 1:
            parts += [self._node_table(), ""]
        return Group(*parts, *notes)

    def _title(self) -> RenderableType:
        nodes = format_count(len(self._snapshot.nodes), "node")
        line = Table.grid(expand=True)
        line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        line.add_column(no_wrap=True, justify="right")
        name = Text.assemble((f" {self._topic} / {self._channel}", _TITLE), (f"   {nodes}", _QUIET))
        if self._stats.is_paused:
            name.append("   paused", _ALARM)
        every = f"every {self._interval_seconds:g} s"
        line.add_row(name, Text(f"{every} · {time.strftime('%H:%M:%S')} ", _QUIET))
        return line

    def _trends(self, width: int, console: Console) -> Table:
        history = self._stats.history
        table = Table(box=None, show_header=False, pad_edge=True)
        table.add_column(style=_QUIET, min_width=8)
        table.add_column(justify="right", min_width=10)
        table.add_column(no_wrap=True)
        ingress, egress = [each.ingress for each in history], [each.egress for each in history]
        depth = [float(each.depth) for each in history]
        for name, now, past, style in (
            ("ingress", f"{format_rate(ingress[-1] if ingress else None)} /s", ingress, "cyan"),
            ("egress", f"{format_rate(egress[-1] if egress else None)} /s", egress, "green"),
            ("depth", f"{format_number(self._stats.depth)}   ", depth, "yellow"),
        ):
            bars = sparkline(past, width, ascii_only=console.options.ascii_only).lstrip()
            table.add_row(name, now, Text(bars, style))
        return table

    def _counters(self) -> RenderableType:
        stats = self._stats
        figures = {
            "in memory": stats.depth - stats.disk_depth,
            "on disk": stats.disk_depth,
            "in flight": stats.in_flight,
            "deferred": stats.deferred,
            "requeued": stats.requeues,
            "timed out": stats.timeouts,
            "messages": stats.messages,
            "clients": stats.clients,
        }
        shown = [
            Text.assemble((f"{name} ", _QUIET), format_number(number))
            for name, number in figures.items()
        ]
        return Padding(Columns(shown, padding=(0, 3)), (0, 1))

    def _node_table(self) -> Table:
        table = Table(box=None, pad_edge=True, header_style=_QUIET)
        table.add_column("node", no_wrap=True)
        for name in ("depth", "in flight", "deferred", "messages", "clients"):
            table.add_column(name, justify="right", no_wrap=True)
        for node in self._snapshot.nodes:
            table.add_row(node.address, *self._node_figures(node))
        return table

    def _node_figures(self, node: NodeStats) -> list[str]:
        for topic in node.topics:
            channel = topic.maybe_channel(self._channel)
            if channel is not None:
                figures = (
                    channel.depth,
                    channel.in_flight_count,
                    channel.deferred_count,
                    channel.message_count,
                    channel.client_count,
                )
                return list(map(format_number, figures))
        return []
