"""Runs many schedules; collects failures and coverage."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.simulation.run import Outcome, run
from tests.simulation.schedule import Schedule, schedule_of
from tests.simulation.shrink import shrink

__all__ = ["Campaign", "campaign", "first_failure", "run_seeds", "shortened", "trace_of"]

# Runs leave many reference cycles. An explicit collection after some runs is much cheaper than
# automatic ones.
_RUNS_BETWEEN_COLLECTIONS = 200


@dataclass
class Campaign:
    """Results of a campaign."""

    runs: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """By seed."""
    coverage: Counter[str] = field(default_factory=Counter)


def run_seeds(
    seeds: Iterable[int],
    run_seed: Callable[[int], Outcome],
    progress: Callable[[int], object] = lambda _: None,
) -> Campaign:
    """Run the schedule of each seed. `progress` is called with the number of finished ones."""
    outcome = Campaign()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for seed in seeds:
            result = run_seed(seed)
            outcome.runs += 1
            outcome.coverage.update(result.coverage)
            if result.violation is not None:
                outcome.failures[seed] = result.violation
            if outcome.runs % _RUNS_BETWEEN_COLLECTIONS == 0:
                gc.collect()
                progress(outcome.runs)
    finally:
        if was_enabled:
            gc.enable()
    return outcome


def campaign(seeds: Iterable[int], progress: Callable[[int], object] = lambda _: None) -> Campaign:
    """Run the schedules of these seeds. `progress` is called with the number of finished ones."""
    return run_seeds(seeds, lambda seed: run(schedule_of(seed)), progress)


def first_failure(seeds: Iterable[int]) -> int | None:
    """The first seed whose schedule fails."""
    return next((seed for seed in seeds if run(schedule_of(seed)).violation is not None), None)


def shortened(schedule: Schedule) -> Schedule:
    """A failing schedule without unnecessary steps."""
    steps = shrink(
        schedule.steps,
        lambda shorter: run(replace(schedule, steps=shorter)).violation is not None,
    )
    return replace(schedule, steps=steps)


def trace_of(schedule: Schedule) -> str:
    """The trace of a schedule, and its violation."""
    lines = [f"seed {schedule.seed}, {schedule.setup}"]
    violation = run(schedule, lines.append).violation
    lines.append("no violation" if violation is None else f"VIOLATION: {violation}")
    return "\n".join(lines)
