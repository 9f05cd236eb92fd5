"""Format of the cursor journal of a topic, and the state that its records describe. Pure.

A record contains changes that are applied all or none. Big-endian:

    offset  size  field
         0     4  magic
         4     4  crc        CRC-32C of all that follows it
         8     1  version
         9     3  reserved   0
        12     4  size       of the changes, in bytes
        16        changes, one after the other

A change is a tag followed by its fields. `name` is a length in one byte and that many bytes of
ASCII; `count` and attempts have 4 bytes, all other numbers 8.

    tag  change           fields
      1  SetCursor        name, floor
      2  RemoveCursor     name
      3  FinishRanges     name, count, count times: first, end
      4  SetRetryStates   name, count, count times: seq, attempts, due_ns
      5  SetPausePoint    seq
      6  ClearPausePoint
      7  ReserveSeqs      seq

The first record of a journal is a snapshot: its changes create the whole state.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from google_crc32c import value as crc32c

from penstock.common.errors import CorruptBatchError
from penstock.storage.layout import Issue
from penstock.storage.progress import Progress, RetryState

__all__ = [
    "BadJournalRecord",
    "ClearPausePoint",
    "CursorState",
    "FinishRanges",
    "JournalChange",
    "JournalRecord",
    "RemoveCursor",
    "ReserveSeqs",
    "SetCursor",
    "SetPausePoint",
    "SetRetryStates",
    "encode_record",
    "scan_journal",
]

_MAGIC = b"\x9ePSJ"
_VERSION = 1
_HEADER_BYTES = 16
_CHECKED_AT = 8
_PREFIX = struct.Struct(">4sI")
_FIELDS = struct.Struct(">B3xI")
_TAG = struct.Struct(">B")
_COUNT = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_RETRY_STATE = struct.Struct(">QIQ")


class SetCursor(NamedTuple):
    """Create or move a channel's cursor: all messages below `floor` are finished, all others
    open."""

    channel: str
    floor: int


class RemoveCursor(NamedTuple):
    """The channel was deleted."""

    channel: str


class FinishRanges(NamedTuple):
    """The channel has finished these ranges."""

    channel: str
    ranges: list[tuple[int, int]]


class SetRetryStates(NamedTuple):
    """Replace the retry states of open messages of the channel."""

    channel: str
    states: list[tuple[int, RetryState]]


class SetPausePoint(NamedTuple):
    """Messages from `seq` on are not given to the channels for now."""

    seq: int


class ClearPausePoint(NamedTuple):
    """The channels get all messages."""


class ReserveSeqs(NamedTuple):
    """New messages get sequence numbers from `seq` on."""

    seq: int


JournalChange = (
    SetCursor
    | RemoveCursor
    | FinishRanges
    | SetRetryStates
    | SetPausePoint
    | ClearPausePoint
    | ReserveSeqs
)


class CursorState:
    """The state that the records of a journal describe."""

    def __init__(self) -> None:
        self.progress: dict[str, Progress] = {}
        self.pause_point: int | None = None
        self.reserved_below = 0

    @property
    def next_unused_seq(self) -> int:
        """One past the highest sequence number referenced; new messages start here or later."""
        ends = [progress.next_unused_seq for progress in self.progress.values()]
        return max([self.reserved_below, self.pause_point or 0, *ends])

    def apply(self, change: JournalChange) -> None:
        """Apply a change. An unknown channel can only result from a damaged record. It is
        created with nothing else finished, so that no message is lost."""
        match change:
            case SetCursor(channel, floor):
                self.progress.setdefault(channel, Progress(floor)).reset(floor)
            case RemoveCursor(channel):
                self.progress.pop(channel, None)
            case FinishRanges(channel, ranges):
                progress = self.progress.setdefault(channel, Progress(0))
                for first, end in ranges:
                    progress.finish(first, end)
            case SetRetryStates(channel, states):
                progress = self.progress.setdefault(channel, Progress(0))
                for seq, state in states:
                    progress.set_retry_state(seq, state)
            case SetPausePoint(seq):
                self.pause_point = seq
            case ClearPausePoint():
                self.pause_point = None
            case ReserveSeqs(seq):
                self.reserved_below = max(self.reserved_below, seq)

    def snapshot(self) -> list[JournalChange]:
        """Changes that create this state."""
        changes: list[JournalChange] = [ReserveSeqs(self.reserved_below)]
        if self.pause_point is not None:
            changes.append(SetPausePoint(self.pause_point))
        for channel, progress in self.progress.items():
            changes.append(SetCursor(channel, progress.floor))
            if ranges := list(progress.finished_ranges()):
                changes.append(FinishRanges(channel, ranges))
            if progress.retry_states:
                changes.append(SetRetryStates(channel, list(progress.retry_states.items())))
        return changes


class JournalRecord(NamedTuple):
    """A record at `position`; the next one begins at `end`."""

    position: int
    end: int
    changes: list[JournalChange]


class BadJournalRecord(NamedTuple):
    """A part of a journal that is not a valid record; `is_leftover` if it may be an incomplete
    write."""

    position: int
    end: int
    reason: str
    is_leftover: bool

    def to_issue(self, path: str) -> Issue:
        """Describe these bytes as an issue of the journal at `path`."""
        return Issue(
            path,
            self.reason,
            is_damage=not self.is_leftover,
            first_byte=self.position,
            end_byte=self.end,
        )


def encode_record(changes: Iterable[JournalChange]) -> bytes:
    """Encode one record with these changes."""
    body = b"".join(map(_encode_change, changes))
    checked = _FIELDS.pack(_VERSION, len(body)) + body
    return _PREFIX.pack(_MAGIC, crc32c(checked)) + checked


def scan_journal(data: bytes) -> Iterator[JournalRecord | BadJournalRecord]:
    """Yield every record of a journal, and every part that is not a record, in order."""
    position = 0
    while position < len(data):
        found = _scan_one(data, position)
        yield found
        position = found.end


def _scan_one(data: bytes, position: int) -> JournalRecord | BadJournalRecord:
    try:
        return _decode_record(data, position)
    except CorruptBatchError as error:
        end = _find_next_record(data, position)
        is_leftover = end == len(data) and _is_cut_short(data, position)
        return BadJournalRecord(position, end, str(error), is_leftover)


def _is_cut_short(data: bytes, position: int) -> bool:
    rest = data[position:]
    if len(rest) < _HEADER_BYTES:
        return rest[:4] == _MAGIC[: len(rest)]
    return rest[:4] == _MAGIC and _record_end(data, position) > len(data)


def _record_end(data: bytes, position: int) -> int:
    _, size = _FIELDS.unpack_from(data, position + _CHECKED_AT)
    return position + _HEADER_BYTES + int(size)


def _find_next_record(data: bytes, position: int) -> int:
    while (position := data.find(_MAGIC, position + 1)) >= 0:
        try:
            _decode_record(data, position)
        except CorruptBatchError:
            continue
        return position
    return len(data)


def _decode_record(data: bytes, position: int) -> JournalRecord:
    if data[position : position + 4] != _MAGIC:
        raise CorruptBatchError("no record header")
    if _is_cut_short(data, position):
        raise CorruptBatchError("incomplete record")
    end = _record_end(data, position)
    checked = data[position + _CHECKED_AT : end]
    if _PREFIX.unpack_from(data, position)[1] != crc32c(checked):
        raise CorruptBatchError("a record does not match its checksum")
    if checked[0] != _VERSION:
        raise CorruptBatchError(f"unsupported record: version {checked[0]}")
    try:
        changes = list(_ChangeDecoder(data, position + _HEADER_BYTES).changes(end))
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptBatchError("a record has invalid content") from error
    return JournalRecord(position, end, changes)


def _encode_change(change: JournalChange) -> bytes:
    match change:
        case SetCursor(channel, floor):
            return _tag(1, channel) + _NUMBER.pack(floor)
        case RemoveCursor(channel):
            return _tag(2, channel)
        case FinishRanges(channel, ranges):
            numbers = [number for pair in ranges for number in pair]
            packed = struct.pack(f">{len(numbers)}Q", *numbers)
            return _tag(3, channel) + _COUNT.pack(len(ranges)) + packed
        case SetRetryStates(channel, states):
            packed = b"".join(_RETRY_STATE.pack(seq, *state) for seq, state in states)
            return _tag(4, channel) + _COUNT.pack(len(states)) + packed
        case SetPausePoint(seq):
            return _TAG.pack(5) + _NUMBER.pack(seq)
        case ClearPausePoint():
            return _TAG.pack(6)
        case ReserveSeqs(seq):
            return _TAG.pack(7) + _NUMBER.pack(seq)


def _tag(tag: int, channel: str) -> bytes:
    name = channel.encode("ascii")
    return _TAG.pack(tag) + _TAG.pack(len(name)) + name


class _ChangeDecoder:
    """Decodes the changes of a record whose checksum matches."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def changes(self, end: int) -> Iterator[JournalChange]:
        while self._at < end:
            yield self._change()

    def _change(self) -> JournalChange:
        (tag,) = self._unpack(_TAG)
        match tag:
            case 1:
                return SetCursor(self._name(), self._number())
            case 2:
                return RemoveCursor(self._name())
            case 3:
                return FinishRanges(self._name(), self._ranges())
            case 4:
                return SetRetryStates(self._name(), self._states())
            case 5:
                return SetPausePoint(self._number())
            case 6:
                return ClearPausePoint()
            case 7:
                return ReserveSeqs(self._number())
        raise CorruptBatchError(f"the record has an unknown change: {tag}")

    def _unpack(self, form: struct.Struct) -> tuple[int, ...]:
        self._at += form.size
        return form.unpack_from(self._data, self._at - form.size)

    def _number(self) -> int:
        return self._unpack(_NUMBER)[0]

    def _name(self) -> str:
        (size,) = self._unpack(_TAG)
        self._at += size
        return self._data[self._at - size : self._at].decode("ascii")

    def _ranges(self) -> list[tuple[int, int]]:
        (count,) = self._unpack(_COUNT)
        numbers = self._unpack(struct.Struct(f">{2 * count}Q"))
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _states(self) -> list[tuple[int, RetryState]]:
        (count,) = self._unpack(_COUNT)
        start, self._at = self._at, self._at + count * _RETRY_STATE.size
        rows = _RETRY_STATE.iter_unpack(memoryview(self._data)[start : self._at])
        states = [(seq, RetryState(attempts, due_ns)) for seq, attempts, due_ns in rows]
        if len(states) != count:
            raise CorruptBatchError("a record has invalid content")
        return states
