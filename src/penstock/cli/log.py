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
from penstock.storage.attributes import MessageAttributes, decode_attributes
from penstock.storage.batch import (
    SEGMENT_HEADER_BYTES,
    BadBytes,
    BatchHeader,
    StoredBatch,
    checksum_seed,
    find_seed,
    maybe_segment_header,
    scan_batches,
    split_frames,
)
from penstock.storage.check import stored_log_id
from penstock.storage.cursor_journal import BadJournalRecord, SetLogId, scan_journal
from penstock.storage.files import File, RealFiles, storage_error
from penstock.storage.index import (
    DeferredIndex,
    index_seed,
    maybe_checkpoint,
    maybe_deferred,
    maybe_index,
)
from penstock.storage.layout import LOG_ID_BYTES, maybe_generation, maybe_index_seq, segment_name

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
            yield from _lines(Path(path), file, messages=messages)
    except OSError as error:
        raise storage_error("read", path, error) from error


def _lines(path: Path, file: File, *, messages: bool) -> Iterator[str]:
    name = path.name
    if maybe_generation(name) is not None:
        return _journal_lines(file.read(0, file.size()))
    if maybe_index_seq(name) is not None:
        return _index_lines(path, file.read(0, file.size()))
    return _segment_lines(path, file, messages=messages)


def _segment_lines(path: Path, file: File, *, messages: bool) -> Iterator[str]:
    header = maybe_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
    if header is not None:
        yield f"{0:>12}  log {header.log_id.hex()}, segment {header.first_seq}"
    seed = checksum_seed(header.log_id) if header else find_seed(file, _log_id(path.parent))
    for found in scan_batches(file, 0, file.size(), seed):
        if isinstance(found, BadBytes):
            yield f"{found.position:>12}  BAD  {found.end - found.position} bytes: {found.reason}"
            continue
        yield _batch_line(found.header)
        if messages:
            yield from _message_lines(found)


def _log_id(folder: Path) -> bytes:
    # A log without an id is of format 1, whose checksums do not depend on it.
    return stored_log_id(RealFiles(), str(folder)) or bytes(LOG_ID_BYTES)


def _batch_line(batch: BatchHeader) -> str:
    plural = "s" if batch.message_count > 1 else ""
    due = f"  due {_time(batch.due_ns)}" if batch.due_ns else ""
    epoch = f"  epoch {batch.epoch}" if batch.epoch else ""
    return (
        f"{batch.position:>12}  {batch.first_seq} to {batch.next_seq - 1}"
        f"  {batch.message_count} message{plural}, {batch.frames_size} bytes"
        f"  {_time(batch.timestamp_ns)}{due}{epoch}"
    )


def _message_lines(found: StoredBatch) -> Iterator[str]:
    batch = found.header
    try:
        frames = split_frames(batch, found.frames)
        attributes = decode_attributes(found.attributes, batch.message_count)
        for offset, (frame, its) in enumerate(zip(frames, attributes, strict=True)):
            yield f"{'':>14}{batch.first_seq + offset}  {_message(frame)}{_shown(its)}"
    except CorruptBatchError as error:
        yield f"{'':>14}BAD  {error}"


def _message(frame: bytes) -> str:
    if len(frame) < wire.MESSAGE_HEADER_BYTES:
        return f"not a message: {frame!r}"
    identity = wire.message_id(frame).decode("ascii", "replace")
    return f"{identity}  {_time(wire.timestamp_ns(frame))}  {wire.body(frame)!r}"


def _shown(attributes: MessageAttributes | None) -> str:
    if attributes is None:
        return ""
    shown = [f"{name}={value!r}" for name, value in attributes.headers]
    if attributes.key is not None:
        shown.insert(0, f"key {attributes.key!r}")
    if attributes.expires_ns:
        shown.append(f"expires {_time(attributes.expires_ns)}")
    if attributes.publisher_id is not None:
        shown.append(f"publisher's id {attributes.publisher_id!r}")
    return "".join(f"  {each}" for each in shown)


def _journal_lines(data: bytes) -> Iterator[str]:
    for record in scan_journal(data):
        if isinstance(record, BadJournalRecord):
            size = record.end - record.position
            yield f"{record.position:>12}  BAD  {size} bytes: {record.reason}"
            continue
        for change in record.changes:
            shown = f"SetLogId({change.log_id.hex()})" if isinstance(change, SetLogId) else change
            yield f"{record.position:>12}  {shown}"


def _index_lines(path: Path, data: bytes) -> Iterator[str]:
    first_seq = maybe_index_seq(path.name)
    assert first_seq is not None
    segment_path = path.with_name(segment_name(first_seq))
    seed: int | None = checksum_seed(_log_id(path.parent))
    if segment_path.exists():
        with contextlib.closing(RealFiles().open(str(segment_path), "read")) as segment:
            seed = find_seed(segment, _log_id(path.parent))
    seed = index_seed(seed, first_seq)
    checkpoint, index = maybe_checkpoint(data, seed), maybe_index(data, seed)
    if checkpoint is None or index is None:
        raise StorageError(
            f"{path.name} is damaged or belongs to another segment; nsqd makes it again"
        )
    yield str(checkpoint)
    for position, seq, latest_ns in index.entries():
        yield f"{position:>12}  {seq}  before it up to {_time(latest_ns)}"
    for batches in (maybe_deferred(data, seed) or DeferredIndex()).between(0, checkpoint.next_seq):
        for first_seq, next_seq, due_ns in batches:
            yield f"{'':>12}  {first_seq} to {next_seq - 1}  due {_time(due_ns)}"


def _time(ns: int) -> str:
    """Format a time in UTC with nanoseconds, which datetime lacks."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
