"""Bulk reads of a log, independent of channels. The disk access may run in another thread.

`LogReader.next_read` determines from memory what to read next; `ReadJob.run` reads it, in any
thread; `LogReader.advance` clips the result to the requested range. The cost is per batch, not per
message.

The reader keeps its current file open, so that it can finish a segment that is trimmed meanwhile.
If a later segment is trimmed, it raises `TrimmedError`. So the result has only those gaps that were
in the log when the reader was created, or that damage causes.
"""

from penstock.common.errors import CorruptBatchError, LogClosedError
from penstock.storage.attributes import decode_attributes, encode_attributes
from penstock.storage.batch import (
    HEADER_BYTES,
    StoredBatch,
    complete_batches,
    read_piece,
    split_frames,
)
from penstock.storage.files import File, storage_error
from penstock.storage.segment import Segment
from penstock.storage.topic_log import TopicLog, TrimmedError

__all__ = ["LogReader", "ReadJob"]


class ReadJob:
    """One read of a file: the complete batches in about `max_bytes`, at least one."""

    def __init__(
        self, file: File, path: str, position: int, end: int, max_bytes: int, seed: int | None
    ) -> None:
        self.position = position
        self._seed = seed
        self._file = file
        self._path = path
        self._end = end
        self._max_bytes = max_bytes

    def run(self) -> list[StoredBatch]:
        """Read; may be called in any thread. Returns [] if the next batch is damaged. Raises
        StorageError."""
        found: list[StoredBatch] = []
        try:
            piece = read_piece(self._file, self.position, self._end, self._max_bytes, self._seed)
            found.extend(complete_batches(piece, self.position, self._seed))
        except CorruptBatchError:
            return found
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        return found


class LogReader:
    """Reads `[seq, end)` of a log; without `end`, also all future messages. It reads no messages
    from the high watermark on."""

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
        """Whether the reader has no `end`."""
        return self._end is None

    @property
    def is_done(self) -> bool:
        """Whether `end` was reached."""
        return self._end is not None and self.seq >= self._end

    def next_read(self, max_bytes: int) -> ReadJob | None:
        """Return what to read next; None at the high watermark or at the end of the range.

        Raises StorageError, in particular TrimmedError.
        """
        if self._log.is_closed:
            raise LogClosedError("the topic has been closed")
        while not self.is_done and self.seq < self._log.high_watermark:
            segment = self._segment
            if segment is not None and self._position < segment.end:
                assert self._file is not None
                return ReadJob(
                    self._file,
                    segment.handle.path,
                    self._position,
                    segment.end,
                    max_bytes,
                    segment.seed,
                )
            if not self._enter_next_segment():
                break
        return None

    def advance(self, read: ReadJob, found: list[StoredBatch]) -> list[StoredBatch]:
        """Move past the batches that were read, and return them, clipped to the range."""
        assert self._segment is not None
        assert read.position == self._position
        if not found:
            found = self._after_damage()
        if not found:
            self.seq, self._position = self._segment.next_seq, self._segment.end
            return []
        first, last, high_watermark = self.seq, found[-1].header, self._log.high_watermark
        if last.next_seq <= high_watermark:
            self.seq, self._position = max(first, last.next_seq), last.end
        else:  # Continue with the first batch that is not completely below the high watermark.
            headers = (each.header for each in found)
            last = next(each for each in headers if each.next_seq > high_watermark)
            self.seq, self._position = max(first, high_watermark), last.position
        end = self.seq if self._end is None else min(self._end, self.seq)
        return [
            _clip(each, first, end)
            for each in found
            if each.header.next_seq > first and each.header.first_seq < end
        ]

    def close(self) -> None:
        """Close the file. No read may be in progress."""
        if self._segment is not None:
            self._segment.handle.unpin()
            self._segment = self._file = None

    def _enter_next_segment(self) -> bool:
        """Continue with the segment that contains the next message; False if there is none."""
        segment = self._log.maybe_segment_from(self.seq)
        if segment is None:
            return False
        if segment.first_seq > self.seq and (self.seq, segment.first_seq) not in self._known_gaps:
            raise TrimmedError(
                f"messages from {self.seq} on have been trimmed while they were read"
            )
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
        """Return the first batch after damaged bytes. The log records the damage."""
        assert self._segment is not None
        try:
            return [next(self._segment.batches(self._position, HEADER_BYTES))]
        except StopIteration:
            return []
        except OSError as error:
            raise storage_error("read", self._segment.handle.path, error) from error
        finally:
            self._log.collect_damage(self._segment)


def _clip(found: StoredBatch, first: int, end: int) -> StoredBatch:
    """The part of a batch that is in `[first, end)`."""
    batch = found.header
    skipped = max(first - batch.first_seq, 0)
    count = min(end, batch.next_seq) - batch.first_seq - skipped
    if count == batch.message_count:
        return found
    kept = slice(skipped, skipped + count)
    frames = b"".join(split_frames(batch, found.frames)[kept])
    attributes = found.attributes
    if attributes:
        attributes = encode_attributes(decode_attributes(attributes, batch.message_count)[kept])
    part = batch._replace(
        first_seq=batch.first_seq + skipped,
        message_count=count,
        frames_size=len(frames),
        attributes_size=len(attributes),
    )
    return StoredBatch(part, frames, attributes)
