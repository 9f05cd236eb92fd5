"""Reads one file of a queue that NSQ's own nsqd wrote, and steps over what is damaged in it.

A record has no checksum, and nothing marks its beginning but that the one before it has ended.
NSQ's nsqd gives up the rest of a file where a size is not possible. Here the next place is searched
where a record begins and another one, or the file's end, follows: one damaged record costs one.

What is held in memory is a chunk of the file, or one record if that is larger.
"""

import re
from collections.abc import Callable, Iterator

from penstock.migration.queue_files import (
    HEADER_BYTES,
    Record,
    maybe_record_bytes,
    parse_record,
)
from penstock.storage.files import File

__all__ = ["RecordReader"]

# Of each channel of a topic one file is open at a time, and there may be a thousand.
CHUNK_BYTES = 64 * 1024

# Looking ahead, so that ids that overlap are found too.
_ID = re.compile(rb"(?=[0-9a-f]{16})")
_ID_AT = 14
_ID_BYTES = 16


class RecordReader:
    """The records of an open file."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._end = file.size()
        self._chunk = b""
        self._chunk_at = 0

    def records(
        self, start: int, on_damage: Callable[[int, int], None]
    ) -> Iterator[tuple[int, Record]]:
        """Every record from `start` on, and where it begins. `on_damage` is told each stretch
        `[first, end)` that is no record, in its turn. Raises OSError."""
        position, end = start, self._maybe_end(start)
        while position < self._end:
            following = None if end is None else self._maybe_end(end)
            if end is not None and (following is not None or end == self._end):
                yield position, self._record(position, end)
                position, end = end, following
                continue
            resumed = self._next_sound(position + (1 if end is None else HEADER_BYTES))
            if end is not None and self._can_end(end, resumed):
                yield position, self._record(position, end)
                position = end
            on_damage(position, resumed)
            position, end = resumed, self._maybe_end(resumed)

    def bytes_between(self, first: int, end: int) -> Iterator[bytes]:
        """A stretch of the file, in pieces."""
        for at in range(first, end, CHUNK_BYTES):
            yield self._file.read(at, min(CHUNK_BYTES, end - at))

    def _record(self, position: int, end: int) -> Record:
        return parse_record(self._bytes(position, end - position))

    def _maybe_end(self, position: int) -> int | None:
        """Where the record that begins here ends, if one does and is whole."""
        size = maybe_record_bytes(self._bytes(position, HEADER_BYTES))
        return None if size is None or position + size > self._end else position + size

    def _can_end(self, end: int, resumed: int) -> bool:
        """Whether a record ends where it says, though nothing follows it until `resumed`: if that
        is before the end, or too near to it for another record, it is the size that is wrong."""
        return end <= resumed and (resumed - end >= HEADER_BYTES or resumed == self._end)

    def _is_sound(self, position: int) -> bool:
        end = self._maybe_end(position)
        return end is not None and (end == self._end or self._maybe_end(end) is not None)

    def _next_sound(self, position: int) -> int:
        """Where the next record begins that can be relied on, or where the file ends."""
        while position + HEADER_BYTES <= self._end:
            window = self._file.read(position, CHUNK_BYTES)
            for match in _ID.finditer(window, _ID_AT):
                if self._is_sound(candidate := position + match.start() - _ID_AT):
                    return candidate
            # The last bytes may be the first of an id.
            position += max(len(window) - _ID_AT - _ID_BYTES + 1, 1)
        return self._end

    def _bytes(self, position: int, size: int) -> bytes:
        at = position - self._chunk_at
        if at < 0 or at + size > len(self._chunk):
            self._chunk = self._file.read(position, max(size, CHUNK_BYTES))
            self._chunk_at, at = position, 0
        return self._chunk[at : at + size]
