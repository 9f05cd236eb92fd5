"""`penstock seek`: move a channel to another position in its topic's log."""

import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.command_options import (
    CHANNEL,
    LOG_POSITION,
    SEQ_WITHOUT_NODE,
    TOPIC,
    CommandWithExamples,
    HttpAccess,
    http_access,
    http_addresses,
)
from penstock.common.errors import ConfigError

if TYPE_CHECKING:
    from penstock.admin_api.seeking import Move

__all__ = ["command"]


@click.command(
    "seek",
    cls=CommandWithExamples,
    examples=[
        "penstock seek orders billing 15m",
        "penstock seek orders billing earliest --yes",
        "penstock seek orders billing latest --lookupd-http-address 127.0.0.1:4161",
    ],
)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.argument("place", metavar="TO", type=LOG_POSITION)
@http_addresses
@http_access
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def command(
    topic: str,
    channel: str,
    place: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    access: HttpAccess,
    yes: bool,
) -> None:
    """Rewind CHANNEL of TOPIC, or skip waiting messages.

    TO is earliest, latest, a sequence number, a position as printed by penstock history, a time
    such as 2026-11-15T08:00:00Z, or an age such as 15m. The channel delivers all stored messages
    from TO on, including finished ones; messages before TO count as finished. Consumers stay
    connected. The command shows the effect and asks for confirmation.
    """
    import asyncio  # noqa: PLC0415

    from penstock.admin_api.seeking import is_seq, move, plan  # noqa: PLC0415
    from penstock.cli.cluster_access import (  # noqa: PLC0415
        build_cluster,
        find_nodes_with_topic,
    )

    addresses = find_nodes_with_topic(topic, nsqds, lookupds, access)
    if is_seq(place) and len(addresses) > 1:
        raise click.UsageError(SEQ_WITHOUT_NODE)
    cluster = build_cluster(tuple(addresses), (), access)
    snapshot = asyncio.run(cluster.snapshot(topic))
    if snapshot.failures:
        raise snapshot.failures[0]  # Move the channel on all of its nodes or on none.
    apis = [cluster.nsqd(address) for address in addresses]
    moves = asyncio.run(plan(apis, snapshot, topic, channel, place))
    for each in moves:
        click.echo(_describe(each), err=True)
    if not yes:
        _confirm(topic, channel)
    asyncio.run(move(moves, topic, channel))
    click.echo(f"moved {topic}/{channel}", err=True)


def _describe(move: "Move") -> str:
    from penstock.admin_api.seeking import format_position  # noqa: PLC0415
    from penstock.tools.display import format_count  # noqa: PLC0415

    start = format_position(move.log_id, move.seq)
    effect = f"will deliver {format_count(move.ahead, 'message')} from {start} on"
    if move.again:
        effect += f", {move.again:,} of them again"
    if move.skipped:
        effect += f"; {move.skipped:,} waiting messages are skipped"
    return f"{move.api.address}: {effect}"


def _confirm(topic: str, channel: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("no terminal to ask for confirmation: pass --yes")
    click.confirm(f"Move {topic}/{channel}?", abort=True, err=True)
