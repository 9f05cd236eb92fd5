"""Makes a failing schedule short: steps are left out as long as it goes on failing."""

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.schedule import Schedule, Step

__all__ = ["shrink"]


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """A schedule that fails too, and of which no step can be left out.

    Delta debugging: first halves are left out, then quarters, and in the end single steps.
    """
    steps = schedule.steps
    size = len(steps)
    while size:
        shorter = _without_pieces(steps, size, lambda each: fails(replace(schedule, steps=each)))
        size = size // 2 if len(shorter) == len(steps) or size > 1 else 1
        steps = shorter
    return replace(schedule, steps=steps)


def _without_pieces(
    steps: tuple[Step, ...], size: int, fail: Callable[[tuple[Step, ...]], bool]
) -> tuple[Step, ...]:
    """What is left when every piece of that size is left out that can be, the last ones first."""
    at = len(steps)
    while at > 0:
        at = max(at - size, 0)
        shorter = (*steps[:at], *steps[at + size :])
        if len(shorter) < len(steps) and fail(shorter):
            steps = shorter
    return steps
