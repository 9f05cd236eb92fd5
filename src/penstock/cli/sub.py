"""`penstock sub`: consume a channel and print its messages."""

from contextlib import nullcontext

import click

from penstock.cli.command_options import (
    CHANNEL,
    DURATION,
    NSQD_TCP_ADDRESS,
    TOPIC,
    CommandWithExamples,
    client_options,
    tcp_addresses,
)

__all__ = ["command"]


@click.command(
    "sub",
    cls=CommandWithExamples,
    examples=[
        "penstock sub orders printer",
        "penstock sub orders 'look#ephemeral' --count 10",
        "penstock sub orders printer --json | jq .attempts",
    ],
)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@tcp_addresses
@client_options("consumer")
@click.option("--count", "-n", type=click.IntRange(min=1), help="Exit after this many messages.")
@click.option(
    "--timeout",
    type=DURATION,
    help="Exit with 1 if no message arrives for this long.  [default: no limit]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@click.option(
    "--max-in-flight",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Maximum messages in flight.",
)
def command(
    topic: str,
    channel: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    options: tuple[str, ...],
    count: int | None,
    timeout: float | None,
    as_json: bool,
    max_in_flight: int,
) -> None:
    """Consume CHANNEL of TOPIC and print its messages, one per line.

    Messages are finished after they are printed, so other consumers of the channel do not get
    them. To get a channel that is deleted when you disconnect, end its name with #ephemeral.
    Ctrl-C exits with 0, or with 1 if --count is not reached.
    """
    import asyncio  # noqa: PLC0415

    from penstock.cli.interrupts import exit_on_signals  # noqa: PLC0415
    from penstock.tools.sub import print_messages  # noqa: PLC0415

    with exit_on_signals() if count is None else nullcontext():
        asyncio.run(
            print_messages(
                topic,
                channel,
                nsqds=nsqds if nsqds or lookupds else (NSQD_TCP_ADDRESS,),
                lookupds=lookupds,
                options=options,
                warn=lambda warning: click.echo(f"penstock: {warning}", err=True),
                count=count,
                timeout_seconds=timeout,
                as_json=as_json,
                max_in_flight=max_in_flight,
            )
        )
