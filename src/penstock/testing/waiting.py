"""Polling for a condition until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

_Answer = TypeVar("_Answer")

POLL_SECONDS = 0.002

# Generous: on a busy machine, a program may take many seconds to start.
TIMEOUT_SECONDS = 60.0


def wait_until(
    probe: Callable[[], _Answer], what: str, *, seconds: float = TIMEOUT_SECONDS
) -> _Answer:
    """Call `probe` until it returns a true value, and return that. After `seconds`, raise an
    AssertionError that contains `what`."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(POLL_SECONDS)
    return answer
