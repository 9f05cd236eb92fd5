"""Waiting, on a loop, for what another process or task is about to do."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["eventually"]


async def eventually(probe: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
    """Returns when `probe` is true. Fails, naming `what`, if that does not happen in time."""
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        await asyncio.sleep(0.005)
