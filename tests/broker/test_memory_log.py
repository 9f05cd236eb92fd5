from penstock.broker.memory_log import MemoryLog
from penstock.storage import Run


def test_appending_only_counts() -> None:
    log = MemoryLog(first_seq=100, held_max=10)
    log.append([b"a", b"b"], 0)

    assert (102, 102) == (log.first_seq, log.next_seq)
    assert [] == log.read(100)
    assert 0 == log.held_count


def test_what_is_held_can_be_read_until_it_is_forgotten() -> None:
    log = MemoryLog(first_seq=100, held_max=10)
    log.append([b"a", b"b"], 0)
    log.keep([b"a", b"b"], 0)
    log.append([b"c"], 0, due_ns=7)
    log.keep([b"c"], 7)

    assert (100, 103, 3) == (log.first_seq, log.next_seq, log.held_count)
    assert [Run(100, [b"a", b"b"], 0), Run(102, [b"c"], 7)] == log.read(100)
    assert [Run(102, [b"c"], 7)] == log.read(102)
    log.drop_kept()
    assert (103, 103, 0) == (log.first_seq, log.next_seq, log.held_count)
    assert [] == log.read(100)


def test_what_finds_no_room_is_dropped_and_keeps_its_number() -> None:
    log = MemoryLog(first_seq=100, held_max=3)
    for batch in ([b"a", b"b"], [b"c", b"d"], [b"e"]):
        log.append(batch, 0)
        log.keep(batch, 0)

    assert [Run(100, [b"a", b"b"], 0), Run(102, [b"c"], 0)] == log.read(100)
    assert (105, 3) == (log.next_seq, log.held_count)


def test_there_is_room_again_after_forgetting() -> None:
    log = MemoryLog(first_seq=100, held_max=1)
    for body in (b"a", b"b"):
        log.append([body], 0)
        log.keep([body], 0)
        log.drop_kept()
    log.append([b"c"], 0)
    log.keep([b"c"], 0)

    assert [Run(102, [b"c"], 0)] == log.read(0)
