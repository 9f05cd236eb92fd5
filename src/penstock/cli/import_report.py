"""What `penstock import` says of what it found. Pure."""

from collections.abc import Iterator

from penstock.cli.text_table import text_table
from penstock.migration.data_import import DAMAGE_NAME, Found
from penstock.migration.old_queue import QueueReport
from penstock.tools.figures import counted, grouped

__all__ = ["lines_of"]

_HEAD = ("topic", "channel", "depth", "found", "bytes")
_NUMBERS = frozenset({2, 3, 4})


def lines_of(found: Found, data_path: str | None) -> Iterator[str]:
    """A table of all queues, what is worth knowing of them, and the outcome. Without a `data_path`
    nothing was written."""
    reports = sorted(found.reports, key=lambda each: (each.queue.topic, each.queue.channel or ""))
    yield from text_table([_HEAD, *map(_row, reports)], right=_NUMBERS)
    for note in [*found.notes, *(note for report in reports for note in _notes(report))]:
        yield f"note: {note}"
    for report in reports:
        for damage in report.damage:
            kept = f"; kept in {data_path}/{DAMAGE_NAME}" if data_path else ""
            yield f"{'note' if damage.is_leftover else 'DAMAGE'}: {damage}{kept}"
        if _missing(report) > 0:
            what = counted(_missing(report), "message")
            yield f"MISSING: {report.queue} should have {what} more than could be found"
    yield _outcome(found, data_path)


def _row(report: QueueReport) -> tuple[str, ...]:
    topic, channel = report.queue
    depth = "?" if report.depth is None and report.found else grouped(report.depth or 0)
    return topic, channel or "-", depth, grouped(report.found), grouped(report.body_bytes)


def _notes(report: QueueReport) -> Iterator[str]:
    yield from report.notes
    if report.late:
        what = counted(report.late, "message")
        yield f"{report.queue} has {what} from just before a crash, which its depth does not count"
    elif _missing(report) < 0:
        what = counted(-_missing(report), "message")
        yield f"{report.queue} has {what} more than its depth says"


def _missing(report: QueueReport) -> int:
    return 0 if report.depth is None else report.depth - (report.found - report.late)


def _outcome(found: Found, data_path: str | None) -> str:
    topics = counted(len({report.queue.topic for report in found.reports}), "topic")
    channels = counted(sum(report.queue.channel is not None for report in found.reports), "channel")
    messages = counted(sum(report.found for report in found.reports), "message")
    all_of_it = f"{messages} of {topics} and {channels}"
    if data_path is None:
        return f"{all_of_it} can be imported; nothing has been written"
    rest = "" if found.is_complete else "; what is missing or damaged stands above"
    return f"{all_of_it} imported into {data_path}, read back and compared{rest}"
