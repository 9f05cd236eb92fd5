"""python -m bench.log_bench: the log without a server, compared with bare file operations.

Messages of 200 bytes in batches of 200, as in an MPUB. Rates are per second of this process's CPU
time, and compared operations take turns within the run, so that other load on the machine affects
both. Opening is measured in wall-clock time, with the log in the page cache.
"""

import os
import shutil
import struct
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from penstock.nsqd.options import NsqdOptions
from penstock.protocol.frames import render_messages
from penstock.storage import DataPath, LogSettings, TopicLog, TopicStore
from penstock.storage.batch import HEADER_BYTES
from penstock.storage.index import INDEX_SPACING_BYTES

__all__ = ["Row", "main", "rows"]

MESSAGES = 1_000_000
BATCH = 200
BODY = b"x" * 200
ROUNDS = 15
APPENDS = 1_000
SINGLES = 100_000
WALL_NS = 1_700_000_000_000_000_000
TOPICS = 1_000
CHANNELS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """A result and its goal, if any."""

    name: str
    figure: float
    unit: str
    goal: float | None = None
    more_is_better: bool = True

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.figure >= self.goal if self.more_is_better else self.figure <= self.goal


def rows() -> list[Row]:
    """Measure everything; takes about a minute."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return [
            *append_rows(Path(folder, "append")),
            *read_rows(Path(folder, "read")),
            *open_rows(Path(folder, "open"), BATCH),
            *open_rows(Path(folder, "open-singles"), 1),
            *memory_rows(Path(folder, "memory")),
            *topic_rows(Path(folder, "topics")),
        ]


def append_rows(folder: Path) -> Iterator[Row]:
    """Appending, compared with a bare write of the same bytes to a new file."""
    frames = batch_of(BATCH)
    written = bytes(HEADER_BYTES) + b"".join(frames)
    bare: list[float] = []
    ours: list[float] = []
    with opened(folder) as data_path:
        for _ in range(ROUNDS):
            bare.append(bare_writes(folder / "bare", written))
            ours.append(cpu_seconds(partial(append, new_topic(data_path).log, frames, APPENDS)))
            data_path.remove_topic("t")
    messages = APPENDS * BATCH
    shares = [least / own for least, own in zip(bare, ours, strict=True)]
    yield Row("append", messages / median(ours), "msgs per CPU-second")
    yield Row("bare write of the same bytes", messages / median(bare), "msgs per CPU-second")
    yield Row("append, share of the bare write's rate", median(shares), "", goal=0.75)
    with opened(folder) as data_path:
        log = new_topic(data_path).log
        seconds = cpu_seconds(lambda: append(log, batch_of(1), SINGLES))
        yield Row("append one by one", SINGLES / seconds, "msgs per CPU-second")
        data_path.remove_topic("t")


def read_rows(folder: Path) -> Iterator[Row]:
    """Reading the whole log in order: verifying checksums, splitting into frames."""
    with opened(folder) as data_path:
        log = new_topic(data_path).log
        append(log, batch_of(BATCH), MESSAGES // BATCH)
        seconds = [cpu_seconds(lambda: read_all(log)) for _ in range(ROUNDS)]
        yield Row("read", MESSAGES / median(seconds), "msgs per CPU-second", goal=1_500_000)


def open_rows(folder: Path, batch: int) -> Iterator[Row]:
    """Opening a log of a million messages, after a crash and after a clean stop."""
    what = f"open {MESSAGES:,} messages in batches of {batch}"
    in_a_crash(lambda: fill(folder, batch))
    crashed = [in_a_crash(lambda: open_seconds(folder)) for _ in range(ROUNDS)]
    yield Row(f"{what}, after a crash", median(crashed), "s", goal=1.0, more_is_better=False)
    clean = []
    for _ in range(ROUNDS):
        with opened(folder) as data_path:
            new_topic(data_path)
        clean.append(in_a_crash(lambda: open_seconds(folder)))
    yield Row(f"{what}, clean", median(clean), "s", goal=0.1, more_is_better=False)


def memory_rows(folder: Path) -> Iterator[Row]:
    """Allocated memory after a log has been written and read completely."""
    growth = allocated(folder / "long", MESSAGES) - allocated(folder / "short", MESSAGES // 4)
    bytes_more = 3 * MESSAGES // 4 * len(batch_of(1)[0])
    yield Row("memory for 750,000 messages more", growth / 1024, "KiB")
    yield Row("sparse index of as many", 24 * bytes_more / INDEX_SPACING_BYTES / 1024, "KiB")


def topic_rows(folder: Path) -> Iterator[Row]:
    """Many topics and channels: creating them, a clean stop and a start."""
    frames = batch_of(1)
    with opened(folder) as data_path:
        began = time.perf_counter()
        for number in range(TOPICS):
            store, _ = data_path.open_topic(f"t{number}", wall_ns=WALL_NS)
            store.log.append(frames, WALL_NS)
            for channel in range(CHANNELS):
                store.cursors.create(f"c{channel}", store.log.first_seq)
        yield Row(f"make {TOPICS:,} topics of {CHANNELS} channels", since(began), "s")
        began = time.perf_counter()
    yield Row("close them", since(began), "s")
    began = time.perf_counter()
    with opened(folder) as data_path:
        for name in data_path.topics():
            data_path.open_topic(name, wall_ns=WALL_NS)
        yield Row("open them", since(began), "s")


def batch_of(count: int) -> list[bytes]:
    return render_messages([BODY] * count, 1, WALL_NS)


@contextmanager
def opened(folder: Path) -> Iterator[DataPath]:
    folder.mkdir(parents=True, exist_ok=True)
    data_path = DataPath.open(str(folder), LogSettings())
    yield data_path
    data_path.close()


def new_topic(data_path: DataPath) -> TopicStore:
    return data_path.open_topic("t", wall_ns=WALL_NS)[0]


def append(log: TopicLog, frames: list[bytes], times: int) -> None:
    for at in range(times):
        log.append(frames, WALL_NS + at)


def read_all(log: TopicLog) -> None:
    seq = log.first_seq
    while runs := log.read(seq):
        seq = runs[-1].next_seq
    assert seq == log.next_seq


def bare_writes(path: Path, data: bytes) -> float:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def write() -> None:
        for _ in range(APPENDS):
            os.write(fd, data)

    seconds = cpu_seconds(write)
    os.close(fd)
    path.unlink()
    return seconds


def fill(folder: Path, batch: int) -> float:
    """Publish as nsqd does by default, with an fsync every 2,500 messages."""
    folder.mkdir()
    log = new_topic(DataPath.open(str(folder), LogSettings())).log
    frames = batch_of(batch)
    while log.next_seq - log.first_seq < MESSAGES:
        log.append(frames, WALL_NS)
        if log.next_seq - log.sync_requested_seq >= NsqdOptions().sync_every:
            log.sync()
    return 0.0


def open_seconds(folder: Path) -> float:
    began = time.perf_counter()
    data_path = DataPath.open(str(folder), LogSettings())
    store, findings = data_path.open_topic("t", wall_ns=WALL_NS)
    seconds = since(began)
    assert not findings
    assert store.log.next_seq - store.log.first_seq == MESSAGES
    return seconds


def in_a_crash(work: Callable[[], float]) -> float:
    """Run `work` in a process that then exits without closing anything; returns its result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, struct.pack("d", work()))
        except BaseException:  # noqa: BLE001 - the child must not continue as the parent
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    answer = os.read(reader, 8)
    os.close(reader)
    os.waitpid(pid, 0)
    (figure,) = struct.unpack("d", answer)
    return float(figure)


def allocated(folder: Path, messages: int) -> int:
    """Bytes that Python allocates for a log of this many messages, after reading all of it."""
    with opened(folder) as data_path:
        frames = batch_of(BATCH)
        tracemalloc.start()
        log = new_topic(data_path).log
        append(log, frames, messages // BATCH)
        read_all(log)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    shutil.rmtree(folder)
    return held


def cpu_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def since(began: float) -> float:
    return time.perf_counter() - began


def main() -> int:
    """Print the table; returns 1 if a goal is missed."""
    measured = rows()
    table = Table("", "figure", "unit", "goal", "", box=None)
    for row in measured:
        goal = "" if row.goal is None else f"{row.goal:,g}"
        verdict = {True: "met", False: "not met", None: ""}[row.met]
        figure = f"{row.figure:,.0f}" if row.figure > 1000 else f"{row.figure:.3g}"
        table.add_row(row.name, figure, row.unit, goal, verdict)
    Console().print(table)
    return 1 if any(row.met is False for row in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
