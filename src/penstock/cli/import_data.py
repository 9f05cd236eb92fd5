"""`penstock import`: import the data path of the Go nsqd."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.command_options import CommandWithExamples
from penstock.common.errors import StorageError
from penstock.tools.display import format_count, format_number, format_table, progress_bar

if TYPE_CHECKING:
    from penstock.migration.data_import import ImportReport
    from penstock.migration.old_data_path import QueueReport

__all__ = ["command"]

_HEAD = ("topic", "channel", "depth", "found", "bytes")
_NUMBERS = frozenset({2, 3, 4})


@click.command(
    "import",
    cls=CommandWithExamples,
    examples=[
        "penstock import /var/lib/nsq --dry-run",
        "penstock import /var/lib/nsq --data-path /var/lib/penstock",
    ],
)
@click.argument("old_data_path", type=click.Path(), metavar="OLD_DATA_PATH")
@click.option("--data-path", type=click.Path(), help="Target: the --data-path of Penstock's nsqd.")
@click.option("--dry-run", is_flag=True, help="Read and count everything; write nothing.")
@click.option(
    "--node-id",
    type=click.IntRange(0, 1023),
    help="The --node-id of Penstock's nsqd.  [default: the id stored in --data-path]",
)
@click.pass_context
def command(
    context: click.Context,
    old_data_path: str,
    *,
    data_path: str | None,
    dry_run: bool,
    node_id: int | None,
) -> None:
    """Import the data path of the Go nsqd.

    Imports topics, channels, pauses and all remaining messages, in order, with their timestamps and
    attempts. Stop the old nsqd first. OLD_DATA_PATH is not changed. The written data is read back
    and compared before it becomes valid, so an interrupted import can be run again.

    Exits with 1 if messages are missing or damaged. All other messages are imported; damaged bytes
    are kept in DATA_PATH/import-damage.
    """
    from penstock.common.process import raise_open_files_limit  # noqa: PLC0415
    from penstock.migration.data_import import (  # noqa: PLC0415
        bytes_to_read,
        finish_interrupted,
        import_data,
        scan_old_data,
    )

    if data_path is None and not dry_run:
        raise click.UsageError("pass --data-path or --dry-run")
    if data_path is not None and Path(data_path).resolve() == Path(old_data_path).resolve():
        raise click.UsageError("--data-path must differ from OLD_DATA_PATH")
    if data_path is not None and not dry_run and (topics := finish_interrupted(data_path)):
        click.echo(f"completed an interrupted import: {', '.join(topics)}")
        return
    raise_open_files_limit()  # all channels of a topic are read in parallel
    try:
        with progress_bar(bytes_to_read(old_data_path)) as bar:

            def on_read(size_bytes: int) -> None:
                if bar is not None:
                    bar.advance(bar.task_ids[0], size_bytes)

            if dry_run or data_path is None:
                found = scan_old_data(old_data_path, on_read)
            else:
                found = import_data(old_data_path, data_path, node_id=node_id, on_read=on_read)
    except KeyboardInterrupt:
        raise StorageError("interrupted: run the same command again") from None
    for line in _report_lines(found, None if dry_run else data_path):
        click.echo(line)
    context.exit(0 if found.is_complete else 1)


def _report_lines(found: "ImportReport", data_path: str | None) -> Iterator[str]:
    """The report: a table of all queues, notes, damage and the result. `data_path` is None after a
    dry run."""
    from penstock.migration.data_import import DAMAGE_NAME  # noqa: PLC0415

    reports = sorted(found.reports, key=lambda each: (each.queue.topic, each.queue.channel or ""))
    yield from format_table([_HEAD, *map(_row, reports)], right=_NUMBERS)
    for note in [*found.notes, *(note for report in reports for note in _notes(report))]:
        yield f"note: {note}"
    for report in reports:
        for damage in report.damage:
            kept = f"; kept in {data_path}/{DAMAGE_NAME}" if data_path else ""
            yield f"{'note' if damage.is_leftover else 'DAMAGE'}: {damage}{kept}"
        if _missing(report) > 0:
            what = format_count(_missing(report), "message")
            yield f"MISSING: {what} of {report.queue}"
    yield _outcome(found, data_path)


def _row(report: "QueueReport") -> tuple[str, ...]:
    topic, channel = report.queue
    depth = "?" if report.depth is None and report.found else format_number(report.depth or 0)
    return (
        topic,
        channel or "-",
        depth,
        format_number(report.found),
        format_number(report.body_bytes),
    )


def _notes(report: "QueueReport") -> Iterator[str]:
    yield from report.notes
    if report.late:
        what = format_count(report.late, "message")
        yield f"{report.queue} has {what} written just before a crash, not counted in its depth"
    elif _missing(report) < 0:
        what = format_count(-_missing(report), "message")
        yield f"{report.queue} has {what} more than its depth says"


def _missing(report: "QueueReport") -> int:
    return 0 if report.depth is None else report.depth - (report.found - report.late)


def _outcome(found: "ImportReport", data_path: str | None) -> str:
    topics = format_count(len({report.queue.topic for report in found.reports}), "topic")
    channels = format_count(
        sum(report.queue.channel is not None for report in found.reports), "channel"
    )
    messages = format_count(sum(report.found for report in found.reports), "message")
    total = f"{messages} of {topics} and {channels}"
    if data_path is None:
        return f"{total} can be imported; nothing was written"
    rest = "" if found.is_complete else "; see above for missing or damaged data"
    return f"{total} imported into {data_path}, read back and compared{rest}"
