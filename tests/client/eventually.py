"""Polling for a condition on an event loop."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["eventually"]


async def eventually(probe: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
    """Wait until `probe` returns true; fails with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        await asyncio.sleep(0.005)
