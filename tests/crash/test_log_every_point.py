"""A log is recovered after a crash at each of its writes and fsyncs.

The scenario is short, but has all operations: appends, rolls, syncs, channels, flushes, a trim, a
clean stop and a second run. Each crash is tested as a crash of the process, with the write torn in
several places, and as a power loss, with several choices of lost unsynced writes.
"""

from collections.abc import Callable

import pytest
from tests.seeds import fresh_random

from penstock.storage import DataPath, LogSettings, RetryState, TopicStore, check_data_path
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash

pytestmark = pytest.mark.crash

WALL_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
SETTINGS = LogSettings(max_bytes_per_file=200)
CHANGES_MAX = 200
TORN = (0, 1, 57, 10_000)
POWER_LOSSES = 6


class LogScenario:
    """One process's doings, and what it may rely on at each moment."""

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files
        self.written: list[bytes] = []
        self.synced: list[bytes] = []
        self.tried: list[bytes] = []
        self.finished = 0
        self.flushed = 0
        self.synced_finished = 0
        self.has_channel = False
        self.has_synced_channel = False
        self.first_seq = 0
        self.wall_ns = WALL_NS

    def run(self) -> None:
        store = self.start()
        self.publish(store, 3)
        store.cursors.create("c", store.log.first_seq)
        self.has_channel = True
        self.sync(store)
        self.publish(store, 4)
        self.finish(store, 4)
        store.cursors.set_retry_state("c", self.first_seq + 5, RetryState(2, WALL_NS))
        self.flush(store)
        self.sync(store)
        self.publish(store, 2)
        self.finish(store, 5)
        self.flush(store)
        store.log.trim(self.is_needed(store), WALL_NS)
        self.end()
        store = self.start()
        self.publish(store, 3)
        self.finish(store, 7)
        self.flush(store)
        self.end()

    def start(self) -> TopicStore:
        self.wall_ns += SECOND_NS
        self.data_path = DataPath.open("data", SETTINGS, self.files)
        store, _ = self.data_path.open_topic("t", wall_ns=self.wall_ns)
        self.first_seq = self.first_seq or store.log.first_seq
        return store

    def publish(self, store: TopicStore, count: int) -> None:
        for _ in range(count):
            body = f"message {len(self.tried)}".encode() * 3
            frame = len(body).to_bytes(4) + body
            self.tried.append(frame)
            store.log.append([frame], WALL_NS)
            self.written.append(frame)

    def sync(self, store: TopicStore) -> None:
        store.log.sync()
        self.synced = list(self.written)
        store.cursors.sync()
        self.synced_finished = self.flushed
        self.has_synced_channel = self.has_channel

    def finish(self, store: TopicStore, end: int) -> None:
        self.finished = end
        store.cursors.finish("c", self.first_seq, self.first_seq + end)

    def flush(self, store: TopicStore) -> None:
        store.cursors.flush()
        self.flushed = self.finished

    def is_needed(self, store: TopicStore) -> Callable[[int, int], bool]:
        progress = store.cursors.progress["c"]
        return lambda first, end: not progress.is_finished(first, end)

    def end(self) -> None:
        self.data_path.close()
        self.synced = list(self.written)
        self.synced_finished = self.flushed = self.finished

    # Checks.

    def check(self, memory: MemoryFiles, *, power: bool) -> None:
        """Check the recovered log in a new process."""
        store = self.start()
        safe = self.synced if power else self.written
        first_open = 0
        if self.has_synced_channel if power else self.has_channel:
            progress = store.cursors.progress["c"]
            first_open = progress.floor - self.first_seq
            safe_finished = self.synced_finished if power else self.flushed
            end = self.first_seq + len(self.tried)
            still_open = progress.open_ranges(self.first_seq, end)
            open_count = sum(stop - start for start, stop in still_open)
            assert safe_finished <= len(self.tried) - open_count
        self.check_messages(store, safe, first_open)
        store.log.append([b"\0\0\0\x03new"], WALL_NS)
        self.data_path.close()

        assert [] == [found for found in check_data_path("data", memory) if found.is_damage]

    def check_messages(self, store: TopicStore, safe: list[bytes], first_open: int) -> None:
        found: dict[int, bytes] = {}
        seq = 0
        while runs := store.log.read(seq):
            for run in runs:
                found.update(enumerate(run.frames, run.first_seq - self.first_seq))
            seq = runs[-1].next_seq
        # Each recovered message is the one that was written at its position.
        assert all(self.tried[at] == frame for at, frame in found.items())
        # All safe messages are recovered, except finished ones, which may have been trimmed.
        assert all(at in found for at in range(len(safe)) if at >= max(first_open, self.finished))
        assert all(at in found or at < self.finished for at in range(len(safe)))
        # No sequence number is used twice.
        assert store.log.next_seq >= self.first_seq + len(self.written)


def crashed_scenario(changes: int, written: int) -> tuple[LogScenario, MemoryFiles, bool]:
    """A scenario that ends at its nth change; whether it did."""
    memory = MemoryFiles()
    memory.make_folder("data")
    memory.sync_folder("")
    files = FaultyFiles(memory)
    scenario = LogScenario(files)
    files.crash_after(changes, written=written)
    try:
        scenario.run()
    except SimulatedCrash:
        files.heal()
        return scenario, memory, True
    files.heal()
    return scenario, memory, False


@pytest.mark.parametrize("written", TORN)
def test_recovery_after_a_process_crash_at_every_change(written: int) -> None:
    for changes in range(CHANGES_MAX):
        scenario, memory, has_crashed = crashed_scenario(changes, written)
        memory.crash()
        scenario.check(memory, power=False)
        if not has_crashed:
            assert changes > 60
            return
    pytest.fail("the scenario does not end")


@pytest.mark.parametrize("round_number", range(POWER_LOSSES))
def test_recovery_after_a_power_loss_at_every_change(round_number: int) -> None:
    random = fresh_random(f"test_recovery_after_a_power_loss_at_every_change {round_number}")
    for changes in range(CHANGES_MAX):
        scenario, memory, has_crashed = crashed_scenario(changes, written=20)
        memory.lose_power(random)
        scenario.check(memory, power=True)
        if not has_crashed:
            return
    pytest.fail("the scenario does not end")


@pytest.mark.parametrize("round_number", range(2))
def test_recovery_after_a_crash_during_recovery(round_number: int) -> None:
    """Tests every eighth crash point, and there every point of the recovery."""
    random = fresh_random(f"test_recovery_after_a_crash_during_recovery {round_number}")
    for changes in range(random.randrange(8), CHANGES_MAX, 8):
        for again in range(CHANGES_MAX):
            scenario, memory, has_crashed = crashed_scenario(changes, written=70)
            memory.lose_power(random)
            scenario.files.crash_after(again)
            try:
                scenario.start()
            except SimulatedCrash:
                scenario.files.heal()
                memory.crash()
                scenario.check(memory, power=True)
            else:
                scenario.files.heal()
                break
        if not has_crashed:
            return
    pytest.fail("the scenario does not end")
