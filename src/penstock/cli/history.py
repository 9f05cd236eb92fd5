"""`penstock history`: print stored messages, by position or time."""

import sys
from contextlib import nullcontext

import click

from penstock.cli.command_options import (
    LOG_POSITION,
    SEQ_WITHOUT_NODE,
    TOPIC,
    CommandWithExamples,
    HttpAccess,
    http_access,
    http_addresses,
)

__all__ = ["command"]


@click.command(
    "history",
    cls=CommandWithExamples,
    examples=[
        "penstock history orders --from 15m",
        "penstock history orders --from 2026-11-15T08:00:00Z --to 2026-11-15T09:00:00Z --json",
        "penstock history orders --from 9f86d081:1794784543198232 --limit 10",
        "penstock history orders --follow --body | jq .",
    ],
)
@click.argument("topic", type=TOPIC)
@http_addresses
@http_access
@click.option(
    "--from",
    "start",
    type=LOG_POSITION,
    metavar="POSITION",
    help="Position of the first message.  [default: earliest; with --follow, latest]",
)
@click.option(
    "--to",
    "end",
    type=LOG_POSITION,
    metavar="POSITION",
    help="Position after the last message.  [default: latest]",
)
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Maximum number of messages.")
@click.option("--follow", "-f", is_flag=True, help="Also print new messages, until Ctrl-C.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per message.")
@click.option("--body", "form", flag_value="body", help="Print only the bodies.")
def command(
    topic: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    access: HttpAccess,
    start: str | None,
    end: str | None,
    limit: int | None,
    follow: bool,
    form: str | None,
) -> None:
    """Print the stored messages of TOPIC.

    Prints position, time in UTC and body of each message. Does not affect channels. Messages of
    several nodes are merged by time.

    A printed position consists of the first digits of the log's id and the sequence number. Each
    POSITION option takes such a position, earliest, latest, a sequence number, a time such as
    2026-11-15T08:00:00Z, or an age such as 15m.

    nsqd's --retention-time sets how long messages are kept after all channels have finished them.
    """
    import asyncio  # noqa: PLC0415

    from penstock.admin_api.seeking import is_seq, select_apis  # noqa: PLC0415
    from penstock.cli.cluster_access import (  # noqa: PLC0415
        build_cluster,
        build_tls_context,
        find_nodes_with_topic,
    )
    from penstock.cli.interrupts import exit_on_signals  # noqa: PLC0415
    from penstock.tools.history import (  # noqa: PLC0415
        body_line,
        json_line,
        read_history,
        text_line,
    )

    line_of = {"json": json_line, "body": body_line}.get(form or "", text_line)
    start = start or ("latest" if follow else "earliest")
    addresses = find_nodes_with_topic(topic, nsqds, lookupds, access)
    if len(addresses) > 1 and (is_seq(start) or (end is not None and is_seq(end))):
        raise click.UsageError(SEQ_WITHOUT_NODE)
    cluster = build_cluster(tuple(addresses), (), access)
    apis = [cluster.nsqd(address) for address in addresses]
    selected = asyncio.run(select_apis(apis, topic, start, end or ""))
    with exit_on_signals() if follow else nullcontext():
        for message in read_history(
            [api.address for api in selected],
            topic,
            start=start,
            end=end,
            limit=limit,
            follow=follow,
            headers=dict(access.headers),
            ssl_context=build_tls_context(access),
        ):
            sys.stdout.buffer.write(line_of(message))
            if follow:
                sys.stdout.buffer.flush()
        sys.stdout.buffer.flush()
