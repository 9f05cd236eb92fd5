"""Runs many schedules; collects failures and coverage."""

from collections.abc import Iterable
from dataclasses import replace

from tests.replication_simulation.run import run
from tests.replication_simulation.schedule import ClusterSchedule, schedule_of
from tests.simulation.campaign import Campaign, run_seeds
from tests.simulation.shrink import shrink

__all__ = ["campaign", "first_failure", "shortened", "trace_of"]


def campaign(seeds: Iterable[int]) -> Campaign:
    """Run the schedules of these seeds."""
    return run_seeds(seeds, lambda seed: run(schedule_of(seed)))


def first_failure(seeds: Iterable[int]) -> int | None:
    """The first seed whose schedule fails."""
    return next((seed for seed in seeds if run(schedule_of(seed)).violation is not None), None)


def shortened(schedule: ClusterSchedule) -> ClusterSchedule:
    """A failing schedule without unnecessary steps."""
    steps = shrink(
        schedule.steps,
        lambda shorter: run(replace(schedule, steps=shorter)).violation is not None,
    )
    return replace(schedule, steps=steps)


def trace_of(schedule: ClusterSchedule) -> str:
    """The trace of a schedule, and its violation."""
    lines = [f"seed {schedule.seed}, {schedule.setup}"]
    violation = run(schedule, lines.append).violation
    lines.append("no violation" if violation is None else f"VIOLATION: {violation}")
    return "\n".join(lines)
