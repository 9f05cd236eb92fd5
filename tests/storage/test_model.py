"""A topic on disk, compared with a simple model under random operations, faults and crashes.

The model records what was tried, what was written (and survives a crash) and what was synced (and
survives a power loss). A crash may happen at any write and any fsync, also during recovery. After a
crash, the topic must contain everything written or synced, and nothing that was not tried.
"""

import errno
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
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

from penstock.common.errors import StorageError
from penstock.storage import DataPath, LogSettings, Progress, RetryState, check_data_path
from penstock.storage import index as index_module
from penstock.storage import topic_log as topic_log_module
from penstock.storage.fsync import FsyncJob, run_job
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash
from penstock.testing.files import Operation

EXAMPLES = 2_000
SHARDS = 4
STEPS = 30

# Small enough that a handful of batches makes several segments, and several index entries in each.
LOG_SETTINGS = LogSettings(max_bytes_per_file=700)
INDEX_SPACING_BYTES = 150
CHECKPOINT_SPACING_BYTES = 200

FIRST_WALL_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
TOPIC = "t"

channels = st.sampled_from(["a", "b"])
operations = st.sampled_from(
    ["write", "truncate", "sync", "create", "rename", "remove", "make_folder", "sync_folder"]
)
# Bytes written before a write fails: none, some, or all.
written_sizes = st.sampled_from([0, 1, 55, 56, 100, 10_000])


class Message(NamedTuple):
    frame: bytes
    due_ns: int
    timestamp_ns: int


class ChannelModel:
    """What one channel has finished and which retry states it has, in memory, flushed and
    synced."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.finished: set[int] = set()
        self.flushed: set[int] = set()
        self.synced: set[int] = set()
        self.retry_states: dict[int, set[RetryState]] = {}
        self.flushed_retry_states: set[int] = set()
        self.is_synced = False
        """Whether its creation and all moves are synced."""

    @classmethod
    def of(cls, progress: Progress, seqs: Collection[int]) -> "ChannelModel":
        """Create a model of the state after a start, in which everything is flushed."""
        model = cls(progress.floor)
        model.finished = {seq for seq in seqs if progress.is_finished(seq, seq + 1)}
        model.flushed = set(model.finished)
        model.retry_states = {seq: {state} for seq, state in progress.retry_states.items()}
        model.flushed_retry_states = set(model.retry_states)
        return model


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryFiles()
        self.memory.make_folder("data")
        self.memory.sync_folder("")
        self.files = FaultyFiles(self.memory)
        self.wall_ns = FIRST_WALL_NS
        self.messages: dict[int, Message] = {}
        self.doubtful: list[dict[int, Message]] = []
        """Batches whose append failed or never returned: they may be stored after a crash."""
        self.droppable: set[int] = set()
        """Messages that a trim in progress may delete."""
        self.trimmed: dict[int, Message] = {}
        """Deleted messages; a power loss may restore them."""
        self.synced_seq = 0
        self.used_seq = 0
        """All numbers below were given to messages that were stored."""
        self.channels: dict[str, ChannelModel] = {}
        self.uncertain: set[str] = set()
        """Channels whose creation, move or removal failed or never returned."""
        self.log_sync: tuple[FsyncJob, int] | None = None
        """A sync in progress, and the sequence number up to which it syncs."""
        self.cursors_sync: tuple[FsyncJob, list[tuple[ChannelModel, set[int]]]] | None = None
        self.is_power_lost_next = False
        self.random = Random(0)
        self.serial = 0
        self.open()

    @initialize(number=st.integers(0, 2**32))
    def seed_power_losses(self, number: int) -> None:
        self.random = Random(number)

    # Operations

    @rule(sizes=st.lists(st.integers(0, 90), min_size=1, max_size=5), defer=st.booleans())
    def append(self, sizes: list[int], defer: bool) -> None:
        now_ns = self.wall_ns
        due_ns = now_ns + STEP_NS if defer else 0
        frames = [self.new_frame(size) for size in sizes]
        first_seq = self.store.log.next_seq
        batch = {first_seq + at: Message(frame, due_ns, now_ns) for at, frame in enumerate(frames)}
        self.doubtful.append(batch)
        with self.disk_may_fail():
            self.store.log.append(frames, now_ns, due_ns)
            self.doubtful.pop()
            self.messages.update(batch)
            self.used_seq = first_seq + len(batch)

    @rule(back=st.integers(0, 30), max_bytes=st.sampled_from([1, 300, 100_000]))
    def read(self, back: int, max_bytes: int) -> None:
        seq = max(0, self.store.log.next_seq - back)
        stored = [found for found in sorted(self.messages) if found >= seq]

        found = self.read_messages(seq, max_bytes)

        assert bool(stored) == bool(found)
        assert stored[: len(found)] == list(found)
        assert all(self.messages[seq][:2] == message for seq, message in found.items())

    @rule(back_ns=st.integers(0, 40))
    def look_up_time(self, back_ns: int) -> None:
        timestamp_ns = self.wall_ns - back_ns * STEP_NS
        later = [seq for seq, found in self.messages.items() if found.timestamp_ns >= timestamp_ns]
        expected = min(later, default=self.store.log.next_seq)

        assert expected == self.store.log.seq_at_time(timestamp_ns)

    @precondition(lambda self: self.log_sync is None)
    @rule()
    def sync(self) -> None:
        next_seq = self.store.log.next_seq
        with self.disk_may_fail():
            self.store.log.sync()
            assert next_seq == self.store.log.synced_seq
            self.synced_seq = next_seq

    @precondition(lambda self: self.log_sync is None)
    @rule()
    def begin_sync(self) -> None:
        with self.disk_may_fail():
            self.log_sync = self.store.log.begin_sync(), self.store.log.next_seq

    @precondition(lambda self: self.log_sync is not None)
    @rule()
    def end_sync(self) -> None:
        assert self.log_sync is not None
        (job, next_seq), self.log_sync = self.log_sync, None
        with self.disk_may_fail():
            error = run_job(job)
            self.store.log.end_sync(job, error)
            if error is None:
                assert next_seq == self.store.log.synced_seq
                self.synced_seq = next_seq

    @precondition(lambda self: self.cursors_sync is None)
    @rule()
    def begin_cursors_sync(self) -> None:
        with self.disk_may_fail():
            job = self.store.cursors.begin_sync()
            channels = [(channel, set(channel.flushed)) for channel in self.channels.values()]
            self.cursors_sync = job, channels

    @precondition(lambda self: self.cursors_sync is not None)
    @rule()
    def end_cursors_sync(self) -> None:
        assert self.cursors_sync is not None
        (job, channels), self.cursors_sync = self.cursors_sync, None
        with self.disk_may_fail():
            error = run_job(job)
            self.store.cursors.end_sync(job, error)
            for channel, flushed in channels if error is None else ():
                channel.is_synced = True
                channel.synced = flushed

    @rule(channel=channels, back=st.integers(0, 20))
    def create_or_move_channel(self, channel: str, back: int) -> None:
        floor = max(0, self.store.log.next_seq - back)
        self.uncertain.add(channel)
        with self.disk_may_fail():
            if channel in self.channels:
                self.store.cursors.reset(channel, floor)
            else:
                self.store.cursors.create(channel, floor)
            self.uncertain.discard(channel)
            self.channels[channel] = ChannelModel(floor)
            for first, end in self.store.log.gaps(floor, self.store.log.next_seq):
                self.store.cursors.finish(channel, first, end)

    @precondition(lambda self: self.channels)
    @rule(channel=channels)
    def remove_channel(self, channel: str) -> None:
        if channel not in self.channels:
            return
        self.uncertain.add(channel)
        with self.disk_may_fail():
            self.store.cursors.remove(channel)
            self.uncertain.discard(channel)
            del self.channels[channel]

    @precondition(lambda self: self.channels and self.messages)
    @rule(channel=channels, picks=st.sets(st.integers(0, 25), min_size=1), shuffle=st.booleans())
    def finish(self, channel: str, picks: set[int], shuffle: bool) -> None:
        seqs = self.picked(picks)
        if channel in self.channels and seqs:
            if shuffle:
                self.random.shuffle(seqs)
            self.store.cursors.finish_many(channel, seqs)
            self.channels[channel].finished.update(seqs)

    @precondition(lambda self: self.channels and self.messages)
    @rule(channel=channels, pick=st.integers(0, 25), attempts=st.integers(1, 9))
    def set_retry_state(self, channel: str, pick: int, attempts: int) -> None:
        for seq in self.picked({pick}):
            if channel in self.channels and seq not in self.channels[channel].finished:
                state = RetryState(attempts, self.wall_ns)
                self.store.cursors.set_retry_state(channel, seq, state)
                self.channels[channel].retry_states.setdefault(seq, set()).add(state)

    @rule()
    def flush(self) -> None:
        with self.disk_may_fail():
            self.store.cursors.flush()
            assert not self.store.cursors.has_unflushed
            for channel in self.channels.values():
                channel.flushed = set(channel.finished)
                channel.flushed_retry_states = set(channel.retry_states)

    @precondition(lambda self: self.cursors_sync is None)
    @rule()
    def sync_cursors(self) -> None:
        with self.disk_may_fail():
            self.store.cursors.sync()
            for channel in self.channels.values():
                channel.is_synced = True
                channel.synced = set(channel.flushed)

    @rule()
    def trim(self) -> None:
        self.droppable = {seq for seq in self.messages if not self.is_needed(seq, seq + 1)}
        with self.disk_may_fail():
            self.store.log.trim(self.is_needed, self.wall_ns)
        log = self.store.log
        dropped = {seq for seq in self.messages if log.gaps(seq, seq + 1)}
        assert dropped <= self.droppable
        self.trimmed |= {seq: self.messages.pop(seq) for seq in dropped}
        self.droppable = set()

    @rule()
    def probe(self) -> None:
        with self.disk_may_fail():
            self.store.log.probe()

    # Faults

    @rule(
        operation=operations,
        skip=st.integers(0, 2),
        times=st.sampled_from([1, 2, None]),
        written=written_sizes,
    )
    def break_disk(self, operation: Operation, skip: int, times: int | None, written: int) -> None:
        self.files.fail(operation, skip=skip, times=times, error=errno.EIO, written=written)

    @rule(taken=st.integers(0, 60))
    def shorten_next_write(self, taken: int) -> None:
        self.files.fail("write", error=None, written=taken)

    @rule()
    def mend_disk(self) -> None:
        self.files.heal()

    @rule(changes=st.integers(0, 6), written=written_sizes, power=st.booleans())
    def plan_crash(self, changes: int, written: int, power: bool) -> None:
        self.is_power_lost_next = power
        self.files.crash_after(changes, written=written)

    @rule(again=st.lists(st.integers(0, 12), max_size=2), power=st.booleans())
    def crash(self, again: list[int], power: bool) -> None:
        self.end_process(power=power, crash_again=again)

    @precondition(lambda self: self.log_sync is None and self.cursors_sync is None)
    @rule()
    def restart(self) -> None:
        with self.disk_may_fail():
            self.data_path.close()
            for channel in self.channels.values():
                channel.flushed = set(channel.finished)
                channel.flushed_retry_states = set(channel.retry_states)
            self.synced_seq = self.used_seq
        self.end_process(power=False)

    def teardown(self) -> None:
        self.end_process(power=False)
        self.data_path.close()

        assert [] == self.damage()
        self.open()
        assert [] == self.issues
        self.compare(power=False)

    # Crashes, and the checks after them

    @contextmanager
    def disk_may_fail(self) -> Iterator[None]:
        self.wall_ns += STEP_NS
        try:
            yield
        except StorageError:
            pass
        except SimulatedCrash:
            self.end_process(power=self.is_power_lost_next)

    def end_process(self, *, power: bool, crash_again: list[int] | None = None) -> None:
        self.files.heal()
        self.stop(power=power)
        for changes in crash_again or ():
            self.files.crash_after(changes)
            with suppress(SimulatedCrash):
                self.open()
            self.files.heal()
            self.stop(power=power)
        self.open()
        self.compare(power=power)

    def stop(self, *, power: bool) -> None:
        if power:
            self.memory.lose_power(self.random)
        else:
            self.memory.crash()
            assert [] == self.damage()

    def open(self) -> None:
        self.log_sync = self.cursors_sync = None
        self.wall_ns += STEP_NS
        self.data_path = DataPath.open("data", LOG_SETTINGS, self.files)
        self.store, self.issues = self.data_path.open_topic(TOPIC, wall_ns=self.wall_ns)

    def damage(self) -> list[str]:
        issues = check_data_path("data", self.memory)
        return [str(issue) for issue in issues if issue.is_damage]

    def compare(self, *, power: bool) -> None:
        log = self.store.log
        self.compare_messages(self.read_all(), power=power)
        assert log.next_seq >= self.used_seq
        for name, progress in self.store.cursors.progress.items():
            for first, end in progress.open_ranges(progress.floor, log.next_seq):
                assert [] == log.gaps(first, end)
            if name in self.channels:
                self.compare_channel(name, progress, power=power)
            else:
                assert power or name in self.uncertain
        for name in self.channels.keys() - self.store.cursors.progress.keys():
            assert name in self.uncertain or (power and not self.channels[name].is_synced)
        self.adopt_stored_state()

    def compare_messages(self, found: dict[int, tuple[bytes, int]], *, power: bool) -> None:
        lost = self.messages.keys() - found.keys() - self.droppable
        assert all(power and seq >= self.synced_seq for seq in lost)
        known = dict(self.messages)
        if power:
            known |= self.trimmed
        for seq, message in found.items():
            candidates = [known[seq]] if seq in known else []
            candidates += [batch[seq] for batch in self.doubtful if seq in batch]
            same = [candidate for candidate in candidates if candidate[:2] == message]
            assert same
            known[seq] = same[0]
        self.messages = {seq: known[seq] for seq in sorted(found)}

    def compare_channel(self, name: str, progress: Progress, *, power: bool) -> None:
        model = self.channels[name]
        if name in self.uncertain or (power and not model.is_synced):
            return
        stored = self.messages.keys()
        finished = {seq for seq in stored if progress.is_finished(seq, seq + 1)}
        assert (model.synced if power else model.flushed) & stored <= finished
        assert all(seq in model.finished or seq < model.floor for seq in finished)
        assert all(state in model.retry_states[seq] for seq, state in progress.retry_states.items())
        if not power:
            assert (model.flushed_retry_states & stored) - finished <= progress.retry_states.keys()

    def adopt_stored_state(self) -> None:
        log, cursors = self.store.log, self.store.cursors
        self.doubtful.clear()
        self.uncertain.clear()
        self.droppable = set()
        self.used_seq = log.next_seq
        self.channels = {
            name: ChannelModel.of(progress, self.messages.keys())
            for name, progress in cursors.progress.items()
        }

    # Helpers

    def is_needed(self, first: int, end: int) -> bool:
        progress = self.store.cursors.progress.values()
        return not progress or not all(found.is_finished(first, end) for found in progress)

    def picked(self, picks: set[int]) -> list[int]:
        """Pick from the latest messages by position."""
        latest = sorted(self.messages, reverse=True)
        return [latest[pick] for pick in sorted(picks) if pick < len(latest)]

    def read_messages(self, seq: int, max_bytes: int) -> dict[int, tuple[bytes, int]]:
        return {
            seq: (frame, run.due_ns)
            for run in self.store.log.read(seq, max_bytes)
            for seq, frame in enumerate(run.frames, run.first_seq)
        }

    def read_all(self) -> dict[int, tuple[bytes, int]]:
        found: dict[int, tuple[bytes, int]] = {}
        seq = 0
        while piece := self.read_messages(seq, 1000):
            found |= piece
            seq = max(piece) + 1
        return found

    def new_frame(self, size: int) -> bytes:
        self.serial += 1
        body = self.serial.to_bytes(4) + bytes(size)
        return len(body).to_bytes(4) + body


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_log_matches_the_model(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "INDEX_SPACING_BYTES", INDEX_SPACING_BYTES)
    monkeypatch.setattr(topic_log_module, "CHECKPOINT_SPACING_BYTES", CHECKPOINT_SPACING_BYTES)
    number = fresh_random(f"test_log_matches_the_model {shard}").getrandbits(32)

    run_state_machine_as_test(
        seed(number)(type("Machine", (LogMachine,), {})),
        settings=settings(
            max_examples=EXAMPLES // SHARDS,
            stateful_step_count=STEPS,
            # Explaining a failure traces every line, which takes longer than finding it.
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
