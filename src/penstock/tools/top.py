"""`penstock top`: all topics and channels of a cluster, as a picture that moves or as lines.

On a terminal it fills the screen; keys change the order. In a pipe it is a table of plain lines,
every row complete, for `grep` and `awk`.
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

# What a picture has beside its rows: title, blank line, heading, blank line, keys.
_LINES_AROUND = 5

_NAME_WIDTH_MIN = 24
_TREND_WIDTH_MIN, _TREND_WIDTH_MAX = 10, 30
_COLUMN_WIDTH = 10  # of a figure and the space beside it, on average

_QUIET, _TITLE, _ALARM = "dim", "bold", "yellow"


def _finished(flow: QueueStats) -> float | None:
    return flow.rates.finished if flow.rates else None


def _ingress(flow: QueueStats) -> float | None:
    return flow.rates.ingress if flow.rates else None


@dataclass(frozen=True, slots=True)
class _SortKey:
    key: str
    label: str
    figure: Callable[[QueueStats], float]


SORT_KEYS = {
    "name": _SortKey("n", "name", lambda _flow: 0.0),
    "depth": _SortKey("d", "depth", lambda flow: flow.depth),
    "in-flight": _SortKey("f", "in flight", lambda flow: flow.in_flight),
    "in": _SortKey("i", "in/s", lambda flow: _ingress(flow) or 0.0),
    "out": _SortKey("o", "out/s", lambda flow: _finished(flow) or 0.0),
    "clients": _SortKey("c", "clients", lambda flow: flow.clients),
}
"""What rows can be sorted by; the largest figures come first, names from A to Z."""


@dataclass(slots=True)
class TopView:
    """The latest figures, and how they are to be shown."""

    order: str = "name"
    interval_seconds: float = 2.0
    flows: list[QueueStats] = field(default_factory=list)
    node_count: int = 0
    draining: list[str] = field(default_factory=list)
    failures: list[HttpRequestError] = field(default_factory=list)
    _meter: QueueMeter = field(default_factory=QueueMeter)

    def observe(self, snapshot: ClusterStats) -> None:
        """Takes new figures in."""
        self.flows = self._meter.observe(snapshot)
        self.node_count = len(snapshot.nodes)
        self.draining = [node.address for node in snapshot.nodes if node.is_draining]
        self.failures = snapshot.failures

    def miss(self, failure: HttpRequestError) -> None:
        """Nobody answered: what was known last is all there is to show."""
        self.node_count = 0
        self.failures = [failure]

    def press(self, key: str) -> None:
        """A key that names an order sorts by it."""
        for name, order in SORT_KEYS.items():
            if order.key == key.lower():
                self.order = name

    def sorted_flows(self) -> list[QueueStats]:
        """Topics in order, each followed by its channels in the same order.

        A topic stands where its largest channel would, or it with its own figure.
        """
        figure = SORT_KEYS[self.order].figure
        families: dict[str, list[QueueStats]] = {}
        for flow in self.flows:
            families.setdefault(flow.topic, []).append(flow)
        ordered = sorted(families.values(), key=lambda family: -max(map(figure, family)))
        return [
            flow
            for family in ordered
            for flow in (family[0], *sorted(family[1:], key=lambda each: -figure(each)))
        ]

    # On a terminal.

    def render(self, console: Console) -> RenderableType:
        """A picture as large as the terminal, or smaller."""
        width, height = console.size
        notes = self._notes()
        room = max(height - _LINES_AROUND - len(notes), 1)
        flows = self.sorted_flows()
        shown = flows if len(flows) <= room else flows[: room - 1]
        table = self._table(shown, width, ascii_only=console.options.ascii_only)
        hidden = len(flows) - len(shown)
        rest = [Text(f"   and {format_number(hidden)} more", _QUIET)] if hidden else []
        body = table if flows else Padding(Text("no topics yet", _QUIET), (0, 1))
        return Group(self._title(width), "", body, *rest, "", *notes, self._keys())

    def _title(self, width: int) -> RenderableType:
        topics = sum(not flow.channel for flow in self.flows)
        channels = len(self.flows) - topics
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

    def _table(self, flows: list[QueueStats], width: int, *, ascii_only: bool) -> Table:
        """What does not fit is left out: first the trend, then the least urgent figures. Long names
        are cut before figures are."""
        longest = max(map(_name_width, flows), default=0)
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
            for flow in flows:
                table.add_row(_name(flow), *(column.cell(flow) for column in columns))
            return table
        trend_width = min(trend_width, _TREND_WIDTH_MAX)
        table.add_column("trend", justify="right", no_wrap=True, min_width=trend_width)
        for flow in flows:
            cells = (column.cell(flow) for column in columns)
            table.add_row(_name(flow), *cells, _trend(flow, trend_width, ascii_only=ascii_only))
        return table

    def _notes(self) -> list[Text]:
        """What is not as it should be, in one line each."""
        notes = [f"{address} is draining" for address in self.draining]
        notes += [str(failure) for failure in self.failures[:3]]
        if len(self.failures) > 3:
            notes.append(f"and {len(self.failures) - 3} more that do not answer")
        return [Text(f" {note}", _ALARM, no_wrap=True, overflow="ellipsis") for note in notes]

    def _keys(self) -> Text:
        line = Text(" ", no_wrap=True, overflow="crop")
        line.append("q", "bold").append(" quit   sort by ", _QUIET)
        for name, order in SORT_KEYS.items():
            style = "bold" if name == self.order else _QUIET
            line.append(order.key, "bold").append(f" {order.label}  ", style)
        return line

    # In a pipe.

    def lines(self) -> list[str]:
        """The same as plain text."""
        heading = ("TOPIC", "CHANNEL", "DEPTH", "IN-FLIGHT", "DEFERRED", "CLIENTS", "IN/S", "OUT/S")
        rows = [heading, *map(_plain_cells, self.sorted_flows())]
        return format_table(rows, right=frozenset(range(2, len(heading))))


async def watch(cluster: Cluster, view: TopView, console: Console, *, count: int | None) -> None:
    """Shows it live, until the user leaves. Raises HttpRequestError if nobody answers at first."""
    view.observe(await cluster.snapshot())

    async def refresh() -> None:
        try:
            view.observe(await cluster.snapshot())
        except HttpRequestError as failure:
            view.miss(failure)

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
    """Writes a table every so often, the first when there are rates to be shown.

    Raises HttpRequestError if nobody answers, and what `output` raises.
    """
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


def _name_width(flow: QueueStats) -> int:
    return len(f"  {flow.channel}" if flow.channel else flow.topic) + 7 * flow.is_paused


def _name(flow: QueueStats) -> Text:
    name = Text(f"  {flow.channel}") if flow.channel else Text(flow.topic, _TITLE)
    return name.append(" paused", _ALARM) if flow.is_paused else name


def _figure(number: int) -> Text:
    return Text(format_number(number), "" if number else _QUIET)


def _rate(rate: float | None) -> Text:
    return Text(format_rate(rate), "" if rate else _QUIET)


def _of_channel(figure: Callable[[QueueStats], Text]) -> Callable[[QueueStats], Text]:
    """A topic has no such figure."""
    return lambda flow: figure(flow) if flow.channel else Text("")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    order: str
    cell: Callable[[QueueStats], Text]
    from_room: int = 0
    """How much room beside the names it takes for this column to be shown."""


_COLUMNS = (
    _Column("depth", "depth", lambda flow: _figure(flow.depth)),
    _Column("in flight", "in-flight", _of_channel(lambda flow: _figure(flow.in_flight)), 36),
    _Column("deferred", "", _of_channel(lambda flow: _figure(flow.deferred)), 58),
    _Column("clients", "clients", _of_channel(lambda flow: _figure(flow.clients)), 48),
    _Column("in/s", "in", lambda flow: _rate(_ingress(flow))),
    _Column("out/s", "out", _of_channel(lambda flow: _rate(_finished(flow)))),
)


def _trend(flow: QueueStats, width: int, *, ascii_only: bool) -> Text:
    """What comes into a topic, and what a channel gets done."""
    values = [rates.finished if flow.channel else rates.ingress for rates in flow.trail]
    style = "green" if flow.channel else "cyan"
    return Text(sparkline(values, width, ascii_only=ascii_only), style)


def _plain_cells(flow: QueueStats) -> tuple[str, ...]:
    ingress, finished = _plain_rate(_ingress(flow)), _plain_rate(_finished(flow))
    if not flow.channel:
        return flow.topic, "-", str(flow.depth), "-", "-", "-", ingress, "-"
    figures = (flow.depth, flow.in_flight, flow.deferred, flow.clients)
    return flow.topic, flow.channel, *map(str, figures), ingress, finished


def _plain_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"
