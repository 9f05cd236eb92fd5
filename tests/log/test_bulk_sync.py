"""Many logs share one sync, and each still learns of its own losses."""

from collections.abc import Sequence
from random import Random

import pytest
from tests.log.frames import WALL_NS, frames, read_all

from penstock.errors import StorageError
from penstock.log import DataPath, LogSettings, TopicStore
from penstock.log.bulk_sync import MANY, BulkSync, Outcomes
from penstock.log.sync import Syncable
from penstock.testing import FaultyFiles, MemoryFiles

NAMES = [f"t{number}" for number in range(MANY)]


class World:
    """A data path with a topic for each name, each with a message that no fsync has covered."""

    def __init__(self, memory: MemoryFiles) -> None:
        self.memory = memory
        memory.sync_folder("")
        self.files = FaultyFiles(memory)
        self.data_path = DataPath.open("data", LogSettings(), self.files)
        self.stores = [self.data_path.open_topic(name, wall_ns=WALL_NS)[0] for name in NAMES]
        self.logs = [store.log for store in self.stores]
        self.bulk = BulkSync(self.data_path.volume)
        self.append("first")

    def append(self, body: str) -> None:
        """To all that take anything now."""
        for log in self.logs:
            if not log.needs_retry:
                log.append(frames(body), WALL_NS)

    def sync(self, targets: Sequence[Syncable]) -> list[StorageError | None]:
        """How each fared."""
        begun = [(target, target.begin_sync()) for target in targets]
        pieces = list(self.bulk.run([job for _, job in begun]))
        self.pieces = [len(piece) for piece in pieces]
        outcomes: Outcomes = {job: error for piece in pieces for job, error in piece.items()}
        for target, job in begun:
            target.end_sync(job, outcomes[job])
        return [outcomes[job] for _, job in begun]

    def after_power_loss(self, seed: int) -> list[TopicStore]:
        self.memory.lose_power(Random(seed))
        data_path = DataPath.open("data", LogSettings(), self.memory)
        return [data_path.open_topic(name, wall_ns=WALL_NS)[0] for name in NAMES]


@pytest.fixture
def world(memory_files: MemoryFiles) -> World:
    return World(memory_files)


def errors_of(outcomes: list[StorageError | None]) -> list[str]:
    return [str(error) for error in outcomes if error is not None]


@pytest.mark.parametrize("seed", range(5))
def test_all_that_many_logs_have_is_safe_after_one_sync(world: World, seed: int) -> None:
    changes = world.files.changes
    assert [None] * MANY == world.sync(world.logs)

    assert [MANY] == world.pieces
    assert MANY + 1 == world.files.changes - changes
    assert [["first"]] * MANY == [read_all(store.log) for store in world.after_power_loss(seed)]


def test_journals_are_safe_too(world: World) -> None:
    for store in world.stores:
        store.cursors.create("c", store.log.first_seq)
    assert [None] * 2 * MANY == world.sync([*world.logs, *(each.cursors for each in world.stores)])

    assert [2 * MANY] == world.pieces
    assert all("c" in store.cursors.progress for store in world.after_power_loss(0))


def test_a_few_are_fsynced_each(world: World) -> None:
    world.files.fail("sync_volume", times=None)
    assert [None] * (MANY - 1) == world.sync(world.logs[1:])

    assert [1] * (MANY - 1) == world.pieces
    assert [] == world.files.struck


def test_without_a_volume_all_are_fsynced_each(world: World) -> None:
    world.bulk = BulkSync(None)
    assert [None] * MANY == world.sync(world.logs)

    assert [1] * MANY == world.pieces


def test_a_log_on_another_file_system_is_fsynced_by_itself(memory_files: MemoryFiles) -> None:
    DataPath.open("data", LogSettings(), memory_files).close()
    memory_files.make_folder("data/topics/t0")
    memory_files.mount("data/topics/t0")
    world = World(memory_files)
    assert [None] * MANY == world.sync(world.logs)

    assert [1, MANY - 1] == world.pieces
    assert [["first"]] * MANY == [read_all(store.log) for store in world.after_power_loss(0)]


class TestLosses:
    def test_a_file_that_cannot_be_written_is_no_other_ones_matter(self, world: World) -> None:
        world.files.fail("start_sync", skip=7)

        lost = ["cannot sync data/topics/t7: Input/output error"]
        assert lost == errors_of(world.sync(world.logs))
        assert [MANY] == world.pieces
        assert [world.logs[7]] == [log for log in world.logs if log.needs_retry]

    def test_what_the_file_system_has_lost_may_be_anybodys(self, world: World) -> None:
        world.files.fail("sync_volume")
        outcomes = world.sync(world.logs)

        expected = [f"cannot sync data/topics/{name}: Input/output error" for name in NAMES]
        assert expected == errors_of(outcomes)

    @pytest.mark.parametrize("seed", range(5))
    def test_what_was_lost_is_written_again_and_by_itself(self, world: World, seed: int) -> None:
        world.files.fail("start_sync", skip=7)
        world.sync(world.logs)
        world.append("second")
        assert [] == errors_of(world.sync(world.logs))

        assert [1, MANY - 1] == world.pieces
        assert ["first"] == read_all(world.after_power_loss(seed)[7].log)

    @pytest.mark.parametrize("seed", range(5))
    def test_who_had_not_asked_writes_it_again_too(self, world: World, seed: int) -> None:
        """The file system speaks of a loss once, and a file's own fsync need not speak of it."""
        bystander = world.stores[0]
        bystander.cursors.create("c", bystander.log.first_seq)
        world.files.fail("sync_volume")
        world.sync([*world.logs[1:], *(store.cursors for store in world.stores[1:])])
        assert [] == errors_of(world.sync([bystander.log, bystander.cursors]))

        found = world.after_power_loss(seed)[0]
        assert ["first"] == read_all(found.log)
        assert ["c"] == list(found.cursors.progress)

    def test_once_all_is_written_again_syncs_are_shared_again(self, world: World) -> None:
        world.files.fail("sync_volume")
        world.sync(world.logs)
        assert [None] * MANY == world.sync(world.logs)
        assert [1] * MANY == world.pieces

        world.append("second")
        assert [None] * MANY == world.sync(world.logs)
        assert [MANY] == world.pieces
