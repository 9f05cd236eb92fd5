"""Waiting for what another process is about to do: by asking again until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

_Answer = TypeVar("_Answer")

POLL_SECONDS = 0.002

# Generous: on a machine whose cores are all busy, a program may take many seconds to start.
PATIENCE_SECONDS = 60.0


def wait_until(
    probe: Callable[[], _Answer], what: str, *, seconds: float = PATIENCE_SECONDS
) -> _Answer:
    """The first true answer of `probe`. Fails, naming `what`, if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(POLL_SECONDS)
    return answer
