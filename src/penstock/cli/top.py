"""`penstock top`: a live view of all topics and channels of a cluster."""

import click

from penstock.cli.command_options import (
    DURATION,
    CommandWithExamples,
    HttpAccess,
    http_access,
    http_addresses,
)

__all__ = ["command"]


@click.command(
    "top",
    cls=CommandWithExamples,
    examples=[
        "penstock top",
        "penstock top --lookupd-http-address 127.0.0.1:4161 --sort depth",
        "penstock top --once | awk '$3 > 1000'",
    ],
)
@http_addresses
@http_access
@click.option(
    "--interval", type=DURATION, default="2s", show_default=True, help="Time between two refreshes."
)
@click.option(
    "--sort",
    type=click.Choice(["name", "depth", "in-flight", "in", "out", "clients"]),
    default="name",
    show_default=True,
    help="Sort order; figures sort in descending order.",
)
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many tables.")
@click.option(
    "--plain", is_flag=True, help="Print plain lines instead of a live view on a terminal."
)
def command(
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    access: HttpAccess,
    interval: float,
    sort: str,
    once: bool,
    count: int | None,
    plain: bool,
) -> None:
    """Watch all topics and channels of a cluster.

    Shows depth, in-flight messages and rates. "in/s" is the rate of published messages, "out/s" of
    finished ones, since the last refresh. On a terminal the view is live: q or Ctrl-C exits, the
    keys in the last line change the sort order. In a pipe, a table of plain lines is printed at
    each interval.
    """
    # Imported here to keep `penstock --help` fast.
    import asyncio  # noqa: PLC0415

    from penstock.cli.cluster_access import build_cluster  # noqa: PLC0415
    from penstock.cli.interrupts import exit_on_signals  # noqa: PLC0415
    from penstock.tools.live_screen import maybe_live_console  # noqa: PLC0415
    from penstock.tools.stdout_writer import open_stdout  # noqa: PLC0415
    from penstock.tools.top import TopView, print_tables, watch  # noqa: PLC0415

    cluster = build_cluster(nsqds, lookupds, access)
    view = TopView(order=sort, interval_seconds=interval)
    count = 1 if once else count
    console = None if plain or once else maybe_live_console()
    if console is not None:
        asyncio.run(watch(cluster, view, console, count=count))
        return
    with exit_on_signals():
        asyncio.run(
            print_tables(
                cluster,
                view,
                open_stdout(),
                lambda warning: click.echo(f"penstock: {warning}", err=True),
                count=count,
            )
        )
