"""`penstock up`: a whole cluster in one process, with one command."""

import click

from penstock.cli.command_options import DURATION, CommandWithExamples
from penstock.cli.interrupts import silence_stdout

__all__ = ["command"]

NODES_MAX = 64


@click.command(
    "up",
    cls=CommandWithExamples,
    examples=[
        "penstock up",
        "penstock up --nsqd 3 --retention-time 72h",
        "penstock up --nsqd-port 0 --lookupd-port 0 --admin-port 0",
    ],
)
@click.option(
    "--nsqd",
    "nodes",
    type=click.IntRange(1, NODES_MAX),
    default=1,
    show_default=True,
    help="How many nsqds.",
)
@click.option(
    "--data-path",
    type=click.Path(file_okay=False),
    default="penstock-data",
    show_default=True,
    help="Where messages are kept: a folder in it for each nsqd.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve on.")
@click.option(
    "--nsqd-port",
    type=click.IntRange(0, 65535),
    default=4150,
    show_default=True,
    help="TCP of the first nsqd, HTTP on the next; 100 more for each node. 0: any that are free.",
)
@click.option(
    "--lookupd-port",
    type=click.IntRange(0, 65535),
    default=4160,
    show_default=True,
    help="TCP of nsqlookupd, HTTP on the next. 0: any that are free.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=4171,
    show_default=True,
    help="HTTP of nsqadmin. 0: any that is free.",
)
@click.option("--no-admin", is_flag=True, help="Leave nsqadmin out.")
@click.option(
    "--retention-time", type=DURATION, help="Keep what all channels have finished, such as 72h."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="warn",
    show_default=True,
    help="How much is logged, to stderr.",
)
def command(
    *,
    nodes: int,
    data_path: str,
    host: str,
    nsqd_port: int,
    lookupd_port: int,
    admin_port: int,
    no_admin: bool,
    retention_time: float | None,
    log_level: str,
) -> None:
    """Start a cluster here: nsqlookupd, nsqd and nsqadmin.

    One process serves them all, which is right for trying things out, for development and for small
    installations. Data stay in the data path, and are there again the next time. Ctrl-C stops it.
    """
    from penstock.cli.local_cluster import ClusterPlan, run_cluster  # noqa: PLC0415
    from penstock.common.logs import LogLevel  # noqa: PLC0415

    run_cluster(
        ClusterPlan(
            nodes=nodes,
            data_path=data_path,
            host=host,
            nsqd_port=nsqd_port,
            lookupd_port=lookupd_port,
            admin_port=None if no_admin else admin_port,
            retention_seconds=retention_time or 0.0,
            log_level=LogLevel.parse(log_level),
        ),
        _say,
    )


def _say(text: str) -> None:
    """Who has closed the terminal, or the pipe, need not be told; the cluster goes on."""
    try:
        click.echo(text)
    except OSError:
        silence_stdout()
