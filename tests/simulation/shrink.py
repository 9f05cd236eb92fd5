"""Shortens a failing schedule by removing steps while it still fails."""

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.schedule import Schedule, Step

__all__ = ["shrink"]


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """A failing schedule from which no step can be removed.

    Delta debugging: tries to remove halves, then quarters, and finally single steps.
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
    """The schedule without all removable pieces of this size, last ones first."""
    at = len(steps)
    while at > 0:
        at = max(at - size, 0)
        shorter = (*steps[:at], *steps[at + size :])
        if len(shorter) < len(steps) and fail(shorter):
            steps = shorter
    return steps
