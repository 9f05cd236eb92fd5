"""`penstock top`: all topics and channels of a cluster, as a live view or as plain lines.

The live view fills the terminal; keys change the sort order. In a pipe it prints a table of plain
lines for `grep` and `awk`.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.admin_api.cluster import Cluster, ClusterStats
from penstock.common.errors import HttpRequestError
from penstock.tools.display import format_count, format_number, format_rate, format_table, sparkline
from penstock.tools.live_screen import LiveScreen
from penstock.tools.rates import QueueMeter, QueueStats
from penstock.tools.stdout_writer import StdoutWriter

__all__ = ["SORT_KEYS", "TopView", "print_tables", "watch"]

# Lines of the view besides the rows: title, blank line, heading, blank line, keys.
_LINES_AROUND = 5

_NAME_WIDTH_MIN = 24
_TREND_WIDTH_MIN, _TREND_WIDTH_MAX = 10, 30
_COLUMN_WIDTH = 10  # average width of a number column, including the space

_QUIET, _TITLE, _ALARM = "dim", "bold", "yellow"


def _finished(queue: QueueStats) -> float | None:
    return queue.rates.finished if queue.rates else None


def _ingress(queue: QueueStats) -> float | None:
    return queue.rates.ingress if queue.rates else None


@dataclass(frozen=True, slots=True)
class _SortKey:
    key: str
    label: str
    figure: Callable[[QueueStats], float]


SORT_KEYS = {
    "name": _SortKey("n", "name", lambda _stats: 0.0),
    "depth": _SortKey("d", "depth", lambda queue: queue.depth),
    "in-flight": _SortKey("f", "in flight", lambda queue: queue.in_flight),
    "in": _SortKey("i", "in/s", lambda queue: _ingress(queue) or 0.0),
    "out": _SortKey("o", "out/s", lambda queue: _finished(queue) or 0.0),
    "clients": _SortKey("c", "clients", lambda queue: queue.clients),
}
"""The sort orders: numbers descending, names ascending."""


@dataclass(slots=True)
class TopView:
    """The latest statistics and the settings of the view."""

    order: str = "name"
    interval_seconds: float = 2.0
    stats: list[QueueStats] = field(default_factory=list)
    node_count: int = 0
    draining: list[str] = field(default_factory=list)
    failures: list[HttpRequestError] = field(default_factory=list)
    _meter: QueueMeter = field(default_factory=QueueMeter)

    def observe(self, snapshot: ClusterStats) -> None:
        """Update the statistics."""
        self.stats = self._meter.observe(snapshot)
        self.node_count = len(snapshot.nodes)
        self.draining = [node.address for node in snapshot.nodes if node.is_draining]
        self.failures = snapshot.failures

    def record_failure(self, failure: HttpRequestError) -> None:
        """No node answered: keep the last statistics and show the error."""
        self.node_count = 0
        self.failures = [failure]

    def press(self, key: str) -> None:
        """Change the sort order if the key selects one."""
        for name, order in SORT_KEYS.items():
            if order.key == key.lower():
                self.order = name

    def sorted_stats(self) -> list[QueueStats]:
        """Topics in the selected order, each followed by its channels.

        The sort value of a topic is the largest of its own and those of its channels.
        """
        figure = SORT_KEYS[self.order].figure
        by_topic: dict[str, list[QueueStats]] = {}
        for queue in self.stats:
            by_topic.setdefault(queue.topic, []).append(queue)
        ordered = sorted(by_topic.values(), key=lambda group: -max(map(figure, group)))
        return [
            queue
            for group in ordered
            for queue in (group[0], *sorted(group[1:], key=lambda queue: -figure(queue)))
        ]

    # Live view.

    def render(self, console: Console) -> RenderableType:
        """The view, at most as large as the terminal."""
        width, height = console.size
        notes = self._notes()
        room = max(height - _LINES_AROUND - len(notes), 1)
        stats = self.sorted_stats()
        shown = stats if len(stats) <= room else stats[: room - 1]
        table = self._table(shown, width, ascii_only=console.options.ascii_only)
        hidden = len(stats) - len(shown)
        rest = [Text(f"   and {format_number(hidden)} more", _QUIET)] if hidden else []
        body = table if stats else Padding(Text("no topics yet", _QUIET), (0, 1))
        return Group(self._title(width), "", body, *rest, "", *notes, self._keys())

    def _title(self, width: int) -> RenderableType:
        topics = sum(not queue.channel for queue in self.stats)
        channels = len(self.stats) - topics
        counts = (
            format_count(self.node_count, "node"),
            format_count(topics, "topic"),
            format_count(channels, "channel"),
        )
        title = Text.assemble((" penstock top", _TITLE), (f"   {' · '.join(counts)}", _QUIET))
        clock = Text(f"every {self.interval_seconds:g} s · {time.strftime('%H:%M:%S')} ", _QUIET)
        line = Table.grid(expand=True)
        line.add_column(no_wrap=True, ratio=1)
        line.add_column(no_wrap=True, justify="right")
        line.add_row(title, clock if width >= 70 else "")
        return line

    def _table(self, stats: list[QueueStats], width: int, *, ascii_only: bool) -> Table:
        """Columns that do not fit are omitted: first the trend, then the least important numbers.
        Long names are truncated before columns are omitted."""
        longest = max(map(_name_width, stats), default=0)
        names_max = max(width - len(_COLUMNS) * _COLUMN_WIDTH, _NAME_WIDTH_MIN)
        room = width - min(max(longest, _NAME_WIDTH_MIN), names_max)
        columns = [each for each in _COLUMNS if room >= each.from_room]
        trend_width = room - len(columns) * _COLUMN_WIDTH
        table = Table(box=None, expand=True, pad_edge=True, header_style=_QUIET)
        table.add_column("topic / channel", no_wrap=True, overflow="ellipsis", ratio=1)
        for column in columns:
            heading = Text(column.name, "bold" if column.order == self.order else _QUIET)
            table.add_column(heading, justify="right", no_wrap=True, min_width=7)
        if trend_width < _TREND_WIDTH_MIN:
            for queue in stats:
                table.add_row(_name(queue), *(column.cell(queue) for column in columns))
            return table
        trend_width = min(trend_width, _TREND_WIDTH_MAX)
        table.add_column("trend", justify="right", no_wrap=True, min_width=trend_width)
        for queue in stats:
            cells = (column.cell(queue) for column in columns)
            table.add_row(_name(queue), *cells, _trend(queue, trend_width, ascii_only=ascii_only))
        return table

    def _notes(self) -> list[Text]:
        """Draining nodes and errors, one per line."""
        notes = [f"{address} is draining" for address in self.draining]
        notes += [str(failure) for failure in self.failures[:3]]
        if len(self.failures) > 3:
            notes.append(f"and {len(self.failures) - 3} more errors")
        return [Text(f" {note}", _ALARM, no_wrap=True, overflow="ellipsis") for note in notes]

    def _keys(self) -> Text:
        line = Text(" ", no_wrap=True, overflow="crop")
        line.append("q", "bold").append(" quit   sort by ", _QUIET)
        for name, order in SORT_KEYS.items():
            style = "bold" if name == self.order else _QUIET
            line.append(order.key, "bold").append(f" {order.label}  ", style)
        return line

    # Plain lines.

    def lines(self) -> list[str]:
        """The table as plain lines."""
        heading = ("TOPIC", "CHANNEL", "DEPTH", "IN-FLIGHT", "DEFERRED", "CLIENTS", "IN/S", "OUT/S")
        rows = [heading, *map(_plain_cells, self.sorted_stats())]
        return format_table(rows, right=frozenset(range(2, len(heading))))


async def watch(cluster: Cluster, view: TopView, console: Console, *, count: int | None) -> None:
    """Show the live view until the user exits. Raises HttpRequestError if no node answers at
    first."""
    view.observe(await cluster.snapshot())

    async def refresh() -> None:
        try:
            view.observe(await cluster.snapshot())
        except HttpRequestError as failure:
            view.record_failure(failure)

    screen = LiveScreen(
        console,
        lambda: view.render(console),
        refresh,
        interval_seconds=view.interval_seconds,
        count=count,
        on_key=view.press,
    )
    await screen.run()


async def print_tables(
    cluster: Cluster,
    view: TopView,
    output: StdoutWriter,
    warn: Callable[[str], None],
    *,
    count: int | None,
) -> None:
    """Write a table at each interval, the first after one interval. Raises HttpRequestError if no
    node answers, and the errors of `output`."""
    loop = asyncio.get_running_loop()
    view.observe(await cluster.snapshot())
    next_at, done = loop.time(), 0
    while count is None or done < count:
        next_at = max(next_at + view.interval_seconds, loop.time())
        await asyncio.sleep(next_at - loop.time())
        view.observe(await cluster.snapshot())
        for failure in view.failures:
            warn(str(failure))
        separator = "\n" if done else ""
        table = separator + "\n".join(view.lines()) + "\n"
        await output.write(table.encode())
        done += 1


def _name_width(queue: QueueStats) -> int:
    return len(f"  {queue.channel}" if queue.channel else queue.topic) + 7 * queue.is_paused


def _name(queue: QueueStats) -> Text:
    name = Text(f"  {queue.channel}") if queue.channel else Text(queue.topic, _TITLE)
    return name.append(" paused", _ALARM) if queue.is_paused else name


def _figure(number: int) -> Text:
    return Text(format_number(number), "" if number else _QUIET)


def _rate(rate: float | None) -> Text:
    return Text(format_rate(rate), "" if rate else _QUIET)


def _of_channel(figure: Callable[[QueueStats], Text]) -> Callable[[QueueStats], Text]:
    """The cell for a channel; empty for a topic."""
    return lambda queue: figure(queue) if queue.channel else Text("")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    order: str
    cell: Callable[[QueueStats], Text]
    from_room: int = 0
    """Minimum width beside the names at which the column is shown."""


_COLUMNS = (
    _Column("depth", "depth", lambda queue: _figure(queue.depth)),
    _Column("in flight", "in-flight", _of_channel(lambda queue: _figure(queue.in_flight)), 36),
    _Column("deferred", "", _of_channel(lambda queue: _figure(queue.deferred)), 58),
    _Column("clients", "clients", _of_channel(lambda queue: _figure(queue.clients)), 48),
    _Column("in/s", "in", lambda queue: _rate(_ingress(queue))),
    _Column("out/s", "out", _of_channel(lambda queue: _rate(_finished(queue)))),
)


def _trend(queue: QueueStats, width: int, *, ascii_only: bool) -> Text:
    """Sparkline of the ingress of a topic, or of the finished messages of a channel."""
    values = [rates.finished if queue.channel else rates.ingress for rates in queue.history]
    style = "green" if queue.channel else "cyan"
    return Text(sparkline(values, width, ascii_only=ascii_only), style)


def _plain_cells(queue: QueueStats) -> tuple[str, ...]:
    ingress, finished = _plain_rate(_ingress(queue)), _plain_rate(_finished(queue))
    if not queue.channel:
        return queue.topic, "-", str(queue.depth), "-", "-", "-", ingress, "-"
    figures = (queue.depth, queue.in_flight, queue.deferred, queue.clients)
    return queue.topic, queue.channel, *map(str, figures), ingress, finished


def _plain_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"
