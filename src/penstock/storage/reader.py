"""Reading a log at length beside its channels: in pieces, the disk's part of each in any thread.

A `LogReader` knows where it is. `next_read` says, from memory, what is to be read next; `Read.run`
reads it and may do so in another thread; `take` cuts what came to the range that was asked for.
Nothing is done for a single message, but where the range begins or ends within a batch.

The file that is being read stays open, so that a segment that is trimmed meanwhile can be read to
its end. If one that was still to come is trimmed, `Trimmed` is raised: what is read has no holes
but those that were in the log when the reading began, or that damage has made.
"""

from penstock.common.errors import CorruptBatchError, LogClosedError, StorageError
from penstock.storage.batch import (
    HEADER_BYTES,
    StoredBatch,
    complete_batches,
    decode_header,
    split_frames,
    verify_frames,
)
from penstock.storage.files import File, storage_error
from penstock.storage.segment import Segment
from penstock.storage.topic_log import TopicLog

__all__ = ["LogReader", "Read", "Trimmed"]


class Trimmed(StorageError):
    """What was to be read next has been deleted meanwhile."""


class Read:
    """One read of a file: the batches that are whole in about `max_bytes`, at least one."""

    def __init__(self, file: File, path: str, position: int, end: int, max_bytes: int) -> None:
        self.position = position
        self._file = file
        self._path = path
        self._end = end
        self._max_bytes = max_bytes

    def run(self) -> list[StoredBatch]:
        """Any thread may call this. [] where the next batch is damaged. Raises StorageError."""
        found: list[StoredBatch] = []
        try:
            piece = self._piece()
            found.extend(complete_batches(piece, self.position))
        except CorruptBatchError:
            return found
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        return found

    def _piece(self) -> bytes:
        size = min(max(self._max_bytes, HEADER_BYTES), self._end - self.position)
        piece = self._file.read(self.position, size)
        batch = decode_header(piece, 0, self.position)
        if batch.end > self.position + len(piece):
            piece = self._file.read(self.position, batch.end - self.position)
            verify_frames(batch, piece[HEADER_BYTES:])
        return piece


class LogReader:
    """Reads `[seq, end)` of a log, or without an `end` all that there is and will be."""

    def __init__(self, log: TopicLog, seq: int, end: int | None = None) -> None:
        self.seq = seq
        """The next message to read."""
        self._log = log
        self._end = end
        self._known_gaps = log.gaps(seq, log.next_seq)
        self._segment: Segment | None = None
        self._file: File | None = None
        self._position = 0

    @property
    def is_endless(self) -> bool:
        """Whether there is always more to come."""
        return self._end is None

    @property
    def is_done(self) -> bool:
        """Whether the end has been reached."""
        return self._end is not None and self.seq >= self._end

    def next_read(self, max_bytes: int) -> Read | None:
        """What to read next; None if nothing more is stored for now, or all has been read.

        Raises StorageError, Trimmed among others.
        """
        if self._log.is_closed:
            raise LogClosedError("the topic has been closed")
        while not self.is_done:
            segment = self._segment
            if segment is not None and self._position < segment.end:
                assert self._file is not None
                return Read(self._file, segment.handle.path, self._position, segment.end, max_bytes)
            if not self._enter_next_segment():
                break
        return None

    def take(self, read: Read, found: list[StoredBatch]) -> list[StoredBatch]:
        """Steps over what was read; returns what of it belongs to the range, each part of a batch
        as a batch of its own."""
        assert self._segment is not None
        assert read.position == self._position
        if not found:
            found = self._after_damage()
        if not found:
            self.seq, self._position = self._segment.next_seq, self._segment.end
            return []
        first, last = self.seq, found[-1].batch
        self.seq, self._position = max(first, last.next_seq), last.end
        end = self.seq if self._end is None else self._end
        return [
            _clipped(each, first, end)
            for each in found
            if each.batch.next_seq > first and each.batch.first_seq < end
        ]

    def close(self) -> None:
        """Lets go of the file. No read may be under way."""
        if self._segment is not None:
            self._segment.handle.unpin()
            self._segment = self._file = None

    def _enter_next_segment(self) -> bool:
        """Goes on to the segment that holds what comes next, if there is one."""
        segment = self._log.maybe_segment_from(self.seq)
        if segment is None:
            return False
        if segment.first_seq > self.seq and (self.seq, segment.first_seq) not in self._known_gaps:
            raise Trimmed(f"messages from {self.seq} on have been trimmed while they were read")
        try:
            file = segment.handle.pin()
            position = segment.index.position_of_seq(self.seq)
        except OSError as error:
            raise storage_error("open", segment.handle.path, error) from error
        self.close()
        self._segment, self._file, self._position = segment, file, position
        self.seq = max(self.seq, segment.first_seq)
        return True

    def _after_damage(self) -> list[StoredBatch]:
        """The first batch beyond damaged bytes. The segment keeps the damage to be reported."""
        assert self._segment is not None
        try:
            return [next(self._segment.batches(self._position, HEADER_BYTES))]
        except StopIteration:
            return []
        except OSError as error:
            raise storage_error("read", self._segment.handle.path, error) from error
        finally:
            self._log.collect_damage(self._segment)


def _clipped(found: StoredBatch, first: int, end: int) -> StoredBatch:
    """The part of a batch that is in `[first, end)`."""
    batch = found.batch
    skipped = max(first - batch.first_seq, 0)
    count = min(end, batch.next_seq) - batch.first_seq - skipped
    if count == batch.message_count:
        return found
    frames = b"".join(split_frames(batch, found.frames)[skipped : skipped + count])
    part = batch._replace(
        first_seq=batch.first_seq + skipped, message_count=count, frames_size=len(frames)
    )
    return StoredBatch(part, frames)
