"""One file of a log: a sequence of batches whose sequence numbers have no gaps.

A segment begins with a header, which is written with the first batch, and grows only at its end.
`end` is the end of the valid batches: bytes beyond it were left by a failed write and are never
read. `synced_end` is the end of the part that an fsync has covered.

The index file beside the segment is a cache of its index, timestamps and next sequence number. It
covers only synced batches. An append does not change it: it then covers a part of the segment.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.common.errors import CorruptBatchError, StorageError
from penstock.storage.batch import (
    HEADER_BYTES,
    HEADER_BYTES_MAX,
    MAGIC,
    SCAN_BYTES,
    SEGMENT_HEADER_BYTES,
    BadBytes,
    BatchHeader,
    StoredBatch,
    checksum_seed,
    complete_batches,
    decode_header,
    encode_batch,
    encode_segment_header,
    find_seed,
    maybe_segment_header,
    read_piece,
    scan_batches,
    split_frames,
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
    index_seed,
    maybe_checkpoint,
    maybe_deferred,
    maybe_index,
)
from penstock.storage.layout import Issue, index_name, segment_name

__all__ = ["Run", "Segment", "SegmentExtent", "SegmentInfo"]

# Space that is preallocated for the next appends.
_RESERVE_BYTES = 4 * 1024 * 1024

# Up to this size, copying header and frames into one buffer is faster than a vectored write.
_COPIED_BYTES_MAX = 16 * 1024

# Bytes read at a time to find the deferred batches of a segment whose index file is damaged.
_SCAN_DEFERRED_BYTES = 256 * 1024

# Bytes read in one step of a check, which takes some milliseconds.
_CHECK_BYTES = 4 << 20

# Maximum readers of a segment whose position is remembered. Sequential reads skip the index lookup.
_READ_POSITIONS_MAX = 64


class Run(NamedTuple):
    """Consecutive messages read from a log."""

    first_seq: int
    frames: list[bytes]
    due_ns: int
    """Wall time before which they must not be delivered; 0 if they are not deferred."""

    @property
    def next_seq(self) -> int:
        """Sequence number after the last message."""
        return self.first_seq + len(self.frames)


class SegmentInfo(NamedTuple):
    """Description of a segment."""

    first_seq: int
    next_seq: int
    byte_size: int
    first_timestamp_ns: int
    last_timestamp_ns: int


class SegmentExtent(NamedTuple):
    """The bytes and messages of a segment, for comparing copies of a log."""

    first_seq: int
    epoch: int
    """Epoch of the first batch; 0 if there is none, or if the segment has format 1."""
    end: int
    """Size of the valid part of the file in bytes."""
    next_seq: int


class Segment:
    """A segment of a log. One thread owns it."""

    def __init__(self, pool: FilePool, folder: str, first_seq: int, log_id: bytes) -> None:
        self.first_seq = first_seq
        self.next_seq = first_seq
        self.end = 0
        self.synced_end = 0
        self.first_timestamp_ns = 0
        self.last_timestamp_ns = 0
        self.is_broken = False
        """The file has bytes beyond `end` that could not be truncated: appending is not allowed."""
        self.is_removed = False
        self.indexed_end = 0
        """End of the part that the index file covers."""
        self.damage: list[Issue] = []
        """Damage found while reading. The caller that reports it clears the list."""
        self.skips_damage = True
        """Whether reads skip damaged bytes, instead of raising CorruptBatchError."""
        self.handle = pool.handle(f"{folder}/{segment_name(first_seq)}")
        self.log_id = log_id
        self._log_seed = checksum_seed(log_id)
        self.seed: int | None = self._log_seed
        """The `checksum_seed` of its batches; None for a segment of format 1."""
        self._epoch: int | None = None
        """Epoch of the first batch; None if it must be read from the file."""
        self._files: Files = pool.files
        self._remover = pool.remover
        self._index_path = f"{folder}/{index_name(first_seq)}"
        self._index: SparseIndex | None = SparseIndex()
        self._deferred: DeferredIndex | None = DeferredIndex()
        """The batches with a due time; None if they must be read from the index file."""
        self._deferred_count = 0
        self._next_index_position = 0
        """A batch at or after this position may need an index entry."""
        self._preallocated_end = 0
        """Appends up to this position need no preparation."""
        self._read_positions: dict[int, int] = {}
        self._damaged_at: set[int] = set()

    @property
    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.first_seq, self.next_seq, self.end, self.first_timestamp_ns, self.last_timestamp_ns
        )

    @property
    def epoch(self) -> int:
        """Epoch of the first batch, read from the file at first use; 0 if there is none, or if the
        segment has format 1. Raises OSError or CorruptBatchError."""
        if self.is_empty or self.is_format_1:
            return 0
        if self._epoch is None:
            start = self.handle.open().read(SEGMENT_HEADER_BYTES, HEADER_BYTES_MAX)
            self._epoch = decode_header(start, 0, SEGMENT_HEADER_BYTES, self.seed).epoch
        return self._epoch

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
    def is_format_1(self) -> bool:
        """Whether an earlier release has written it; then appending is not allowed."""
        return self.seed is None

    @property
    def has_damage(self) -> bool:
        """Whether a read has found damage."""
        return bool(self._damaged_at)

    @property
    def is_empty(self) -> bool:
        return self.next_seq == self.first_seq

    @property
    def is_synced(self) -> bool:
        return self.synced_end >= self.end

    # Writing

    def append(
        self,
        frames: bytes,
        count: int,
        timestamp_ns: int,
        due_ns: int,
        epoch: int = 0,
        attributes: bytes = b"",
    ) -> int:
        """Append one batch with one write and return the new `next_seq`. If the write fails,
        raises OSError, and nothing was added."""
        position, first_seq, seed = self.end, self.next_seq, self._log_seed
        parts = encode_batch(
            frames, count, first_seq, epoch, timestamp_ns, due_ns, seed, attributes
        )
        size = HEADER_BYTES + len(frames)
        if attributes:
            size = sum(map(len, parts))
        if not position:
            parts = encode_segment_header(self.log_id, first_seq), *parts
            size += SEGMENT_HEADER_BYTES
            self._epoch = epoch
        end = position + size
        file = self.handle.file or self.handle.open()
        if end > self._preallocated_end:
            self._preallocate(file, end)
        try:
            if size <= _COPIED_BYTES_MAX:
                write = file.write
                written = write(b"".join(parts), position)
            else:
                written = file.write_parts(parts, position)
            if written < size:
                write_all(file, [b"".join(parts)[written:]], position + written)
        except OSError:
            self.truncate_to_end()
            raise
        if position >= self._next_index_position:
            position = position or SEGMENT_HEADER_BYTES
            self._index_batch(self.index, position, first_seq, timestamp_ns)
        if timestamp_ns > self.last_timestamp_ns:  # noqa: PLR1730 (saves a call of max() per batch)
            self.last_timestamp_ns = timestamp_ns
        self.end = end
        self.next_seq = next_seq = first_seq + count
        if due_ns:
            self._add_deferred(DeferredBatch(first_seq, next_seq, due_ns))
        return next_seq

    def append_copy(self, data: bytes, batches: Iterable[BatchHeader]) -> None:
        """Append the bytes of valid batches that another member has written; for a new segment,
        with its header. If the write fails, raises OSError, and nothing was added."""
        try:
            write_all(self.handle.open(), [data], self.end)
        except OSError:
            self.truncate_to_end()
            raise
        for batch in batches:
            self.add_scanned(batch)

    def truncate_to_end(self) -> None:
        """Remove the bytes that a failed write left beyond `end`."""
        try:
            self.handle.open().truncate(self.end)
        except OSError:
            self.is_broken = True
        else:
            self.is_broken = False
            self._preallocated_end = self.end

    def probe(self, data: bytes) -> None:
        """Test writing: write `data` beyond the end and truncate it again. Raises OSError."""
        file = self.handle.open()
        try:
            write_all(file, [data], self.end)
        finally:
            self.truncate_to_end()

    def rewrite_unsynced(self, end: int) -> None:
        """Write the unsynced batches up to `end` again; may be called in any thread.

        Raises CorruptBatchError if they cannot be read back.
        """
        file = self.handle.open()
        for found in scan_batches(file, self.synced_end, end, self.seed):
            if isinstance(found, BadBytes):
                raise CorruptBatchError(
                    f"{self.handle.path}: unsynced data is damaged at byte {found.position}"
                )
        for position in range(self.synced_end, end, SCAN_BYTES):
            piece = file.read(position, min(SCAN_BYTES, end - position))
            write_all(file, [piece], position)

    def finalize(self) -> None:
        """Free preallocated space and write the index file."""
        if self._preallocated_end > self.end > _RESERVE_BYTES:
            self.truncate_to_end()
        self.write_index()
        # Free the memory: for small deferred messages this is a quarter of the size of the log.
        self._deferred = None

    def write_index(self) -> None:
        """Write the index file. All batches must be synced. Checksums detect an incomplete index
        file."""
        assert self.is_synced
        self._deferred = self.deferred
        content = encode_index(self.checkpoint, self.index, self._deferred, self._index_seed)
        mode: Mode = "write"
        if not self.indexed_end:
            self.remove_index()
            mode = "create"
        self.indexed_end = 0
        with contextlib.closing(self._files.open(self._index_path, mode)) as file:
            file.truncate(write_all(file, [content], 0))
        self.indexed_end = self.end

    def remove(self) -> None:
        """Remove the segment's files; the segment must not be used afterwards. If an immediate
        removal fails, raises OSError, and the segment still exists."""
        self._remover.remove(self._index_path)
        self.indexed_end = 0
        # Close the file first, so that the remover frees the blocks, and not this thread.
        self.handle.close()
        self._remover.remove(self.handle.path)
        self.is_removed = True

    # Reading

    def read(self, seq: int, max_bytes: int) -> list[Run]:
        """Read messages from `seq` on: about `max_bytes`, but at least one batch if there is
        one."""
        runs: list[Run] = []
        start = self._read_positions.pop(seq, -1)
        if start < 0:
            start = self.index.position_of_seq(seq)
        for batch, raw, _ in self.batches(start, max_bytes):
            if batch.next_seq <= seq:
                continue
            frames = split_frames(batch, raw)
            _add_run(runs, batch, frames[max(0, seq - batch.first_seq) :])
            # Another batch of this size would need another read.
            if batch.end + batch.frames_size > start + max_bytes:
                break
        if runs:
            self._remember_position(runs[-1].next_seq, batch.end)
        return runs

    def read_raw(self, position: int, max_bytes: int) -> bytes:
        """Read bytes of the file as they are, at most up to `end`. Raises OSError."""
        size = min(max_bytes, self.end - position)
        if size <= 0:
            return b""
        file = self.handle.file or self.handle.open()
        return file.read(position, size)

    def seq_at_time(self, timestamp_ns: int) -> int:
        """First message of the first batch stored at or after this time; `next_seq` if there is
        none."""
        start = self.index.position_of_time(timestamp_ns)
        for batch, _, _ in self.batches(start, INDEX_SPACING_BYTES):
            if batch.timestamp_ns >= timestamp_ns:
                return batch.first_seq
        return self.next_seq

    def batches(self, position: int, read_bytes: int) -> Iterator[StoredBatch]:
        """Yield all batches from `position` on, read in pieces of about `read_bytes`. Damaged
        bytes are recorded in `damage`, and skipped if `skips_damage` is set; otherwise raises
        CorruptBatchError."""
        while position < self.end:
            try:
                file = self.handle.file or self.handle.open()
                piece = read_piece(file, position, self.end, read_bytes, self.seed)
                for found in complete_batches(piece, position, self.seed):
                    yield found
                    position = found.header.end
            except CorruptBatchError:
                end = self._skip_damage(position)
                if not self.skips_damage:
                    raise
                position = end

    def check(self) -> Iterator[None]:
        """Read all batches, a few megabytes in each step. Damage is treated as in `batches`."""
        step_end = _CHECK_BYTES
        for batch, _, _ in self.batches(self.index.position_of_seq(self.first_seq), _CHECK_BYTES):
            if batch.end >= step_end:
                step_end = batch.end + _CHECK_BYTES
                yield

    def deferred_batches(self, first: int, end: int) -> Iterator[list[DeferredBatch]]:
        """Yield the batches of `[first, end)` with a due time, in lists of bounded length, which
        may be empty. Each step reads a bounded part of the segment."""
        if self._deferred_count == 0:
            return
        index = self._deferred if self._deferred is not None else self._load_deferred()
        if index is None:
            index = DeferredIndex()
            yield from self._scan_deferred(index)
        yield from index.between(first, end)

    @property
    def index(self) -> SparseIndex:
        """The sparse index, loaded or rebuilt at first use."""
        if self._index is None:
            self._index = self._load_index() or self._rebuild_index()
        return self._index

    @property
    def deferred(self) -> DeferredIndex:
        """The batches with a due time, from memory or else from the disk."""
        if self._deferred is not None:
            return self._deferred
        if self._deferred_count == 0:
            return DeferredIndex()
        index = self._load_deferred()
        if index is None:
            index = DeferredIndex()
            list(self._scan_deferred(index))
        return index

    # Loading

    def read_header(self) -> bool:
        """Read the header of an existing segment; False if the file is damaged there. Raises
        StorageError if the segment is not the one that its name and its folder say."""
        file = self.handle.open()
        data = file.read(0, SEGMENT_HEADER_BYTES)
        header = maybe_segment_header(data)
        if header is None:
            self.seed = find_seed(file, self.log_id)
            return data.startswith(MAGIC)
        if header != (self.log_id, self.first_seq):
            raise StorageError(
                f"{self.handle.path} is segment {header.first_seq} of log {header.log_id.hex()}, "
                f"not segment {self.first_seq} of log {self.log_id.hex()}"
            )
        self.end = SEGMENT_HEADER_BYTES
        return True

    def read_checkpoint(self) -> Checkpoint | None:
        """Read the checkpoint in the index file; None if the file is missing or damaged, or belongs
        to another segment. Must be called after `read_header`."""
        try:
            with contextlib.closing(self._files.open(self._index_path, "read")) as file:
                data = file.read(0, CHECKPOINT_BYTES)
        except FileNotFoundError:
            return None
        return maybe_checkpoint(data, self._index_seed)

    def set_format_1(self) -> None:
        """The segment is a copy of one that an earlier release has written."""
        self.seed = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state from the index file, which covers only synced batches."""
        self.end = self.synced_end = self.indexed_end = checkpoint.end
        self.next_seq = checkpoint.next_seq
        self.first_timestamp_ns = checkpoint.first_timestamp_ns
        self.last_timestamp_ns = checkpoint.last_timestamp_ns
        self._index = self._deferred = None
        self._deferred_count = checkpoint.deferred_count
        self._next_index_position = 0

    def add_scanned(self, batch: BatchHeader) -> None:
        """Add a batch that a scan found at the end of the segment."""
        if batch.due_ns:
            self._deferred = self.deferred
            self._add_deferred(DeferredBatch(batch.first_seq, batch.next_seq, batch.due_ns))
        self._index_batch(self.index, batch.position, batch.first_seq, batch.timestamp_ns)
        self.last_timestamp_ns = max(self.last_timestamp_ns, batch.timestamp_ns)
        self.end = batch.end
        self.next_seq = batch.next_seq

    def _index_batch(
        self, index: SparseIndex, position: int, first_seq: int, timestamp_ns: int
    ) -> None:
        """Add a batch to the sparse index if an entry is due."""
        if position >= index.next_position:
            index.add(position, first_seq, self.last_timestamp_ns)
        if first_seq == self.first_seq:
            self.first_timestamp_ns = timestamp_ns
        self._next_index_position = index.next_position

    def _preallocate(self, file: File, end: int) -> None:
        """Load the indexes, and preallocate space for the next appends unless the segment is
        small. On ext4 this makes an append a sixth cheaper."""
        self._index, self._deferred = self.index, self.deferred
        start = max(self._preallocated_end, self.end)
        self._preallocated_end = max(end, start) + _RESERVE_BYTES
        if end > _RESERVE_BYTES:
            file.reserve(start, self._preallocated_end - start)

    def _skip_damage(self, position: int) -> int:
        """Position of the next batch after the damage at `position`."""
        for found in scan_batches(self.handle.open(), position, self.end, self.seed):
            if isinstance(found, StoredBatch):
                return found.header.position
            self._record_damage(found)
        return self.end

    def _record_damage(self, bad: BadBytes) -> None:
        if bad.position not in self._damaged_at:
            self._damaged_at.add(bad.position)
            # All bytes up to `end` were valid before, so they are not the leftover of a write.
            self.damage.append(bad._replace(is_leftover=False).to_issue(self.handle.path))

    def _remember_position(self, seq: int, position: int) -> None:
        if len(self._read_positions) >= _READ_POSITIONS_MAX:
            self._read_positions.clear()
        self._read_positions[seq] = position

    def _add_deferred(self, batch: DeferredBatch) -> None:
        assert self._deferred is not None
        self._deferred.add(batch)
        self._deferred_count = len(self._deferred)

    def _scan_deferred(self, found: DeferredIndex) -> Iterator[list[DeferredBatch]]:
        """Read the segment in pieces to fill `found`; yields an empty list after each piece."""
        piece_end = _SCAN_DEFERRED_BYTES
        start = self.index.position_of_seq(self.first_seq)
        for batch, _, _ in self.batches(start, _SCAN_DEFERRED_BYTES):
            if batch.due_ns:
                found.add(DeferredBatch(batch.first_seq, batch.next_seq, batch.due_ns))
            if batch.end >= piece_end:
                piece_end = batch.end + _SCAN_DEFERRED_BYTES
                yield []

    @property
    def _index_seed(self) -> int | None:
        return index_seed(self.seed, self.first_seq)

    def _load_deferred(self) -> DeferredIndex | None:
        deferred = maybe_deferred(self._read_index_file(), self._index_seed)
        if deferred is None:
            self.indexed_end = 0  # `finalize` writes the file again.
        return deferred

    def _load_index(self) -> SparseIndex | None:
        index = maybe_index(self._read_index_file(), self._index_seed)
        if index is not None and index.matches(self.first_seq, self.end):
            return index
        self.indexed_end = 0  # `finalize` writes the file again.
        return None

    def _read_index_file(self) -> bytes:
        """The content of the index file; empty if it cannot be read."""
        try:
            with contextlib.closing(self._files.open(self._index_path, "read")) as file:
                return file.read(0, file.size())
        except OSError:
            return b""

    def _rebuild_index(self) -> SparseIndex:
        index = SparseIndex()
        latest_ns = 0
        for found in scan_batches(self.handle.open(), 0, self.end, self.seed):
            if isinstance(found, StoredBatch):
                batch = found.header
                if batch.position >= index.next_position:
                    index.add(batch.position, batch.first_seq, latest_ns)
                latest_ns = max(latest_ns, batch.timestamp_ns)
        return index

    def remove_index(self) -> None:
        """Remove the index file; the segment stays."""
        self.indexed_end = 0
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._index_path)


def _add_run(runs: list[Run], batch: BatchHeader, frames: list[bytes]) -> None:
    """Add frames to the last run if they follow it and have the same due time, else as a new
    run."""
    first_seq = batch.next_seq - len(frames)
    if runs and runs[-1].next_seq == first_seq and runs[-1].due_ns == batch.due_ns:
        runs[-1].frames.extend(frames)
    else:
        runs.append(Run(first_seq, frames, batch.due_ns))
