"""Shortens a failing schedule by removing steps while it still fails."""

from collections.abc import Callable

from tests.simulation.schedule import Step

__all__ = ["shrink"]


def shrink(steps: tuple[Step, ...], fail: Callable[[tuple[Step, ...]], bool]) -> tuple[Step, ...]:
    """The steps of a failing schedule, of which none can be removed any more.

    Delta debugging: tries to remove halves, then quarters, and finally single steps.
    """
    size = len(steps)
    while size:
        shorter = _without_pieces(steps, size, fail)
        size = size // 2 if len(shorter) == len(steps) or size > 1 else 1
        steps = shorter
    return steps


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
