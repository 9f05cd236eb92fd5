"""Walking the bytes of a segment from batch to batch, also where some of them are damaged.

Nothing is taken for a batch unless its checksums say so. After bytes that are no batch, the walk
goes on at the next one that is found, so that one bad sector costs what it held and no more.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock.common.errors import CorruptBatchError
from penstock.storage.batch import (
    HEADER_BYTES,
    MAGIC,
    Batch,
    FoundBatch,
    decode_header,
    verify_frames,
    whole_batches,
)
from penstock.storage.files import File
from penstock.storage.issue import Finding

__all__ = ["SCAN_BYTES", "BadBytes", "Window", "walk"]

# Large enough that reading costs little beside checking, small beside any segment.
SCAN_BYTES = 1024 * 1024

_TORN = "a batch was not written to its end"


class BadBytes(NamedTuple):
    """A stretch of a segment that is no batch.

    `is_leftover` is said of what a write left that failed or was interrupted, and so was never
    acknowledged. If the header could be read, `batch` is what it says.
    """

    position: int
    end: int
    reason: str
    is_leftover: bool
    batch: Batch | None

    @classmethod
    def of(cls, batch: Batch, reason: str, *, is_leftover: bool) -> "BadBytes":
        """A batch that is sound in itself but cannot stay."""
        return cls(batch.position, batch.end, reason, is_leftover, batch)

    def finding(self, path: str) -> Finding:
        """These bytes as a finding about the segment at `path`."""
        return Finding(
            path,
            self.reason,
            is_damage=not self.is_leftover,
            first_byte=self.position,
            end_byte=self.end,
            first_seq=self.batch.first_seq if self.batch else None,
            end_seq=self.batch.next_seq if self.batch else None,
        )


class Window:
    """The bytes of a file from a position up to `end`, read in large pieces."""

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._data = b""
        self._start = 0
        self.end = end

    def bytes_at(self, position: int, size: int) -> bytes:
        """`size` bytes from `position` on; fewer only at the end."""
        size = min(size, self.end - position)
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            self._data = self._file.read(position, max(size, min(SCAN_BYTES, self.end - position)))
            self._start, at = position, 0
        return self._data[at : at + size]

    def batch_at(self, position: int) -> Batch:
        """The batch whose header is at `position`; raises CorruptBatchError if there is none."""
        return decode_header(self.bytes_at(position, HEADER_BYTES), 0, position)

    def frames_of(self, batch: Batch) -> bytes:
        """The frames of a batch, verified. Raises CorruptBatchError if they were changed."""
        frames = self.bytes_at(batch.frames_position, batch.frames_size)
        verify_frames(batch, frames)
        return frames


def walk(file: File, position: int, end: int) -> Iterator[FoundBatch | BadBytes]:
    """Every batch between two positions and every stretch that is none, in order."""
    window = Window(file, end)
    while position < end:
        # The common case by the piece; what is damaged, cut short or larger than that, with care.
        with contextlib.suppress(CorruptBatchError):
            for found in whole_batches(window.bytes_at(position, SCAN_BYTES), position):
                yield found
                position = found.batch.end
        if position < end:
            looked = _look(window, position)
            yield looked
            position = looked.end if isinstance(looked, BadBytes) else looked.batch.end


def _look(window: Window, position: int) -> FoundBatch | BadBytes:
    batch = None
    try:
        batch = window.batch_at(position)
        return FoundBatch(batch, window.frames_of(batch))
    except CorruptBatchError as error:
        reason = str(error)
    if batch is None:
        end = _next_header(window, position)
        is_leftover = end == window.end and _is_unwritten(window, position)
    else:
        # The header is sound, so it can be relied on for where the batch ends.
        end = min(batch.end, window.end)
        is_leftover = batch.end > window.end
    return BadBytes(position, end, _TORN if is_leftover else reason, is_leftover, batch)


def _is_unwritten(window: Window, position: int) -> bool:
    """Whether all that follows is the start of a header, or space that was never written to."""
    rest = window.bytes_at(position, HEADER_BYTES)
    if len(rest) < HEADER_BYTES and rest[:4] == MAGIC[: len(rest)]:
        return True
    while piece := window.bytes_at(position, SCAN_BYTES):
        if piece.strip(b"\0"):
            return False
        position += len(piece)
    return True


def _next_header(window: Window, position: int) -> int:
    """Where the next sound header after `position` is, or the end."""
    position += 1
    while position < window.end:
        piece = window.bytes_at(position, SCAN_BYTES)
        if not piece:
            break
        at = piece.find(MAGIC)
        while at >= 0:
            if _is_header(window, position + at):
                return position + at
            at = piece.find(MAGIC, at + 1)
        # A magic may straddle this piece and the next.
        position += max(1, len(piece) - len(MAGIC) + 1)
    return window.end


def _is_header(window: Window, position: int) -> bool:
    try:
        window.batch_at(position)
    except CorruptBatchError:
        return False
    return True
