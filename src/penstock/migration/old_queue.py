"""A queue that NSQ's own nsqd left: all messages that it would still deliver, in its order.

The meta file says where they begin and end. After a crash it lags behind, and is corrected in the
direction that loses nothing: what was written after it was counts, since producers had their OK,
and what was read after it comes again, as it does from NSQ's nsqd. Without a meta file, all that
is in the files counts.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.migration.queue_files import Meta, QueueName, Record, Spot
from penstock.migration.record_reader import RecordReader
from penstock.storage.files import File, Files, storage_error

__all__ = ["Damage", "OldQueue", "QueueReport"]

_START = Spot(0, 0)
_TELL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a file that are no record; `pieces` reads them, once, while the file is open.

    `is_leftover` if a crash left them: they are beyond the end that nsqd knew of.
    """

    file: str
    first_byte: int
    end_byte: int
    is_leftover: bool
    pieces: Iterator[bytes] = field(compare=False)

    def __str__(self) -> str:
        why = ", left by a crash" if self.is_leftover else ""
        return f"{self.file}: bytes {self.first_byte} to {self.end_byte - 1} are no record{why}"


@dataclass(slots=True)
class QueueReport:
    """What reading a queue has found."""

    queue: QueueName
    depth: int | None  # which the meta file speaks of, if there is one
    found: int = 0
    late: int = 0  # how many of them the meta file does not know yet
    body_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all is there that the meta file speaks of, and all can be read. There may be
        more: nsqd does not count what it finds after a crash."""
        has_depth = self.depth is None or self.found - self.late >= self.depth
        return has_depth and all(damage.is_leftover for damage in self.damage)


class OldQueue:
    """The files of one queue."""

    def __init__(self, files: Files, folder: str, name: QueueName) -> None:
        self.name = name
        self.meta: Meta | None = None
        self.numbered: dict[int, str] = {}
        """The names of the files with messages, by number."""
        self.bad: list[str] = []
        """Those that nsqd has set aside."""
        self._files = files
        self._folder = folder

    def new_report(self) -> QueueReport:
        """What is known before anything is read."""
        report = QueueReport(self.name, self.meta.depth if self.meta else None)
        for number, name in sorted(self.numbered.items()):
            if number < self._read.file:
                report.notes.append(f"{name} has been consumed; it is left out")
        for number in self._missing():
            report.notes.append(
                f"file {number:06} of {self.name} is missing: consumed before a crash, or lost"
            )
        if self.meta is None and self.numbered:
            report.notes.append(
                f"{self.name} has no whole meta file: all its files are read from their beginning, "
                "and messages that had been consumed may come again"
            )
        for name in self.bad:
            report.notes.append(f"{name} was set aside by NSQ's nsqd; it is left out")
        return report

    def records(
        self,
        report: QueueReport,
        on_damage: Callable[[Damage], None] = lambda _: None,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Record]:
        """The messages, one by one, while `report` is filled in. `on_read` is told now and then how
        many bytes have been read since it was last told. Raises StorageError."""
        for number, name in sorted(self.numbered.items()):
            if number < self._read.file:
                continue
            try:
                with contextlib.closing(self._files.open(f"{self._folder}/{name}", "read")) as file:
                    yield from self._records_of(number, name, file, report, on_damage, on_read)
            except OSError as error:
                raise storage_error("read", f"{self._folder}/{name}", error) from error

    def byte_size(self) -> int:
        """How much there is to read, at most."""
        total = 0
        for number, name in self.numbered.items():
            if number >= self._read.file:
                with contextlib.closing(self._files.open(f"{self._folder}/{name}", "read")) as file:
                    total += file.size()
        return total

    def _records_of(
        self,
        number: int,
        name: str,
        file: File,
        report: QueueReport,
        on_damage: Callable[[Damage], None],
        on_read: Callable[[int], None],
    ) -> Iterator[Record]:
        reader, size = RecordReader(file), file.size()
        known_end = self._known_end(number, size)

        def keep(first: int, end: int) -> None:
            is_leftover = first >= known_end or (self.meta is None and end == size)
            damage = Damage(name, first, end, is_leftover, reader.bytes_between(first, end))
            report.damage.append(damage)
            on_damage(damage)

        start = self._read.byte if number == self._read.file else 0
        told = 0
        for position, record in reader.records(start, keep):
            report.found += 1
            report.late += position >= known_end
            report.body_bytes += len(record.body)
            if position - told >= _TELL_BYTES:
                on_read(position - told)
                told = position
            yield record
        on_read(size - told)

    @property
    def _read(self) -> Spot:
        return self.meta.read if self.meta is not None else _START

    def _known_end(self, number: int, size: int) -> int:
        """The end of what the meta file knows of a file."""
        if self.meta is None or number < self.meta.write.file:
            return size
        return self.meta.write.byte if number == self.meta.write.file else 0

    def _missing(self) -> list[int]:
        """Files that should have something for us, and are not there."""
        if self.meta is None:
            return []
        end = self.meta.write.file + (self.meta.write.byte > 0)
        wanted = range(self._read.file, end) if self.meta.read < self.meta.write else ()
        return [number for number in wanted if number not in self.numbered]
