"""Runs the steps of a schedule, then repairs everything and checks that the cluster recovers."""

import traceback
from collections.abc import Callable
from unittest.mock import patch

from tests.replication_simulation.ledger import disk_folder
from tests.replication_simulation.machine import DATA_PATH
from tests.replication_simulation.schedule import VERBS, ClusterSchedule
from tests.replication_simulation.world import STEPS, TOPICS, World
from tests.simulation.node import try_syncs_in_turn
from tests.simulation.run import Outcome
from tests.simulation.violation import ViolationError

from penstock.common import names
from penstock.replication import leader
from penstock.storage import topic_storage
from penstock.storage.cursor_journal import CursorState, JournalRecord
from penstock.storage.cursors import current_generation, read_journals
from penstock.storage.layout import TOPICS_NAME, maybe_segment_seq
from penstock.testing.files import _Content, _Folder

__all__ = ["run"]

assert STEPS.keys() == VERBS.keys()

# Each round is 0.1 s.
_ROUNDS_MAX = 400


def run(schedule: ClusterSchedule, trace: Callable[[str], object] | None = None) -> Outcome:
    """Run a schedule."""
    world = World(schedule, trace)
    outcome = Outcome(coverage=world.coverage)
    with (
        patch.object(leader, "CHUNK_BYTES", schedule.setup.chunk_bytes),
        patch.object(topic_storage, "fsync_in_parallel", try_syncs_in_turn),
    ):
        try:
            _run_steps(world, schedule)
            world.tell("all faults are repaired")
            _recover(world)
        except ViolationError as violation:
            outcome.violation = str(violation)
        except Exception as bug:  # noqa: BLE001 (reported with its seed)
            outcome.violation = "".join(traceback.format_exception(bug)[-6:])
            outcome.is_crash = True
    return outcome


def _run_steps(world: World, schedule: ClusterSchedule) -> None:
    for machine in world.machines.values():
        world.start(machine)
    if schedule.setup.starts_in_sync:
        _wait_until_in_sync(world)
    for number, step in enumerate(schedule.steps):
        world.tell(f"{number}: {step.verb} {step.a} {step.b} {step.c}")
        STEPS[step.verb](world, step)
        world.check()


def _recover(world: World) -> None:
    world.network.cuts.clear()
    for machine in world.machines.values():
        machine.files.heal()
    for process in world.running:
        process.coordinator.set_connected(is_connected=True)
        world.service.resend_view(process.coordinator)
    _wait_until_in_sync(world)
    for topic in TOPICS:
        process = world.leaders[0]
        with world.turn_of(process):
            world.publish(process, topic, 1, 10)
    confirmed = world.coverage["confirmed"]
    _wait_until_in_sync(world)
    if world.coverage["confirmed"] != confirmed + len(TOPICS):
        raise ViolationError("a message was not confirmed although all members are in sync")
    world.ledger.check_new_leader(world.leaders[0])
    _check_equal_files(world)


def _wait_until_in_sync(world: World) -> None:
    """Let time pass until all members are in sync, and have all messages."""
    for number in range(_ROUNDS_MAX):
        for machine in world.machines.values():
            world.start(machine)
        for member, entry in list(world.service.alive.items()):
            process = world.machines[member].process
            if process is None or process.session != entry.session:
                world.service.expire(member)
        if number % 20 == 19 and world.service.record and not world.eligible():
            world.force_leader()
        world.run_round()
        if number > 2 and _is_in_sync(world):
            return
    record = world.service.record
    roles = {each.name: each.member.role.name for each in world.running}
    errors = world.last_error | {each.name: each.last_error for each in world.running}
    raise ViolationError(f"the cluster does not recover: {errors}, {roles}, {record}")


def _is_in_sync(world: World) -> bool:
    record = world.service.record
    leaders = world.leaders
    if record is None or len(leaders) != 1 or world.service.pending:
        return False
    leading = leaders[0]
    assert leading.leader is not None
    links = leading.leader.links
    return (
        (record.leader, record.epoch) == (leading.name, leading.epoch)
        and record.preferred_leader in (None, leading.name)
        and len(record.in_sync) == len(world.machines)
        and len(links) == len(world.machines) - 1
        and all(link.has_everything for link in links.values())
        and all(each.log.high_watermark == each.log.next_seq for each in leading.stores.values())
    )


def _check_equal_files(world: World) -> None:
    """All members have the same topics, segments and progress."""
    leading = world.leaders[0]
    expected = _contents(world, leading.name)
    for name in world.machines:
        found = _contents(world, name)
        for path in expected.keys() | found.keys():
            if expected.get(path) != found.get(path):
                raise ViolationError(f"{path} of {name} differs from that of {leading.name}")


def _contents(world: World, member: str) -> dict[str, object]:
    machine = world.machines[member]
    topics = disk_folder(machine, f"{DATA_PATH}/{TOPICS_NAME}", is_synced=False)
    assert topics is not None
    found: dict[str, object] = {}
    for folder_name, folder in topics.names.items():
        if names.name_of_file(folder_name) is None or not isinstance(folder, _Folder):
            continue
        for name, content in folder.names.items():
            is_segment = maybe_segment_seq(name) is not None
            if is_segment and isinstance(content, _Content) and content.seen:
                found[f"{folder_name}/{name}"] = bytes(content.seen)
        path = f"{DATA_PATH}/{TOPICS_NAME}/{folder_name}"
        journals = read_journals(machine.disk, path)
        state = CursorState()
        for record in journals[current_generation(journals)] if journals else ():
            if isinstance(record, JournalRecord):
                for change in record.changes:
                    state.apply(change)
        found[f"{folder_name}/progress"] = state.snapshot()
    return found
