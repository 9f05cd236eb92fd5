"""`penstock log dump`: print one file of a log as text.

Prints the batches of a segment (with --messages, also the messages), the changes in a cursor
journal, or the entries of an index. Damaged bytes are reported in place and skipped.
"""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import click

from penstock.common.errors import CorruptBatchError, StorageError
from penstock.protocol import frames as wire
from penstock.storage.batch import BadBytes, BatchHeader, scan_batches, split_frames
from penstock.storage.cursor_journal import BadJournalRecord, scan_journal
from penstock.storage.files import File, RealFiles, storage_error
from penstock.storage.index import DeferredIndex, maybe_checkpoint, maybe_deferred, maybe_index
from penstock.storage.layout import maybe_generation, maybe_index_seq

__all__ = ["command"]


@click.group("log")
def command() -> None:
    """Inspect the files of a log."""


@command.command("dump")
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--messages", is_flag=True, help="Print every message, not only the batches.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of lines.")
def dump(file: str, *, messages: bool, limit: int | None) -> None:
    """Print a segment (.log), a cursor journal (cursors.N) or an index (.index)."""
    for line in islice(_lines_of(file, messages=messages), limit):
        click.echo(line)


def _lines_of(path: str, *, messages: bool) -> Iterator[str]:
    try:
        with contextlib.closing(RealFiles().open(path, "read")) as file:
            yield from _lines(Path(path).name, file, messages=messages)
    except OSError as error:
        raise storage_error("read", path, error) from error


def _lines(name: str, file: File, *, messages: bool) -> Iterator[str]:
    if maybe_generation(name) is not None:
        return _journal_lines(file.read(0, file.size()))
    if maybe_index_seq(name) is not None:
        return _index_lines(name, file.read(0, file.size()))
    return _segment_lines(file, messages=messages)


def _segment_lines(file: File, *, messages: bool) -> Iterator[str]:
    for found in scan_batches(file, 0, file.size()):
        if isinstance(found, BadBytes):
            yield f"{found.position:>12}  BAD  {found.end - found.position} bytes: {found.reason}"
            continue
        yield _batch_line(found.header)
        if messages:
            yield from _message_lines(found.header, found.frames)


def _batch_line(batch: BatchHeader) -> str:
    plural = "s" if batch.message_count > 1 else ""
    due = f"  due {_time(batch.due_ns)}" if batch.due_ns else ""
    return (
        f"{batch.position:>12}  {batch.first_seq} to {batch.next_seq - 1}"
        f"  {batch.message_count} message{plural}, {batch.frames_size} bytes"
        f"  {_time(batch.timestamp_ns)}{due}"
    )


def _message_lines(batch: BatchHeader, frames: bytes) -> Iterator[str]:
    try:
        for seq, frame in enumerate(split_frames(batch, frames), batch.first_seq):
            yield f"{'':>14}{seq}  {_message(frame)}"
    except CorruptBatchError as error:
        yield f"{'':>14}BAD  {error}"


def _message(frame: bytes) -> str:
    if len(frame) < wire.MESSAGE_HEADER_BYTES:
        return f"not a message: {frame!r}"
    identity = wire.message_id(frame).decode("ascii", "replace")
    return f"{identity}  {_time(wire.timestamp_ns(frame))}  {wire.body(frame)!r}"


def _journal_lines(data: bytes) -> Iterator[str]:
    for record in scan_journal(data):
        if isinstance(record, BadJournalRecord):
            size = record.end - record.position
            yield f"{record.position:>12}  BAD  {size} bytes: {record.reason}"
            continue
        for change in record.changes:
            yield f"{record.position:>12}  {change}"


def _index_lines(name: str, data: bytes) -> Iterator[str]:
    checkpoint, index = maybe_checkpoint(data), maybe_index(data)
    if checkpoint is None or index is None:
        raise StorageError(f"{name} is damaged; the next start makes it again")
    yield str(checkpoint)
    for position, seq, latest_ns in index.entries():
        yield f"{position:>12}  {seq}  before it up to {_time(latest_ns)}"
    for batches in (maybe_deferred(data) or DeferredIndex()).between(0, checkpoint.next_seq):
        for first_seq, next_seq, due_ns in batches:
            yield f"{'':>12}  {first_seq} to {next_seq - 1}  due {_time(due_ns)}"


def _time(ns: int) -> str:
    """Format a time in UTC with nanoseconds, which datetime lacks."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
