"""Progress of running queries: metrics from Spark's progress reports, and their display.

    meter = QueryMeter("orders", target=offsets_at_start)
    with progress_display("archive") as show:
        meter.observe(query.recentProgress)
        show([meter.metrics(now_seconds)])

Offsets are nested by topic and log (`pyspark_nsq.offsets`). The lag of a query is the number of
messages in the logs that it has not read. With a target, the number of remaining messages is known.
The display goes to stderr: a table on a terminal, a line every few seconds elsewhere.
"""

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.tools.display import format_number, format_rate
from pyspark_nsq.offsets import JsonOffsets, Offsets, from_json

__all__ = [
    "ObservedCounts",
    "QueryMeter",
    "QueryMetrics",
    "RateMeter",
    "ShowMetrics",
    "format_line",
    "metrics_table",
    "parse_offsets",
    "progress_display",
]

# Period over which a rate is averaged.
RATE_SECONDS = 20.0

# Minimum number of samples to average, even if they span more than RATE_SECONDS.
SAMPLES_MIN = 4

# A sample is overdue after this multiple of the longest interval between samples; the rate then
# decreases.
OVERDUE_FACTOR = 2.0

# Minimum interval between two lines if stderr is not a terminal.
LINE_SECONDS = 5.0

BAR_WIDTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMetrics:
    """Current metrics of one query."""

    name: str
    batches: int = 0
    rows: int = 0
    """Rows read since the start."""
    rows_per_second: float | None = None
    batch_seconds: float | None = None
    """Duration of the last batch."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """Messages not read yet, by log; by topic and log if there are several topics."""
    remaining: int | None = None
    """Remaining messages, if the query has an end."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Other counters of the job, such as `rejected`."""

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())

    @property
    def seconds_remaining(self) -> float | None:
        """Estimated time to the end; None if unknown."""
        if self.remaining is None or not self.rows_per_second:
            return None
        return self.remaining / self.rows_per_second

    @property
    def fraction_done(self) -> float | None:
        """Completed fraction; None if the query has no end."""
        if self.remaining is None:
            return None
        total = self.rows + self.remaining
        return self.rows / total if total else 1.0


class RateMeter:
    """Rate of a count that grows batch by batch."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def rate(self, now_seconds: float, count: int) -> float | None:
        """Current rate per second; None for the first count. It stays constant between two samples,
        until the next one is overdue."""
        samples = self._samples
        if not samples or samples[-1][1] != count:
            samples.append((now_seconds, count))
        while len(samples) > SAMPLES_MIN and samples[1][0] <= now_seconds - RATE_SECONDS:
            samples.popleft()
        (first_at, first_count), (last_at, last_count) = samples[0], samples[-1]
        longest = max((after[0] - before[0] for before, after in pairwise(samples)), default=0.0)
        is_overdue = now_seconds - last_at > OVERDUE_FACTOR * longest
        seconds = (now_seconds if is_overdue else last_at) - first_at
        return (last_count - first_count) / seconds if seconds > 0 else None


class QueryMeter:
    """Computes the metrics of a query from Spark's progress reports, counting each report once."""

    def __init__(
        self,
        name: str,
        *,
        target: Mapping[Any, int] | None = None,
        counts: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """`target`: the offsets at which the query ends. `counts` returns the job's counters; its
        `messages` replaces Spark's row count, which includes rows that are read twice."""
        self.name = name
        self._target = target
        self._counts = counts
        self._seen: tuple[str, int] = ("", -1)
        self._batches = 0
        self._rows = 0
        self._batch_seconds: float | None = None
        self._read: Offsets = {}
        self._latest: Offsets = {}
        self._meter = RateMeter()

    def observe(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Add reports of one query, oldest first. Reports seen before are skipped."""
        for report in reports:
            at = str(report["timestamp"]), int(report["batchId"])
            if at > self._seen:
                self._seen = at
                self._add(report)

    def metrics(self, now_seconds: float) -> QueryMetrics:
        """Current metrics. `now_seconds` is from a monotonic clock."""
        counters = dict(self._counts()) if self._counts is not None else {}
        rows = counters.pop("messages", self._rows)
        return QueryMetrics(
            name=self.name,
            batches=self._batches,
            rows=rows,
            rows_per_second=self._meter.rate(now_seconds, rows),
            batch_seconds=self._batch_seconds,
            lag=self._lag(),
            remaining=self._remaining(),
            counters=counters,
        )

    def _add(self, report: Mapping[str, Any]) -> None:
        rows = int(report["numInputRows"])
        if rows:
            self._batches += 1
            self._rows += rows
            self._batch_seconds = report["durationMs"].get("triggerExecution", 0) / 1000
        read: Offsets = {}
        for source in report["sources"]:
            read |= parse_offsets(source["endOffset"])
            self._latest |= parse_offsets(source["latestOffset"])
        self._read = read or self._read  # without logs that were deleted

    def _lag(self) -> dict[str, int]:
        several = len({key.topic for key in self._read}) > 1
        return {
            f"{key.topic}/{key.short_id}" if several else key.short_id: max(
                self._latest.get(key, seq) - seq, 0
            )
            for key, seq in sorted(self._read.items())
        }

    def _remaining(self) -> int | None:
        if self._target is None or not self._read:
            return None
        return sum(max(seq - self._read.get(key, seq), 0) for key, seq in self._target.items())


class ObservedCounts:
    """Sums of the metrics that Spark has observed in a query's batches.

    The newest batch is kept separately from the sums, because Spark may report it again.
    """

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()
        self._newest_id = -1
        self._newest: Counter[str] = Counter()

    def totals(self, reports: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """Adds reports, oldest first, and returns the sums. A report that was added before changes
        nothing."""
        for report in reports:
            if report["batchId"] < self._newest_id:
                continue
            counts: Counter[str] = Counter()
            for row in (report["observedMetrics"] or {}).values():
                counts.update(row.asDict())
            if report["batchId"] > self._newest_id:
                self._before.update(self._newest)
                self._newest_id, self._newest = report["batchId"], counts
            elif counts:
                self._newest = counts
        totals = self._before.copy()
        totals.update(self._newest)
        return dict(totals)


def parse_offsets(text: str | JsonOffsets | None) -> Offsets:
    """Parse offsets from a report; empty if missing or from a source of another kind."""
    try:
        nested = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(nested, dict) or not all(isinstance(each, dict) for each in nested.values()):
        return {}
    return from_json(nested)


# Display.


ShowMetrics = Callable[[Sequence[QueryMetrics]], None]


@contextmanager
def progress_display(title: str) -> Iterator[ShowMetrics]:
    """Yield a function that displays the metrics of all queries."""
    console = Console(stderr=True)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda metrics: live.update(metrics_table(title, metrics), refresh=True)
    else:
        yield _LineDisplay()


class _LineDisplay:
    """Prints a line for each query every LINE_SECONDS, if it has changed."""

    def __init__(self) -> None:
        self._next_at = time.monotonic() + LINE_SECONDS
        self._last: dict[str, str] = {}

    def __call__(self, metrics: Sequence[QueryMetrics]) -> None:
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + LINE_SECONDS
        for each in metrics:
            line = format_line(each)
            if self._last.get(each.name) != line:
                self._last[each.name] = line
                print(line, file=sys.stderr, flush=True)  # noqa: T201


def format_line(metrics: QueryMetrics) -> str:
    """`orders: 120,000 messages, 35,120/s, batch 1.2 s, lag 4,000 (7c1f04b2: 4,000), 12 s left`."""
    parts = [
        f"{metrics.name}: {format_number(metrics.rows)} messages",
        f"{format_rate(metrics.rows_per_second)}/s",
    ]
    if metrics.batch_seconds is not None:
        parts.append(f"batch {metrics.batch_seconds:.1f} s")
    parts += [f"{format_number(count)} {name}" for name, count in metrics.counters.items() if count]
    if metrics.lag:
        parts.append(f"lag {_lag(metrics)}")
    if metrics.remaining is not None:
        parts.append(f"{format_duration(metrics.seconds_remaining)} left")
    return ", ".join(parts)


def metrics_table(title: str, metrics: Sequence[QueryMetrics]) -> Table:
    """Table for a terminal."""
    names = list(dict.fromkeys(name for each in metrics for name in each.counters))
    has_end = any(each.remaining is not None for each in metrics)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for heading in ("messages", "in/s", "batch", *names, "lag"):
        table.add_column(heading, justify="right")
    if has_end:
        table.add_column("done", width=BAR_WIDTH)
        table.add_column("")
        table.add_column("left", justify="right")
    table.add_column("by log", style="dim")
    for each in metrics:
        cells: list[RenderableType] = [
            Text(each.name),
            format_number(each.rows),
            format_rate(each.rows_per_second),
            "-" if each.batch_seconds is None else f"{each.batch_seconds:.1f} s",
            *(format_number(each.counters.get(name, 0)) for name in names),
            format_number(each.total_lag),
        ]
        if has_end:
            bar = ProgressBar(1.0, each.fraction_done or 0.0, width=BAR_WIDTH)
            cells += [bar, _percent(each.fraction_done), format_duration(each.seconds_remaining)]
        table.add_row(*cells, Text(_by_log(each)))
    return table


def format_duration(seconds: float | None) -> str:
    """`8 s`, `2 min 05 s`, `3 h 20 min`; `-` if unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.0%}"


def _lag(metrics: QueryMetrics) -> str:
    by_log = f" ({_by_log(metrics)})" if metrics.total_lag and len(metrics.lag) > 1 else ""
    return format_number(metrics.total_lag) + by_log


def _by_log(metrics: QueryMetrics) -> str:
    return "  ".join(f"{log_id}: {format_number(count)}" for log_id, count in metrics.lag.items())
