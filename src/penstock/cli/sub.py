"""`penstock sub`: print what comes to a channel."""

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
@click.option("--count", "-n", type=click.IntRange(min=1), help="Exit after so many messages.")
@click.option("--timeout", type=DURATION, help="Exit with 1 if nothing comes for so long.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each message.")
@click.option(
    "--max-in-flight",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="How many messages nsqd may send ahead.",
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
    """Print the messages that come to CHANNEL of TOPIC.

    Each is a line. They are finished once they have been printed, so that other consumers of the
    channel do not get them. A channel whose name ends in #ephemeral is of your own, and goes when
    you do. Ctrl-C leaves, with exit code 0 unless --count was to be reached.
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
