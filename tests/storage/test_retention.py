"""Retention of finished messages, and its effect on the size of segments."""

import pytest
from tests.storage.frames import WALL_NS, frames, open_topic, read_all

from penstock.storage import LogSettings, Retention, TopicLog
from penstock.testing import FaultyFiles, MemoryFiles

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
MIB = 1024 * 1024


@pytest.fixture
def files(memory_files: MemoryFiles) -> FaultyFiles:
    return FaultyFiles(memory_files)


def never(_first: int, _end: int) -> bool:
    return False


def fill(log: TopicLog, count: int, *, every_ns: int, body: str = "x") -> int:
    """Append messages at this pace, trimming after each. Returns the time after the last one."""
    wall_ns = WALL_NS
    for _ in range(count):
        log.append(frames(body), wall_ns)
        wall_ns += every_ns
        log.trim(never, wall_ns)
    return wall_ns


def oldest_ns(log: TopicLog) -> int:
    return log.segments[0].first_timestamp_ns


@pytest.mark.parametrize(
    ("kept_ns", "allowed_ns"),
    [
        (24 * HOUR_NS, 6 * HOUR_NS),  # at most a quarter more
        (60 * SECOND_NS, 60 * SECOND_NS),  # a segment covers at least a minute
    ],
)
def test_slow_topic_keeps_little_more_than_its_retention(
    files: FaultyFiles, kept_ns: int, allowed_ns: int
) -> None:
    log = open_topic(files, LogSettings(retention_time_ns=kept_ns))[1].log
    pace_ns = kept_ns // 40
    now_ns = fill(log, 200, every_ns=pace_ns)

    assert kept_ns - pace_ns <= now_ns - oldest_ns(log) <= kept_ns + allowed_ns + pace_ns


def test_idle_topic_becomes_empty_and_keeps_its_sequence(files: FaultyFiles) -> None:
    settings = LogSettings(retention_time_ns=HOUR_NS)
    data_path, store = open_topic(files, settings)
    next_seq = store.log.next_seq + 3
    now_ns = fill(store.log, 3, every_ns=1)
    for hour in range(3):
        store.log.trim(never, now_ns + hour * HOUR_NS)
    data_path.close()

    log = open_topic(files, settings)[1].log
    assert [] == read_all(log)
    assert (next_seq, next_seq) == (log.first_seq, log.next_seq)


def test_trimmed_sequence_numbers_are_not_reused_after_crashes(
    files: FaultyFiles, memory_files: MemoryFiles
) -> None:
    settings = LogSettings(retention_time_ns=HOUR_NS)
    log = open_topic(files, settings)[1].log
    now_ns = fill(log, 3, every_ns=1)
    for hour in range(3):
        log.trim(never, now_ns + hour * HOUR_NS)
    next_seqs = []
    for _ in range(3):
        memory_files.crash()
        next_seqs.append(open_topic(files, settings)[1].log.next_seq)

    assert [log.next_seq] * 3 == next_seqs


def test_small_retention_makes_small_files(files: FaultyFiles) -> None:
    log = open_topic(files, LogSettings(retention_bytes=8 * MIB))[1].log
    fill(log, 40, every_ns=1, body="x" * (MIB // 2))

    assert 8 * MIB <= log.byte_size <= 10.5 * MIB


def test_needed_messages_are_kept_beyond_the_retention(files: FaultyFiles) -> None:
    log = open_topic(files, LogSettings(130, retention_time_ns=1, retention_bytes=1))[1].log
    for body in "abcdefgh":
        log.append(frames(body), WALL_NS)
    log.trim(lambda _first, _end: True, WALL_NS + HOUR_NS)

    assert list("abcdefgh") == read_all(log)


def test_retention_of_a_topic_can_be_set_and_cleared(files: FaultyFiles) -> None:
    log = open_topic(files, LogSettings(170, retention_bytes=100_000))[1].log
    for body in "abcdefgh":
        log.append(frames(body), WALL_NS)

    log.retention = Retention(size_bytes=320)
    log.trim(never, WALL_NS)
    assert list("efgh") == read_all(log)

    log.retention = None
    log.trim(never, WALL_NS)
    assert Retention(size_bytes=100_000) == log.retention
    assert list("efgh") == read_all(log)

    log.retention = Retention()
    log.trim(never, WALL_NS)
    assert list("gh") == read_all(log)
