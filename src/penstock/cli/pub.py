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
    help="Publish the lines of this file; - for stdin.",
)
@click.option(
    "--whole", is_flag=True, help="Publish the whole file, or all of stdin, as one message."
)
@click.option(
    "--defer",
    type=DURATION,
    default=0.0,
    help="Delay of the delivery, such as 1m30s.  [default: none]",
)
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

    Each BODY is a message. Without BODY, each line of stdin or of --file is a message; empty lines
    are skipped, because NSQ has no empty messages. Exits with 0 when nsqd has stored all messages.
    """
    from penstock.tools.pub import PubInput, publish  # noqa: PLC0415

    if bodies and (file or whole):
        raise click.UsageError("use either BODY or --file and --whole, not both")
    if bodies and not all(bodies):
        raise click.UsageError("BODY must not be empty")
    path = None if file in (None, "-") else file
    if not bodies and path is None and sys.stdin is None:
        raise click.UsageError("standard input is closed")
    if not bodies and path is None and sys.stdin.isatty():
        click.echo("Enter one message per line; Ctrl-D ends.", err=True)
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
    """The original bytes of the argument, whatever its encoding."""
    return argument.encode("utf-8", "surrogateescape")
