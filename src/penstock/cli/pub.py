"""`penstock pub`: publish messages from the command line, from a pipe or from a file."""

import sys

import click

from penstock.cli.command_options import (
    DURATION,
    NSQD_TCP_ADDRESS,
    TOPIC,
    CommandWithExamples,
    client_options,
    tcp_addresses,
)

__all__ = ["command"]


@click.command(
    "pub",
    cls=CommandWithExamples,
    examples=[
        'penstock pub greetings hello "hello again"',
        "tail -F access.log | penstock pub access",
        "penstock pub orders --file orders.ndjson",
        'penstock pub reminders --defer 10m "stretch your legs"',
    ],
)
@click.argument("topic", type=TOPIC)
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@tcp_addresses
@client_options("producer")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    help="Publish the lines of a file; - for stdin.",
)
@click.option("--whole", is_flag=True, help="All of the file, or of stdin, is one message.")
@click.option("--defer", type=DURATION, default=0.0, help="Deliver so much later, such as 1m30s.")
def command(
    topic: str,
    bodies: tuple[str, ...],
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    options: tuple[str, ...],
    file: str | None,
    whole: bool,
    defer: float,
) -> None:
    """Publish messages to TOPIC.

    Each BODY is a message. Without any, each line of stdin or of a file is one; empty lines are
    left out, since NSQ has no empty messages. Exits with 0 once nsqd has stored them all.
    """
    from penstock.tools.pub import PubInput, publish  # noqa: PLC0415

    if bodies and (file or whole):
        raise click.UsageError("messages come from the command line or from a file, not from both")
    if bodies and not all(bodies):
        raise click.UsageError("NSQ has no empty messages")
    path = None if file in (None, "-") else file
    if not bodies and path is None and sys.stdin is None:
        raise click.UsageError("standard input is closed")
    if not bodies and path is None and sys.stdin.isatty():
        click.echo("One message a line; Ctrl-D ends.", err=True)
    source = PubInput(tuple(map(_to_bytes, bodies)), path, whole=whole)
    publish(
        topic,
        source,
        nsqds=nsqds if nsqds or lookupds else (NSQD_TCP_ADDRESS,),
        lookupds=lookupds,
        options=options,
        defer=defer,
    )


def _to_bytes(argument: str) -> bytes:
    """As the shell gave it, whatever its encoding."""
    return argument.encode("utf-8", "surrogateescape")
