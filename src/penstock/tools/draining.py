"""`penstock drain`: watch a node until it has stopped."""

import asyncio
from collections.abc import Callable

from penstock.admin_api.cluster import Cluster
from penstock.common.errors import ClientError, HttpRequestError
from penstock.tools.figures import counted

__all__ = ["wait_until_drained"]

LOOK_SECONDS = 0.2


async def wait_until_drained(
    cluster: Cluster, node: str, tell: Callable[[str], None], *, timeout_seconds: float
) -> int:
    """Returns how many messages were left when it was last seen. Raises ClientError if it is still
    there after so long, or may be."""
    loop = asyncio.get_running_loop()
    until, left, seen = loop.time() + timeout_seconds, 0, ""
    while loop.time() < until:
        try:
            snapshot = await cluster.snapshot()
        except HttpRequestError as failure:
            if failure.status is not None:
                raise
            if not failure.timed_out:
                return left
            seen = "does not answer"  # It may be busy, and is not known to have stopped.
        else:
            if not snapshot.nodes[0].is_draining:
                return left  # Somebody has started it again.
            left = snapshot.nodes[0].pending_count
            seen = f"is draining, {counted(left, 'message')} left"
        tell(f"{node} {seen}")
        await asyncio.sleep(LOOK_SECONDS)
    tell("")
    raise ClientError(f"{node} has not stopped in time: it {seen}")
