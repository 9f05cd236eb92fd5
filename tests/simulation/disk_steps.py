"""Steps of the machine: time, disk faults, restarts and crashes."""

import errno
from random import Random

from tests.simulation.aftermath import End, check_recovered_state
from tests.simulation.schedule import Step
from tests.simulation.world import World

from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.errors import Error
from penstock.testing import SimulatedCrash
from penstock.testing.files import Operation

__all__ = ["DISK_STEPS", "end_process"]

_PASSES_MS = (5, 60, 200, 600, 1_200, 2_500, 4_100, 6_000)
_WALL_STEPS_MS = (-60_000, -2_000, -3, 2_000, 5_000, 60_000)
_OPERATIONS: tuple[Operation, ...] = (
    "write",
    "write",
    "write",
    "sync",
    "sync",
    "create",
    "rename",
    "remove",
    "truncate",
    "sync_folder",
    "make_folder",
)


def pass_time(world: World, step: Step) -> str:
    milliseconds = _PASSES_MS[step.a % len(_PASSES_MS)]
    world.say(f"{milliseconds} ms pass")
    if milliseconds >= 200:
        world.node.sync()
    world.loop.pass_time(milliseconds * MILLISECOND_NS)
    world.update_model(at_rest=True)
    world.record_saved_changes()
    return ""


def set_wall_clock(world: World, step: Step) -> str:
    milliseconds = _WALL_STEPS_MS[step.a % len(_WALL_STEPS_MS)]
    for channel in world.channels():
        for entry in channel.open.values():
            entry.was_due |= entry.due_ns <= world.clock.wall_ns()
    world.clock.set_wall(world.clock.wall_ns() + milliseconds * MILLISECOND_NS)
    world.wall_set_ns = world.now_ns
    world.wall_went_back |= milliseconds < 0
    return f"the wall clock is set by {milliseconds} ms"


def break_disk(world: World, step: Step) -> str:
    operation = _OPERATIONS[step.a % len(_OPERATIONS)]
    skip = step.b % 4
    times = (1, 1, 2, None)[step.b // 4 % 4]
    error = (errno.ENOSPC, errno.EIO)[step.c % 2]
    written = (0, 0, 10, 60)[step.c // 2 % 4] if operation == "write" else 0
    if operation == "write" and step.c % 7 == 0:
        world.files.fail("write", skip=skip, times=1, error=None, written=1 + written)
        world.count("fault: a short write")
        return f"after {skip} more, a write will take {1 + written} bytes only"
    world.files.fail(operation, skip=skip, times=times, error=error, written=written)
    world.count(f"fault: {errno.errorcode[error]}")
    often = "all" if times is None else times
    return f"after {skip} more, {often} {operation} will fail with {errno.errorcode[error]}"


def heal_disk(world: World, _: Step) -> str | None:
    if not world.files.has_faults:
        return None
    world.files.heal()
    world.ill_ns = world.now_ns
    return "the disk works again"


def sync(world: World, _: Step) -> str | None:
    if not world.node.is_syncing:
        return None
    world.node.sync()
    return "the slow disk finishes its fsyncs"


def restart(world: World, step: Step) -> str:
    world.say("a clean stop, and a new start")
    world.node_is_ending = True
    # Clients get no response from now on; only the stop reports failures.
    for topic in world.topics.values():
        for channel in topic.channels.values():
            for holder in channel.holders:
                for entry in list(holder.in_flight.values()):
                    world.requeue_entry(channel, entry)
    failures = world.node.stop()
    world.count("end: clean with failures" if failures else "end: clean")
    for topic in world.topics.values():
        topic.is_unsure |= bool(failures)
    end_process(world, End.KILL if failures else End.CLEAN, step)
    return ""


def kill(world: World, step: Step) -> str:
    world.say("the process is killed")
    world.count("end: kill")
    end_process(world, End.KILL, step)
    return ""


def lose_power(world: World, step: Step) -> str:
    world.say("power is lost")
    world.count("end: power loss")
    end_process(world, End.POWER, step)
    return ""


def crash_soon(world: World, step: Step) -> str:
    changes, written = step.a % 12, (0, 5, 70, 100_000)[step.b % 4]
    world.files.crash_after(changes, written=written)
    return f"the process will end after {changes} more changes to the disk"


DISK_STEPS = {
    "pass_time": pass_time,
    "set_wall_clock": set_wall_clock,
    "break_disk": break_disk,
    "heal_disk": heal_disk,
    "sync": sync,
    "restart": restart,
    "kill": kill,
    "lose_power": lose_power,
    "crash_soon": crash_soon,
}


def end_process(world: World, end: End, step: Step) -> None:
    """End the process and start a new one."""
    world.drop_connections()
    if end is End.POWER:
        world.memory.lose_power(Random(step.c))
        # A reboot takes some time and resets the monotonic clock.
        world.clock.set_wall(world.clock.wall_ns() + SECOND_NS)
    else:
        world.memory.crash()
    world.ill_ns = world.now_ns if world.files.has_faults else world.ill_ns
    world.files.heal()
    if step.a % 6 == 0:
        _crash_while_starting(world, step.b % 20)
    world.node = world.new_node()
    world.node_is_ending = False
    check_recovered_state(world, end)
    world.update_model(at_rest=False)
    world.loop.pass_time(SECOND_NS // 1000)


def _crash_while_starting(world: World, changes: int) -> None:
    """The new process crashes during its start."""
    world.files.crash_after(changes)
    try:
        world.new_node()
    except SimulatedCrash:
        world.count("end: while starting")
    except Error:
        world.count("end: could not start")
    world.loop.forget()
    world.memory.crash()
    world.files.heal()
