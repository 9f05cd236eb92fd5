"""One file of a log: batches, one after the other, with sequence numbers that leave no gap.

A segment grows at its end only, and `end` is what this process knows to be batches: bytes beyond it
are the rest of a write that failed, and are never read. `synced_end` is the part of it that an
fsync has covered. What is known of the segment besides its batches (index, timestamps, next number)
is kept beside it in an index file, which only speaks of what is synced. That file is a cache. An
append does not touch it: it then speaks of the first part of the segment.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock.common.errors import CorruptBatchError
from penstock.storage.batch import (
    HEADER_BYTES,
    BadBytes,
    Batch,
    StoredBatch,
    complete_batches,
    decode_header,
    encode_batch,
    scan_batches,
    split_frames,
    verify_frames,
)
from penstock.storage.files import File, FilePool, Files, Mode, write_all
from penstock.storage.index import (
    CHECKPOINT_BYTES,
    INDEX_SPACING_BYTES,
    Checkpoint,
    DeferredBatch,
    DeferredIndex,
    SparseIndex,
    encode_index,
    maybe_checkpoint,
    maybe_deferred,
    maybe_index,
)
from penstock.storage.layout import Issue, index_name, segment_name

__all__ = ["Run", "Segment", "SegmentInfo", "read_checkpoint"]

# How much space is set aside ahead of the appends.
_RESERVE_BYTES = 4 * 1024 * 1024

# Up to here it is cheaper to copy a header and its frames into one piece than to have the system
# gather them.
_COPIED_BYTES_MAX = 16 * 1024

# Bytes read at a time to find the deferred batches of a segment whose index file is damaged.
_SEARCH_BYTES = 256 * 1024

# Readers of one segment whose place is remembered, so that they go on without a search.
_PLACES_MAX = 64


class Run(NamedTuple):
    """A run of consecutive messages as read back."""

    first_seq: int
    frames: list[bytes]
    due_ns: int
    """Wall time before which they must not be delivered; 0 is at once."""

    @property
    def next_seq(self) -> int:
        """The number after that of the last message."""
        return self.first_seq + len(self.frames)


class SegmentInfo(NamedTuple):
    """What there is to tell of a segment."""

    first_seq: int
    next_seq: int
    byte_size: int
    first_timestamp_ns: int
    last_timestamp_ns: int


class Segment:
    """A segment of a log. One thread owns it."""

    def __init__(self, pool: FilePool, folder: str, first_seq: int) -> None:
        self.first_seq = first_seq
        self.next_seq = first_seq
        self.end = 0
        self.synced_end = 0
        self.first_timestamp_ns = 0
        self.last_timestamp_ns = 0
        self.is_broken = False
        """The file has bytes beyond `end` that could not be cut off: nothing may be appended."""
        self.is_removed = False
        self.indexed_end = 0
        """An index file speaks of all there is up to here."""
        self.damage: list[Issue] = []
        """What reading came across; whoever reports it empties the list."""
        self.handle = pool.handle(f"{folder}/{segment_name(first_seq)}")
        self._files: Files = pool.files
        self._remover = pool.remover
        self._index_path = f"{folder}/{index_name(first_seq)}"
        self._index: SparseIndex | None = SparseIndex()
        self._deferred: DeferredIndex | None = DeferredIndex()
        """The batches with a due time; None if they have to be read from the index file."""
        self._deferred_count = 0
        self._entry_at = 0
        """A batch at or after this position may have to be entered."""
        self._prepared_end = 0
        """Appends may go up to here before there is something to be done for them."""
        self._places: dict[int, int] = {}
        self._damaged_at: set[int] = set()

    @property
    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.first_seq, self.next_seq, self.end, self.first_timestamp_ns, self.last_timestamp_ns
        )

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self.end,
            self.next_seq,
            self.first_timestamp_ns,
            self.last_timestamp_ns,
            self._deferred_count,
        )

    @property
    def is_synced(self) -> bool:
        return self.synced_end >= self.end

    # Writing

    def append(self, frames: bytes, count: int, timestamp_ns: int, due_ns: int) -> int:
        """Adds one batch with one write. If that fails it raises OSError and has added nothing.
        Returns `next_seq`."""
        position, first_seq = self.end, self.next_seq
        parts = encode_batch(frames, count, first_seq, position, timestamp_ns, due_ns)
        size = HEADER_BYTES + len(frames)
        end = position + size
        file = self.handle.file or self.handle.open()
        if end > self._prepared_end:
            self._prepare(file, end)
        try:
            if size <= _COPIED_BYTES_MAX:
                write = file.write
                written = write(b"".join(parts), position)
            else:
                written = file.write_parts(parts, position)
            if written < size:
                write_all(file, [b"".join(parts)[written:]], position + written)
        except OSError:
            self.cut_rest()
            raise
        if position >= self._entry_at:
            self._enter(self.index, position, first_seq, timestamp_ns)
        if timestamp_ns > self.last_timestamp_ns:  # noqa: PLR1730 (no call for every batch)
            self.last_timestamp_ns = timestamp_ns
        self.end = end
        self.next_seq = next_seq = first_seq + count
        if due_ns:
            self._add_deferred(DeferredBatch(first_seq, next_seq, due_ns))
        return next_seq

    def cut_rest(self) -> None:
        """Cuts off what a failed write left beyond `end`."""
        try:
            self.handle.open().truncate(self.end)
        except OSError:
            self.is_broken = True
        else:
            self.is_broken = False
            self._prepared_end = self.end

    def probe(self, data: bytes) -> None:
        """Writes `data` beyond the end and cuts it off again; raises OSError if it cannot."""
        file = self.handle.open()
        try:
            write_all(file, [data], self.end)
        finally:
            self.cut_rest()

    def rewrite_unsynced(self, end: int) -> None:
        """Writes what no fsync has covered, up to `end`, once more; any thread may do so.

        Raises CorruptBatchError if it cannot be read back as it was.
        """
        file = self.handle.open()
        for found in scan_batches(file, self.synced_end, end):
            if isinstance(found, BadBytes):
                raise CorruptBatchError(
                    f"{self.handle.path}: what was written is gone at byte {found.position}"
                )
            header = file.read(found.batch.position, HEADER_BYTES)
            write_all(file, [header, found.frames], found.batch.position)

    def settle(self) -> None:
        """Gives back space that was set aside in vain, and writes the index file."""
        if self._prepared_end > self.end > _RESERVE_BYTES:
            self.cut_rest()
        self.write_index()
        # Not kept in memory: for small deferred messages it is a quarter of the size of the log.
        self._deferred = None

    def write_index(self) -> None:
        """Writes the index file, which must cover only synced bytes. An incomplete file is detected
        by its checksums."""
        assert self.is_synced
        self._deferred = self.deferred
        content = encode_index(self.checkpoint, self.index, self._deferred)
        mode: Mode = "write"
        if not self.indexed_end:
            self._remove_index()
            mode = "create"
        self.indexed_end = 0
        with contextlib.closing(self._files.open(self._index_path, mode)) as file:
            file.truncate(write_all(file, [content], 0))
        self.indexed_end = self.end

    def remove(self) -> None:
        """Removes the segment's files; the segment must not be used afterwards. If an immediate
        removal fails, raises OSError, and the segment still exists."""
        self._remover.remove(self._index_path)
        self.indexed_end = 0
        self.handle.close()  # first, so that the remover frees the blocks, and not this close
        self._remover.remove(self.handle.path)
        self.is_removed = True

    # Reading

    def read(self, seq: int, max_bytes: int) -> list[Run]:
        """The messages from `seq` on: about `max_bytes`, at least a batch unless there is none."""
        runs: list[Run] = []
        start = self._places.pop(seq, -1)
        if start < 0:
            start = self.index.position_of_seq(seq)
        for batch, raw in self.batches(start, max_bytes):
            if batch.next_seq <= seq:
                continue
            frames = split_frames(batch, raw)
            _add_run(runs, batch, frames[max(0, seq - batch.first_seq) :])
            # One more of this size would not be in the piece that has been read.
            if batch.end + batch.frames_size > start + max_bytes:
                break
        if runs:
            self._remember_place(runs[-1].next_seq, batch.end)
        return runs

    def seq_at_time(self, timestamp_ns: int) -> int:
        """The first message of the first batch that is not older; `next_seq` if all are."""
        start = self.index.position_of_time(timestamp_ns)
        for batch, _ in self.batches(start, INDEX_SPACING_BYTES):
            if batch.timestamp_ns >= timestamp_ns:
                return batch.first_seq
        return self.next_seq

    def batches(self, position: int, read_bytes: int) -> Iterator[StoredBatch]:
        """Every batch from `position` on, read in pieces of about `read_bytes`. Damage is stepped
        over, and kept in `damage`."""
        while position < self.end:
            try:
                for found in complete_batches(self._piece(position, read_bytes), position):
                    yield found
                    position = found.batch.end
            except CorruptBatchError:
                position = self._step_over(position)

    def deferred_batches(self, first: int, end: int) -> Iterator[list[DeferredBatch]]:
        """Yields the batches of `[first, end)` with a due time, in lists of bounded length, which
        may be empty. Each step reads a bounded part of the segment."""
        if self._deferred_count == 0:
            return
        index = self._deferred if self._deferred is not None else self._stored_deferred()
        if index is None:
            index = DeferredIndex()
            yield from self._search_deferred(index)
        yield from index.between(first, end)

    @property
    def index(self) -> SparseIndex:
        """The index, read or rebuilt when it is first needed."""
        if self._index is None:
            self._index = self._stored_index() or self._rebuilt_index()
        return self._index

    @property
    def deferred(self) -> DeferredIndex:
        """The batches with a due time: in memory, or else read from the disk."""
        if self._deferred is not None:
            return self._deferred
        if self._deferred_count == 0:
            return DeferredIndex()
        index = self._stored_deferred()
        if index is None:
            index = DeferredIndex()
            list(self._search_deferred(index))
        return index

    # What loading a segment needs

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes the word of an index file, which speaks of synced bytes only."""
        self.end = self.synced_end = self.indexed_end = checkpoint.end
        self.next_seq = checkpoint.next_seq
        self.first_timestamp_ns = checkpoint.first_timestamp_ns
        self.last_timestamp_ns = checkpoint.last_timestamp_ns
        self._index = self._deferred = None
        self._deferred_count = checkpoint.deferred_count
        self._entry_at = 0

    def take(self, batch: Batch) -> None:
        """Counts in a batch that was found at the end."""
        if batch.due_ns:
            self._deferred = self.deferred
            self._add_deferred(DeferredBatch(batch.first_seq, batch.next_seq, batch.due_ns))
        self._enter(self.index, batch.position, batch.first_seq, batch.timestamp_ns)
        self.last_timestamp_ns = max(self.last_timestamp_ns, batch.timestamp_ns)
        self.end = batch.end
        self.next_seq = batch.next_seq

    def _enter(self, index: SparseIndex, position: int, first_seq: int, timestamp_ns: int) -> None:
        """Enters a batch into the index, if it is to be."""
        if position >= index.next_position:
            index.add(position, first_seq, self.last_timestamp_ns)
        if position == 0:
            self.first_timestamp_ns = timestamp_ns
        self._entry_at = index.next_position

    def _prepare(self, file: File, end: int) -> None:
        """Loads the indexes, and preallocates space for the next appends, which makes an append a
        sixth cheaper on ext4; not for a topic with few messages."""
        self._index, self._deferred = self.index, self.deferred
        start = max(self._prepared_end, self.end)
        self._prepared_end = max(end, start) + _RESERVE_BYTES
        if end > _RESERVE_BYTES:
            file.reserve(start, self._prepared_end - start)

    def _piece(self, position: int, read_bytes: int) -> bytes:
        """About `read_bytes` from `position` on, with at least one whole batch."""
        file = self.handle.file or self.handle.open()
        piece = file.read(position, min(max(read_bytes, HEADER_BYTES), self.end - position))
        batch = decode_header(piece, 0, position)
        if batch.end > position + len(piece):
            piece = file.read(position, batch.end - position)
            verify_frames(batch, piece[HEADER_BYTES:])
        return piece

    def _step_over(self, position: int) -> int:
        """Where the next batch after the damage at `position` begins."""
        for found in scan_batches(self.handle.open(), position, self.end):
            if isinstance(found, StoredBatch):
                return found.batch.position
            self._keep_damage(found)
        return self.end

    def _keep_damage(self, bad: BadBytes) -> None:
        if bad.position not in self._damaged_at:
            self._damaged_at.add(bad.position)
            # Up to `end` all was whole once: whatever it looks like, it is no leftover.
            self.damage.append(bad._replace(is_leftover=False).to_issue(self.handle.path))

    def _remember_place(self, seq: int, position: int) -> None:
        if len(self._places) >= _PLACES_MAX:
            self._places.clear()
        self._places[seq] = position

    def _add_deferred(self, batch: DeferredBatch) -> None:
        assert self._deferred is not None
        self._deferred.add(batch)
        self._deferred_count = len(self._deferred)

    def _search_deferred(self, found: DeferredIndex) -> Iterator[list[DeferredBatch]]:
        """Reads the segment in pieces to fill `found`; yields an empty list after each piece."""
        piece_end = _SEARCH_BYTES
        for batch, _ in self.batches(0, _SEARCH_BYTES):
            if batch.due_ns:
                found.add(DeferredBatch(batch.first_seq, batch.next_seq, batch.due_ns))
            if batch.end >= piece_end:
                piece_end = batch.end + _SEARCH_BYTES
                yield []

    def _stored_deferred(self) -> DeferredIndex | None:
        return maybe_deferred(self._index_file())

    def _stored_index(self) -> SparseIndex | None:
        return maybe_index(self._index_file())

    def _index_file(self) -> bytes:
        """The content of the index file; empty if it cannot be read."""
        try:
            with contextlib.closing(self._files.open(self._index_path, "read")) as file:
                return file.read(0, file.size())
        except OSError:
            return b""

    def _rebuilt_index(self) -> SparseIndex:
        index = SparseIndex()
        latest_ns = 0
        for found in scan_batches(self.handle.open(), 0, self.end):
            if isinstance(found, StoredBatch):
                batch = found.batch
                if batch.position >= index.next_position:
                    index.add(batch.position, batch.first_seq, latest_ns)
                latest_ns = max(latest_ns, batch.timestamp_ns)
        return index

    def _remove_index(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._index_path)


def read_checkpoint(files: Files, folder: str, first_seq: int) -> Checkpoint | None:
    """What the index file of a segment says, if there is one that can be trusted."""
    try:
        with contextlib.closing(files.open(f"{folder}/{index_name(first_seq)}", "read")) as file:
            return maybe_checkpoint(file.read(0, CHECKPOINT_BYTES))
    except FileNotFoundError:
        return None


def _add_run(runs: list[Run], batch: Batch, frames: list[bytes]) -> None:
    """Adds frames, to the last run if they follow on it and are due when it is."""
    first_seq = batch.next_seq - len(frames)
    if runs and runs[-1].next_seq == first_seq and runs[-1].due_ns == batch.due_ns:
        runs[-1].frames.extend(frames)
    else:
        runs.append(Run(first_seq, frames, batch.due_ns))
