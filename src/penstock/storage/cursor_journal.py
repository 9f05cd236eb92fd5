"""The journal of a topic's channels: its records, and the state that they add up to. Pure.

A record holds changes that were made together: it counts as a whole or not at all. Big-endian:

    offset  size  field
         0     4  magic
         4     4  crc        CRC-32C of all that follows it
         8     1  version
         9     3  reserved   0
        12     4  size       of the changes, in bytes
        16        changes, one after the other

A change is a tag and then its fields. `name` is a length in one byte and that many bytes of ASCII;
`count` is 4 bytes; all other numbers are 8 bytes, but for attempts, which are 4.

    tag  change   fields
      1  Place    name, floor
      2  Remove   name
      3  Finish   name, count, count times: first, end
      4  Notes    name, count, count times: seq, attempts, due_ns
      5  Hold     seq
      6  Release
      7  Reserve  seq

The first record of a journal is a snapshot: changes that lead from nothing to a whole state.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from google_crc32c import value as crc32c

from penstock.common.errors import CorruptBatchError
from penstock.storage.layout import Finding
from penstock.storage.progress import Note, Progress

__all__ = [
    "BadRecord",
    "Change",
    "CursorState",
    "Finish",
    "Hold",
    "Notes",
    "Place",
    "Record",
    "Release",
    "Remove",
    "Reserve",
    "encode_record",
    "walk_journal",
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
_NOTE = struct.Struct(">QIQ")


class Place(NamedTuple):
    """The channel begins, or begins again: below the floor all is finished, above it nothing."""

    channel: str
    floor: int


class Remove(NamedTuple):
    """The channel is no more."""

    channel: str


class Finish(NamedTuple):
    """The channel has finished these ranges."""

    channel: str
    ranges: list[tuple[int, int]]


class Notes(NamedTuple):
    """What to know of open messages of the channel; what was known of them before is replaced."""

    channel: str
    notes: list[tuple[int, Note]]


class Hold(NamedTuple):
    """Messages from here on are not given to the channels for now."""

    seq: int


class Release(NamedTuple):
    """The channels follow the tail."""


class Reserve(NamedTuple):
    """No new message may get a number below this one."""

    seq: int


Change = Place | Remove | Finish | Notes | Hold | Release | Reserve


class CursorState:
    """What the records of a journal add up to."""

    def __init__(self) -> None:
        self.progress: dict[str, Progress] = {}
        self.held_from: int | None = None
        self.reserved_seq = 0

    @property
    def known_end(self) -> int:
        """No number at or above this one is spoken of."""
        ends = [progress.known_end for progress in self.progress.values()]
        return max([self.reserved_seq, self.held_from or 0, *ends])

    def apply(self, change: Change) -> None:
        """Makes a change. That a channel is not known can only be the trace of a damaged record; it
        then counts as one that has finished nothing else, since that loses no message."""
        match change:
            case Place(channel, floor):
                self.progress.setdefault(channel, Progress(floor)).reset(floor)
            case Remove(channel):
                self.progress.pop(channel, None)
            case Finish(channel, ranges):
                progress = self.progress.setdefault(channel, Progress(0))
                for first, end in ranges:
                    progress.finish(first, end)
            case Notes(channel, notes):
                progress = self.progress.setdefault(channel, Progress(0))
                for seq, note in notes:
                    progress.note(seq, note)
            case Hold(seq):
                self.held_from = seq
            case Release():
                self.held_from = None
            case Reserve(seq):
                self.reserved_seq = max(self.reserved_seq, seq)

    def snapshot(self) -> list[Change]:
        """Changes that lead from nothing to this state."""
        changes: list[Change] = [Reserve(self.reserved_seq)]
        if self.held_from is not None:
            changes.append(Hold(self.held_from))
        for channel, progress in self.progress.items():
            changes.append(Place(channel, progress.floor))
            if ranges := list(progress.finished_ranges()):
                changes.append(Finish(channel, ranges))
            if progress.notes:
                changes.append(Notes(channel, list(progress.notes.items())))
        return changes


class Record(NamedTuple):
    """A record that was found, and where the next one begins."""

    position: int
    end: int
    changes: list[Change]


class BadRecord(NamedTuple):
    """A stretch of a journal that is no record; `is_leftover` if it may be one cut short."""

    position: int
    end: int
    reason: str
    is_leftover: bool

    def finding(self, path: str) -> Finding:
        """This stretch as a finding about the journal at `path`."""
        return Finding(
            path,
            self.reason,
            is_damage=not self.is_leftover,
            first_byte=self.position,
            end_byte=self.end,
        )


def encode_record(changes: Iterable[Change]) -> bytes:
    """One record with these changes."""
    body = b"".join(map(_encode_change, changes))
    checked = _FIELDS.pack(_VERSION, len(body)) + body
    return _PREFIX.pack(_MAGIC, crc32c(checked)) + checked


def walk_journal(data: bytes) -> Iterator[Record | BadRecord]:
    """Every record of a journal, and every stretch that is none, in order."""
    position = 0
    while position < len(data):
        found = _look(data, position)
        yield found
        position = found.end


def _look(data: bytes, position: int) -> Record | BadRecord:
    try:
        return _decode_record(data, position)
    except CorruptBatchError as error:
        end = _next_record(data, position)
        is_leftover = end == len(data) and _is_cut_short(data, position)
        return BadRecord(position, end, str(error), is_leftover)


def _is_cut_short(data: bytes, position: int) -> bool:
    rest = data[position:]
    if len(rest) < _HEADER_BYTES:
        return rest[:4] == _MAGIC[: len(rest)]
    return rest[:4] == _MAGIC and _record_end(data, position) > len(data)


def _record_end(data: bytes, position: int) -> int:
    _, size = _FIELDS.unpack_from(data, position + _CHECKED_AT)
    return position + _HEADER_BYTES + int(size)


def _next_record(data: bytes, position: int) -> int:
    while (position := data.find(_MAGIC, position + 1)) >= 0:
        try:
            _decode_record(data, position)
        except CorruptBatchError:
            continue
        return position
    return len(data)


def _decode_record(data: bytes, position: int) -> Record:
    if data[position : position + 4] != _MAGIC:
        raise CorruptBatchError("no record begins here")
    if _is_cut_short(data, position):
        raise CorruptBatchError("a record was not written to its end")
    end = _record_end(data, position)
    checked = data[position + _CHECKED_AT : end]
    if _PREFIX.unpack_from(data, position)[1] != crc32c(checked):
        raise CorruptBatchError("a record does not match its checksum")
    if checked[0] != _VERSION:
        raise CorruptBatchError(f"a record is of an unknown kind: version {checked[0]}")
    try:
        changes = list(_Reader(data, position + _HEADER_BYTES).changes(end))
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptBatchError("a record makes no sense") from error
    return Record(position, end, changes)


def _encode_change(change: Change) -> bytes:
    match change:
        case Place(channel, floor):
            return _tag(1, channel) + _NUMBER.pack(floor)
        case Remove(channel):
            return _tag(2, channel)
        case Finish(channel, ranges):
            numbers = [number for pair in ranges for number in pair]
            packed = struct.pack(f">{len(numbers)}Q", *numbers)
            return _tag(3, channel) + _COUNT.pack(len(ranges)) + packed
        case Notes(channel, notes):
            packed = b"".join(_NOTE.pack(seq, *note) for seq, note in notes)
            return _tag(4, channel) + _COUNT.pack(len(notes)) + packed
        case Hold(seq):
            return _TAG.pack(5) + _NUMBER.pack(seq)
        case Release():
            return _TAG.pack(6)
        case Reserve(seq):
            return _TAG.pack(7) + _NUMBER.pack(seq)


def _tag(tag: int, channel: str) -> bytes:
    name = channel.encode("ascii")
    return _TAG.pack(tag) + _TAG.pack(len(name)) + name


class _Reader:
    """Takes changes off bytes that a checksum vouches for."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def changes(self, end: int) -> Iterator[Change]:
        while self._at < end:
            yield self._change()

    def _change(self) -> Change:
        (tag,) = self._take(_TAG)
        match tag:
            case 1:
                return Place(self._name(), self._number())
            case 2:
                return Remove(self._name())
            case 3:
                return Finish(self._name(), self._ranges())
            case 4:
                return Notes(self._name(), self._notes())
            case 5:
                return Hold(self._number())
            case 6:
                return Release()
            case 7:
                return Reserve(self._number())
        raise CorruptBatchError(f"the record holds an unknown change: {tag}")

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        self._at += form.size
        return form.unpack_from(self._data, self._at - form.size)

    def _number(self) -> int:
        return self._take(_NUMBER)[0]

    def _name(self) -> str:
        (size,) = self._take(_TAG)
        self._at += size
        return self._data[self._at - size : self._at].decode("ascii")

    def _ranges(self) -> list[tuple[int, int]]:
        (count,) = self._take(_COUNT)
        numbers = self._take(struct.Struct(f">{2 * count}Q"))
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _notes(self) -> list[tuple[int, Note]]:
        (count,) = self._take(_COUNT)
        start, self._at = self._at, self._at + count * _NOTE.size
        rows = _NOTE.iter_unpack(memoryview(self._data)[start : self._at])
        notes = [(seq, Note(attempts, due_ns)) for seq, attempts, due_ns in rows]
        if len(notes) != count:
            raise CorruptBatchError("a record makes no sense")
        return notes
