"""`penstock up`: run a whole cluster in one process."""

import click

from penstock.cli.command_options import DURATION, CommandWithExamples
from penstock.cli.interrupts import silence_stdout

__all__ = ["command"]

NODES_MAX = 64
REPLICAS_MAX = 7


@click.command(
    "up",
    cls=CommandWithExamples,
    examples=[
        "penstock up",
        "penstock up --nsqd 3 --retention-time 72h",
        "penstock up --replicas 3",
        "penstock up --nsqd-port 0 --lookupd-port 0 --admin-port 0",
    ],
)
@click.option(
    "--nsqd",
    "nodes",
    type=click.IntRange(1, NODES_MAX),
    default=1,
    show_default=True,
    help="Number of nsqds.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    default=1,
    show_default=True,
    help="Number of copies of the nsqd; with 2 or more, etcd must be installed.",
)
@click.option(
    "--data-path",
    type=click.Path(file_okay=False),
    default="penstock-data",
    show_default=True,
    help="Data folder, with a subfolder for each nsqd.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--nsqd-port",
    type=click.IntRange(0, 65535),
    default=4150,
    show_default=True,
    help="TCP port of the first nsqd; HTTP is the next port; the ports of each further nsqd are 100"
    " higher. 0 for any free ports.",
)
@click.option(
    "--lookupd-port",
    type=click.IntRange(0, 65535),
    default=4160,
    show_default=True,
    help="TCP port of nsqlookupd; HTTP is the next port. 0 for any free ports.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=4171,
    show_default=True,
    help="HTTP port of nsqadmin. 0 for any free port.",
)
@click.option("--no-admin", is_flag=True, help="Do not start nsqadmin.")
@click.option(
    "--retention-time",
    type=DURATION,
    help="Time to keep finished messages, such as 72h.  [default: 0s]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="warn",
    show_default=True,
    help="Minimum level of log lines on stderr.",
)
def command(
    *,
    nodes: int,
    replicas: int,
    data_path: str,
    host: str,
    nsqd_port: int,
    lookupd_port: int,
    admin_port: int,
    no_admin: bool,
    retention_time: float | None,
    log_level: str,
) -> None:
    """Start a local cluster: nsqlookupd, nsqd and nsqadmin.

    All daemons run in one process, for development and small installations. Data stays in the data
    path. Ctrl-C stops the cluster.

    With --replicas, several members hold copies of one nsqd, to try replication on one machine: one
    leads, the others follow, and one of them takes over if it fails.
    """
    if replicas > 1 and nodes > 1:
        raise click.UsageError("--replicas and --nsqd cannot be used together")
    from penstock.cli.local_cluster import LocalClusterConfig, run_cluster  # noqa: PLC0415
    from penstock.common.logs import LogLevel  # noqa: PLC0415

    run_cluster(
        LocalClusterConfig(
            nodes=nodes,
            replicas=replicas,
            data_path=data_path,
            host=host,
            nsqd_port=nsqd_port,
            lookupd_port=lookupd_port,
            admin_port=None if no_admin else admin_port,
            retention_seconds=retention_time or 0.0,
            log_level=LogLevel.parse(log_level),
        ),
        _echo,
    )


def _echo(text: str) -> None:
    """Print; if stdout is gone, continue without output."""
    try:
        click.echo(text)
    except OSError:
        silence_stdout()
