"""`penstock drain`: take a node out of service without losing or stranding a message."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from penstock.cli.command_options import DURATION, CommandWithExamples, HttpAccess, http_access
from penstock.common.errors import ClientError, HttpRequestError

if TYPE_CHECKING:
    from penstock.admin_api.cluster import Cluster

__all__ = ["command", "wait_until_drained"]

POLL_SECONDS = 0.2


@click.command(
    "drain",
    cls=CommandWithExamples,
    examples=[
        "penstock drain 10.0.0.7:4151",
        "penstock drain 10.0.0.7:4151 --no-wait",
    ],
)
@click.argument("node", metavar="NODE")
@http_access
@click.option("--no-wait", is_flag=True, help="Start draining and return at once.")
@click.option(
    "--timeout",
    type=DURATION,
    default="5m",
    show_default=True,
    help="Maximum time to wait; the node continues to drain afterwards.",
)
def command(node: str, *, access: HttpAccess, no_wait: bool, timeout: float) -> None:
    """Take a node out of service without losing a message.

    NODE is the HTTP address of an nsqd. The nsqd refuses new messages and tells every nsqlookupd,
    so that producers use other nodes. It stops when its consumers have finished all messages, or
    after its --drain-timeout; remaining messages stay on its disk. Exits with 0 when the nsqd has
    stopped.
    """
    import asyncio  # noqa: PLC0415

    from penstock.cli.cluster_access import build_cluster  # noqa: PLC0415

    cluster = build_cluster((node,), (), access)
    asyncio.run(cluster.nsqd(node).drain())
    if no_wait:
        click.echo(f"{node} is draining", err=True)
        return
    left = asyncio.run(wait_until_drained(cluster, node, _tell, timeout_seconds=timeout))
    stays = f"; {left:,} messages remain on its disk" if left else ""
    _tell("")
    click.echo(f"{node} has stopped{stays}", err=True)


def _tell(progress: str) -> None:
    """On a terminal, overwrite the progress line; otherwise print nothing."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{progress}", err=True, nl=False)


async def wait_until_drained(
    cluster: "Cluster", node: str, tell: Callable[[str], None], *, timeout_seconds: float
) -> int:
    """Poll the node until it has stopped. Returns how many messages it had at the last poll. Raises
    ClientError if it has not stopped within the timeout."""
    import asyncio  # noqa: PLC0415

    from penstock.tools.display import format_count  # noqa: PLC0415

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
            seen = "does not respond"  # It may only be busy.
        else:
            if not snapshot.nodes[0].is_draining:
                return left  # It was restarted.
            left = snapshot.nodes[0].pending_count
            seen = f"is draining, {format_count(left, 'message')} left"
        tell(f"{node} {seen}")
        await asyncio.sleep(POLL_SECONDS)
    tell("")
    raise ClientError(f"{node} has not stopped within {timeout_seconds:g} s: it {seen}")
