"""`penstock replay`: publish again what a lake or history has."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.command_options import (
    TOPIC,
    CommandWithExamples,
    HttpAccess,
    http_access,
    http_addresses,
)
from penstock.cli.spark_options import brokers_of, spark_options, spark_settings
from penstock.common.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from penstock.pipelines.replay import Replay

__all__ = ["command"]


@click.command(
    "replay",
    cls=CommandWithExamples,
    examples=[
        "penstock replay orders orders-again --lake lake --from 2h --to 1h",
        "penstock replay orders refunds --lake lake --where 'value.total < 0' --dry-run",
        "penstock replay orders orders-again --from-history --from 15m --rate 500 --yes",
    ],
)
@click.argument("topic", type=TOPIC)
@click.argument("target", type=TOPIC)
@click.option("--lake", metavar="DIR", help="Replay what penstock archive has written there.")
@click.option("--from-history", is_flag=True, help="Replay what the nodes still have instead.")
@http_addresses
@http_access
@click.option("--from", "start", default="", metavar="TIME", help="The first.  [default: earliest]")
@click.option("--to", "end", default="", metavar="TIME", help="After the last.  [default: latest]")
@click.option("--where", default="", metavar="SQL", help="Only those for which this is true.")
@click.option("--rate", type=click.IntRange(min=1), help="So many messages a second at most.")
@click.option("--dry-run", is_flag=True, help="Count them, and end.")
@click.option("--restart", is_flag=True, help="Do not go on where the same replay was interrupted.")
@click.option("--yes", "-y", is_flag=True, help="Do it without asking.")
@spark_options
def command(
    topic: str,
    target: str,
    lake: str | None,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    from_history: bool,
    access: HttpAccess,
    start: str,
    end: str,
    where: str,
    rate: int | None,
    dry_run: bool,
    restart: bool,
    yes: bool,
    master: str,
    spark_log: str,
    spark_conf: tuple[str, ...],
) -> None:
    """Publish again, to TARGET, what is archived or stored of TOPIC.

    Messages are published in the order in which they once were, at one node. A TIME is one such as
    2026-11-15T08:00:00Z, or how long ago, such as 15m. A condition is SQL, with the columns node,
    seq, id, timestamp, timestamp_ns and body, and value if the lake has a schema. They are counted
    first. After an interruption, the same command goes on after the last message that was stored.
    """
    if (lake is None) != from_history:
        raise click.UsageError("messages come from a --lake or --from-history: name one of them")
    settings = spark_settings(master, spark_log, spark_conf)

    from penstock.pipelines.lake import Lake  # noqa: PLC0415
    from penstock.pipelines.replay import Replay, ReplayConfig, check_config  # noqa: PLC0415
    from penstock.pipelines.running import stop_on_signals  # noqa: PLC0415
    from penstock.pipelines.session import spark_session  # noqa: PLC0415

    opened = None if lake is None else Lake.open(lake)
    config = ReplayConfig(
        topic=topic,
        target=target,
        brokers=brokers_of(nsqds, lookupds, access),
        lake=opened,
        state_folder=_state_folder() if opened is None else opened.replays,
        start=start,
        end=end,
        where=where,
        rate=rate or 0,
    )
    check_config(config, dry_run=dry_run)
    with stop_on_signals() as stop, spark_session(settings, stop) as spark:
        cancel = spark.sparkContext.cancelAllJobs
        with stop.interrupting(cancel):
            replay = Replay(spark, config, restart=restart)
        click.echo(_summary(replay, topic, target), err=True)
        if dry_run or not replay.extent.messages:
            return
        if not yes:
            _confirm()
        with stop.calling(cancel):
            done = replay.run(stop)
    click.echo(f"{topic}: {done.done:,} of {done.messages:,} messages published to {target}")
    if done.done < done.messages:
        raise PipelineError("interrupted; the same command goes on from there")


def _state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "penstock" / "replays"


def _summary(replay: "Replay", topic: str, target: str) -> str:
    from penstock.tools.display import format_count  # noqa: PLC0415

    extent = replay.extent
    words = f"{topic} to {target}: {format_count(extent.messages, 'message')}"
    if extent.first_ns is not None and extent.last_ns is not None:
        size = f"{extent.size_bytes / 1e6:,.1f} MB"
        words += f", {size}, {_time(extent.first_ns)} to {_time(extent.last_ns)}"
    if replay.is_resumed:
        words += f"; {replay.state.done:,} are published already"
    return words


def _time(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _confirm() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("there is nobody to ask whether that is right: say --yes")
    from penstock.pipelines.running import raise_on_signals  # noqa: PLC0415

    with raise_on_signals():
        click.confirm("Publish them?", abort=True, err=True)
