"""Runs the steps of a schedule, then drains all channels."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.aftermath import End
from tests.simulation.client_steps import CLIENT_STEPS, finish_all, set_rdy, subscribe_to
from tests.simulation.disk_steps import DISK_STEPS, end_process
from tests.simulation.model import ModelChannel
from tests.simulation.node import simulated_environment
from tests.simulation.operator_steps import OPERATOR_STEPS
from tests.simulation.schedule import VERBS, Schedule, Step
from tests.simulation.violation import ViolationError
from tests.simulation.world import WALL_STEP_NOTICED_NS, World

from penstock.common.clock import MILLISECOND_NS
from penstock.testing import SimulatedCrash

__all__ = ["Outcome", "run"]

_STEPS: dict[str, Callable[[World, Step], str | None]] = {
    **CLIENT_STEPS,
    **OPERATOR_STEPS,
    **DISK_STEPS,
}
assert _STEPS.keys() == VERBS.keys()


@dataclass
class Outcome:
    """Result of a run."""

    violation: str | None = None
    is_crash: bool = False
    """Whether an unexpected exception ended the run."""
    failed_at: int = 0
    coverage: Counter[str] = field(default_factory=Counter)


def run(schedule: Schedule, trace: Callable[[str], object] | None = None) -> Outcome:
    """Run all steps, or up to the first violation."""
    world = World(schedule.setup, schedule.seed, trace)
    outcome = Outcome(coverage=world.coverage)
    with simulated_environment(world.loop, world.clock, world):
        world.start()
        try:
            for at, step in enumerate(schedule.steps):
                outcome.failed_at = at
                _take(world, step)
            outcome.failed_at = len(schedule.steps)
            _drain(world)
        except AssertionError as failure:
            outcome.violation = str(failure) or repr(failure)
            if not isinstance(failure, ViolationError):
                outcome.violation = f"an assertion of our own: {_where(failure)} {failure}"
        except Exception as failure:  # noqa: BLE001 (any exception is a failure)
            outcome.violation = f"{type(failure).__name__} {_where(failure)}: {failure}"
            outcome.is_crash = True
    return outcome


def _take(world: World, step: Step) -> None:
    try:
        if step.ends_turn:
            world.loop.pass_time(MILLISECOND_NS)
            world.apply_timeouts()
            world.apply_sampling()
        said = _STEPS[step.verb](world, step)
        if said:
            world.say(said if step.ends_turn else f"{said} (and in the same turn)")
        if said is not None:
            world.coverage[f"step: {step.verb}"] += 1
        if step.ends_turn:
            world.loop.run_due()
    except SimulatedCrash:
        world.say("    the process ends in the middle of it")
        world.count("end: in the middle of a write")
        end_process(world, End.KILL if step.b % 4 else End.POWER, step)
    world.update_model(at_rest=step.ends_turn)


# The end.

_EVERYTHING = 300
_ROUNDS_MAX = 40


def _drain(world: World) -> None:
    """At the end, all open messages can be consumed, and no others."""
    world.say("drain all channels")
    world.files.heal()
    world.ill_ns = world.now_ns
    world.node.sync()
    world.loop.pass_time(MILLISECOND_NS)
    _unpause_all(world)
    for _ in range(_ROUNDS_MAX):
        world.loop.run_due()
        world.update_model(at_rest=True)
        for consumer in list(world.consumers.values()):
            if consumer.in_flight:
                finish_all(world, consumer)
        world.loop.run_due()
        world.update_model(at_rest=True)
        left = [channel for channel in world.channels() if channel.open]
        if not left:
            return
        _wait_for(world, left)
    stuck = next(iter(left[0].open.values())).message.body
    raise ViolationError(f"{left[0].name} cannot be drained of {stuck!r}")


def _unpause_all(world: World) -> None:
    broker = world.node.broker
    for topic in list(world.topics.values()):
        world.remember_ephemeral(topic)
        topic.real.pause(False)
        topic.paused = False
        world.release(topic)
        for channel in topic.channels.values():
            real = broker.topics[topic.name].channels[channel.name]
            real.set_committing(False)
            real.pause(False)
            channel.committing = channel.paused = False
        for name in [*topic.channels] or ["c"]:
            subscribe_to(world, topic.name, name, Step("subscribe", 0, 0, 21))
    for consumer in list(world.consumers.values()):
        consumer.connection.ignores_heartbeats = False
        consumer.connection.resume_reading()
        if consumer.connection.can_send:
            set_rdy(consumer, _EVERYTHING)


def _wait_for(world: World, channels: list[ModelChannel]) -> None:
    """Wait until a deferred message is due, or a message of a disconnected consumer times out."""
    wall_ns = world.clock.wall_ns()
    soonest_ns = min(
        (
            max(entry.due_ns - wall_ns, 0)
            if entry.holder is None
            else entry.deadline_ns - world.now_ns
        )
        for channel in channels
        for entry in channel.open.values()
    )
    world.node.sync()
    unnoticed_ns = world.wall_set_ns + WALL_STEP_NOTICED_NS - world.now_ns
    world.loop.pass_time(max(soonest_ns, unnoticed_ns, 0) + 20 * MILLISECOND_NS)


def _where(failure: BaseException) -> str:
    """Innermost location of an unexpected exception."""
    at = failure.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"at {at.tb_frame.f_code.co_qualname}:{at.tb_lineno}" if at is not None else ""
