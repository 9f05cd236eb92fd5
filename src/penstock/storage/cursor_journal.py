"""Format of the cursor journal of a topic, and the state that its records describe. Pure.

A record contains changes that are applied all or none. Big-endian:

    offset  size  field
         0     4  magic
         4     4  crc          CRC-32C of all that follows it
         8     1  version
         9     1  flags        none is defined: 0
        10     2  header_size  32
        12     4  size         of the changes, in bytes
        16     8  number       of the record: one more than the number of the record before it
        24     8  epoch        of the writer; 0 without replication
        32        changes, one after the other

A change is a tag of one byte, the size of its fields in four bytes, and the fields. `name` is a
length in one byte and that many bytes of ASCII; `count` and attempts have 4 bytes, all other
numbers 8.

    tag  change           fields
      1  SetCursor        name, floor
      2  RemoveCursor     name
      3  FinishRanges     name, count, count times: first, end
      4  SetRetryStates   name, count, count times: seq, attempts, due_ns
      5  SetPausePoint    seq
      6  ClearPausePoint
      7  ReserveSeqs      seq
      8  SetLogId         16 bytes

The first record of a journal is a snapshot: its changes create the whole state.

A later version may add fields after those above, in the header and in a change, and may add tags. A
reader ignores fields that it does not know, and changes with an unknown tag of 128 or more. It
refuses a record with another unknown tag.

Records of format 1 are still read. Their header has 16 bytes: no flags, no number and no epoch. A
change has no size.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from google_crc32c import value as crc32c

from penstock.common.errors import CorruptBatchError
from penstock.storage.layout import LOG_ID_BYTES, Issue
from penstock.storage.progress import Progress, RetryState

__all__ = [
    "VERSION",
    "BadJournalRecord",
    "ClearPausePoint",
    "CursorState",
    "FinishRanges",
    "JournalChange",
    "JournalRecord",
    "RemoveCursor",
    "ReserveSeqs",
    "SetCursor",
    "SetLogId",
    "SetPausePoint",
    "SetRetryStates",
    "encode_record",
    "scan_journal",
]

_MAGIC = b"\x9ePSJ"
VERSION = 2
_HEADER_BYTES = 32
_HEADER_1_BYTES = 16
_CHECKED_AT = 8
_PREFIX = struct.Struct(">4sI")
_START = struct.Struct(">BBHI")  # version, flags, header_size, size
_REST = struct.Struct(">QQ")  # number, epoch
_CHANGE = struct.Struct(">BI")  # tag, size
_OPTIONAL_TAG_MIN = 128
_BYTE = struct.Struct(">B")
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


class SetLogId(NamedTuple):
    """The id of the topic's log."""

    log_id: bytes


JournalChange = (
    SetCursor
    | RemoveCursor
    | FinishRanges
    | SetRetryStates
    | SetPausePoint
    | ClearPausePoint
    | ReserveSeqs
    | SetLogId
)


class CursorState:
    """The state that the records of a journal describe."""

    def __init__(self) -> None:
        self.progress: dict[str, Progress] = {}
        self.pause_point: int | None = None
        self.reserved_below = 0
        self.log_id: bytes | None = None

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
            case _:
                self._apply_to_topic(change)

    def _apply_to_topic(
        self, change: SetPausePoint | ClearPausePoint | ReserveSeqs | SetLogId
    ) -> None:
        match change:
            case SetPausePoint(seq):
                self.pause_point = seq
            case ClearPausePoint():
                self.pause_point = None
            case ReserveSeqs(seq):
                self.reserved_below = max(self.reserved_below, seq)
            case SetLogId(log_id):
                self.log_id = log_id

    def snapshot(self) -> list[JournalChange]:
        """Changes that create this state."""
        changes: list[JournalChange] = [ReserveSeqs(self.reserved_below)]
        if self.log_id is not None:
            changes.append(SetLogId(self.log_id))
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
    """A record at `position`; the next one begins at `end`. `number` and `epoch` are 0 in a record
    of format 1."""

    position: int
    end: int
    changes: list[JournalChange]
    version: int = VERSION
    number: int = 0
    epoch: int = 0


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


def encode_record(changes: Iterable[JournalChange], number: int = 0, epoch: int = 0) -> bytes:
    """Encode one record with these changes."""
    body = b"".join(map(_encode_change, changes))
    start = _START.pack(VERSION, 0, _HEADER_BYTES, len(body))
    checked = start + _REST.pack(number, epoch) + body
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
    rest = data[position : position + _HEADER_1_BYTES]
    if len(rest) < _HEADER_1_BYTES:
        return rest[:4] == _MAGIC[: len(rest)]
    return rest[:4] == _MAGIC and _record_end(data, position) > len(data)


def _record_end(data: bytes, position: int) -> int:
    size: int = _START.unpack_from(data, position + _CHECKED_AT)[3]
    return _changes_position(data, position) + size


def _changes_position(data: bytes, position: int) -> int:
    version, _, header_bytes, _ = _START.unpack_from(data, position + _CHECKED_AT)
    return position + (_HEADER_1_BYTES if version == 1 else max(header_bytes, _HEADER_BYTES))


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
    version, number, epoch = checked[0], 0, 0
    if version == VERSION:
        if checked[1]:
            raise CorruptBatchError(f"unsupported record: flags {checked[1]}")
        number, epoch = _REST.unpack_from(data, position + _HEADER_1_BYTES)
    elif version != 1:
        raise CorruptBatchError(f"unsupported record: version {version}")
    decoder = _ChangeDecoder(data, _changes_position(data, position), has_sizes=version > 1)
    try:
        changes = list(decoder.changes(end))
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptBatchError("a record has invalid content") from error
    return JournalRecord(position, end, changes, version, number, epoch)


def _encode_change(change: JournalChange) -> bytes:
    tag, fields = _tag_and_fields(change)
    return _CHANGE.pack(tag, len(fields)) + fields


def _tag_and_fields(change: JournalChange) -> tuple[int, bytes]:
    match change:
        case SetCursor(channel, floor):
            return 1, _name(channel) + _NUMBER.pack(floor)
        case RemoveCursor(channel):
            return 2, _name(channel)
        case FinishRanges(channel, ranges):
            numbers = [number for pair in ranges for number in pair]
            packed = struct.pack(f">{len(numbers)}Q", *numbers)
            return 3, _name(channel) + _COUNT.pack(len(ranges)) + packed
        case SetRetryStates(channel, states):
            packed = b"".join(_RETRY_STATE.pack(seq, *state) for seq, state in states)
            return 4, _name(channel) + _COUNT.pack(len(states)) + packed
        case SetPausePoint(seq):
            return 5, _NUMBER.pack(seq)
        case ClearPausePoint():
            return 6, b""
        case ReserveSeqs(seq):
            return 7, _NUMBER.pack(seq)
        case SetLogId(log_id):
            return 8, log_id


def _name(channel: str) -> bytes:
    name = channel.encode("ascii")
    return _BYTE.pack(len(name)) + name


class _ChangeDecoder:
    """Decodes the changes of a record whose checksum matches."""

    def __init__(self, data: bytes, at: int, *, has_sizes: bool) -> None:
        self._data = data
        self._at = at
        self._has_sizes = has_sizes

    def changes(self, end: int) -> Iterator[JournalChange]:
        while self._at < end:
            (tag,) = self._unpack(_BYTE)
            change_end = None
            if self._has_sizes:
                (size,) = self._unpack(_COUNT)
                change_end = self._at + size
            if tag < _OPTIONAL_TAG_MIN:
                yield self._change(tag)
            if change_end is not None:
                if not self._at <= change_end <= end:
                    raise CorruptBatchError("a record has invalid content")
                self._at = change_end

    def _change(self, tag: int) -> JournalChange:
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
            case 8:
                return SetLogId(self._bytes(LOG_ID_BYTES))
        raise CorruptBatchError(f"the record has an unknown change: {tag}")

    def _unpack(self, form: struct.Struct) -> tuple[int, ...]:
        self._at += form.size
        return form.unpack_from(self._data, self._at - form.size)

    def _number(self) -> int:
        return self._unpack(_NUMBER)[0]

    def _name(self) -> str:
        (size,) = self._unpack(_BYTE)
        return self._bytes(size).decode("ascii")

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

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
