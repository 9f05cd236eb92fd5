"""Many schedules, one after the other: those that fail, and what all of them came by."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.simulation.run import run
from tests.simulation.schedule import Schedule, schedule_of
from tests.simulation.shrink import shrink

__all__ = ["Campaign", "campaign", "first_failure", "shortened", "trace_of"]

# A run leaves a heap of cycles behind. To clear them now and then is much cheaper than to let the
# collector look for them all the time.
_RUNS_BETWEEN_COLLECTIONS = 200


@dataclass
class Campaign:
    """What came of it."""

    runs: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """By seed."""
    coverage: Counter[str] = field(default_factory=Counter)


def campaign(seeds: Iterable[int], progress: Callable[[int], object] = lambda _: None) -> Campaign:
    """Runs the schedules of these seeds. `progress` is told now and then how many there were."""
    outcome = Campaign()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for seed in seeds:
            result = run(schedule_of(seed))
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


def first_failure(seeds: Iterable[int]) -> int | None:
    """The first seed whose schedule fails."""
    return next((seed for seed in seeds if run(schedule_of(seed)).violation is not None), None)


def shortened(schedule: Schedule) -> Schedule:
    """A failing schedule without the steps that it can do without."""
    return shrink(schedule, lambda shorter: run(shorter).violation is not None)


def trace_of(schedule: Schedule) -> str:
    """What happens, line by line, and what is wrong with it."""
    lines = [f"seed {schedule.seed}, {schedule.setup}"]
    violation = run(schedule, lines.append).violation
    lines.append("no violation" if violation is None else f"VIOLATION: {violation}")
    return "\n".join(lines)
