"""No sequence number is used twice, and no reader skips a message, whatever is lost.

Topics are written, deleted and created again. The process is killed, also in the middle of an
operation, the machine loses power with unsynced data, and the clock is set back by up to a day. A
reader remembers the id of a log and its position in it, as Spark does in its offsets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.seeds import fresh_random
from tests.storage.frames import frame

from penstock.storage import DataPath, LogSettings, TopicLog, TopicStore
from penstock.storage import data_dir as data_dir_module
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash

EXAMPLES = 300
SHARDS = 2
STEPS = 40
START_NS = 1_700_000_000_000_000_000
DAY_NS = 86_400 * 10**9
# So few that a handful of batches needs several reservations.
RESERVED_SEQS = 64
LOG_SETTINGS = LogSettings(max_bytes_per_file=300)

topics = st.sampled_from(["a", "b"])


class Reader(NamedTuple):
    """A reader's position in a topic."""

    log_id: str
    seq: int


class SequenceNumbers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryFiles()
        self.memory.make_folder("data")
        self.memory.sync_folder("")
        self.files = FaultyFiles(self.memory)
        self.wall_ns = START_NS
        self.random = Random(0)
        self.used: dict[str, set[int]] = {"a": set(), "b": set()}
        """By topic: all sequence numbers that any log of this name has given to a message."""
        self.readers: dict[str, Reader] = {}
        self.is_power_lost_next = False
        self.stores: dict[str, TopicStore] = {}
        self.start()

    @initialize(number=st.integers(0, 2**32))
    def seed_power_losses(self, number: int) -> None:
        self.random = Random(number)

    @rule(topic=topics, count=st.integers(1, 9))
    def append(self, topic: str, count: int) -> None:
        with self.maybe_crashing():
            log = self.store(topic).log
            first_seq = log.next_seq
            numbers = set(range(first_seq, first_seq + count))
            assert not numbers & self.used[topic], "a number is used again"
            reader = self.readers.get(topic)
            if reader is not None and reader.log_id == log.log_id:
                assert first_seq >= reader.seq, "the reader would skip this message"
            log.append([frame(b"%d" % number) for number in sorted(numbers)], self.wall_ns)
            self.used[topic] |= numbers

    @rule(topic=topics)
    def read(self, topic: str) -> None:
        with self.maybe_crashing():
            self.read_on(topic)

    def read_on(self, topic: str) -> None:
        """Read on from the reader's position, or from the beginning of another log."""
        log = self.store(topic).log
        reader = self.readers.get(topic)
        seq = reader.seq if reader is not None and reader.log_id == log.log_id else 0
        while runs := log.read(seq):
            for run in runs:
                bodies = [int(each[4:]) for each in run.frames]
                assert list(range(run.first_seq, run.next_seq)) == bodies
                assert run.first_seq >= seq
            seq = runs[-1].next_seq
        self.readers[topic] = Reader(log.log_id, max(seq, log.next_seq))

    @rule(topic=topics)
    def sync(self, topic: str) -> None:
        with self.maybe_crashing():
            self.store(topic).log.sync()

    @rule(topic=topics)
    def delete(self, topic: str) -> None:
        with self.maybe_crashing():
            self.stores.pop(topic, None)
            if topic in self.data_path.topics():
                self.data_path.remove_topic(topic)

    @rule(change_ns=st.integers(-DAY_NS, DAY_NS))
    def set_clock(self, change_ns: int) -> None:
        self.wall_ns += change_ns

    @rule()
    def restart(self) -> None:
        with self.maybe_crashing():
            self.data_path.close()
            self.start()

    @rule(loses_power=st.booleans())
    def crash(self, loses_power: bool) -> None:
        self.is_power_lost_next = loses_power
        self.recover()

    @precondition(lambda self: not self.files.has_faults)
    @rule(changes=st.integers(0, 30), loses_power=st.booleans())
    def crash_later(self, changes: int, loses_power: bool) -> None:
        self.files.crash_after(changes)
        self.is_power_lost_next = loses_power

    @contextmanager
    def maybe_crashing(self) -> Iterator[None]:
        try:
            yield
        except SimulatedCrash:
            self.recover()

    def recover(self) -> None:
        self.files.heal()
        if self.is_power_lost_next:
            self.memory.lose_power(self.random)
        else:
            self.memory.crash()
        self.start()

    def start(self) -> None:
        self.data_path = DataPath.open("data", LOG_SETTINGS, self.files)
        self.stores = {}
        for topic in self.data_path.topics():
            log = self.store(topic).log
            # Also messages whose append never returned.
            self.used[topic] |= set(self.stored_numbers(log))

    def stored_numbers(self, log: TopicLog) -> Iterator[int]:
        seq = 0
        while runs := log.read(seq):
            for run in runs:
                yield from range(run.first_seq, run.next_seq)
            seq = runs[-1].next_seq

    def store(self, topic: str) -> TopicStore:
        if topic not in self.stores:
            self.stores[topic], _ = self.data_path.open_topic(topic, wall_ns=self.wall_ns)
        return self.stores[topic]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_number_is_used_twice(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dir_module, "_RESERVED_SEQS", RESERVED_SEQS)
    number = fresh_random(f"test_no_number_is_used_twice {shard}").getrandbits(32)

    run_state_machine_as_test(
        seed(number)(type("Machine", (SequenceNumbers,), {})),
        settings=settings(
            max_examples=EXAMPLES // SHARDS,
            stateful_step_count=STEPS,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


@pytest.mark.parametrize("number", range(100))
def test_empty_topic_after_power_losses_and_a_clock_set_back(number: int) -> None:
    machine = SequenceNumbers()
    machine.seed_power_losses(number)
    machine.read(topic="b")
    for change_ns in (425_000, -1, -DAY_NS):
        machine.set_clock(change_ns)
        machine.crash(loses_power=True)
        machine.read(topic="b")
    machine.append(topic="b", count=1)


@pytest.mark.parametrize("number", range(0, 1000, 5))
def test_topic_whose_creation_was_lost(number: int) -> None:
    machine = SequenceNumbers()
    machine.seed_power_losses(number)
    machine.read(topic="a")
    machine.read(topic="b")
    machine.delete(topic="a")
    machine.crash(loses_power=True)
    machine.read(topic="a")
    machine.read(topic="b")
    machine.crash(loses_power=False)
    machine.crash(loses_power=True)
    machine.append(topic="b", count=1)
