"""`penstock replay`: publish the messages of a lake or of nsqd's history again."""

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
from penstock.cli.spark_options import create_brokers, spark_options, spark_settings
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
@click.option("--lake", metavar="DIR", help="Lake to read from.")
@click.option("--from-history", is_flag=True, help="Read from nsqd's history instead of a lake.")
@http_addresses
@http_access
@click.option(
    "--from",
    "start",
    default="",
    metavar="TIME",
    help="Start of the time range.  [default: earliest]",
)
@click.option(
    "--to",
    "end",
    default="",
    metavar="TIME",
    help="End of the time range, exclusive.  [default: latest]",
)
@click.option("--where", default="", metavar="SQL", help="Condition that messages must meet.")
@click.option(
    "--rate", type=click.IntRange(min=1), help="Maximum messages per second.  [default: unlimited]"
)
@click.option("--dry-run", is_flag=True, help="Count the messages, then exit.")
@click.option(
    "--restart",
    is_flag=True,
    help="Start from the beginning, even if the same replay was interrupted.",
)
@click.option("--yes", "-y", is_flag=True, help="Publish without confirmation.")
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
    """Publish archived or stored messages of TOPIC again, to TARGET.

    Messages are counted first, then published in their original order to one node. TIME is a point
    in time (2026-11-15T08:00:00Z) or a duration before now (15m). The condition is SQL with the
    columns node, seq, id, timestamp, timestamp_ns and body, and value if the lake has a schema.
    After an interruption, the same command continues after the last message that was stored.
    """
    if (lake is None) != from_history:
        raise click.UsageError("exactly one of --lake and --from-history is required")
    settings = spark_settings(master, spark_log, spark_conf)

    from penstock.pipelines.lake import Lake  # noqa: PLC0415
    from penstock.pipelines.replay import Replay, ReplayConfig, check_config  # noqa: PLC0415
    from penstock.pipelines.running import stop_on_signals  # noqa: PLC0415
    from penstock.pipelines.session import spark_session  # noqa: PLC0415

    opened = None if lake is None else Lake.open(lake)
    config = ReplayConfig(
        topic=topic,
        target=target,
        brokers=create_brokers(nsqds, lookupds, access),
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
        raise PipelineError("interrupted; run the same command again to continue")


def _state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "penstock" / "replays"


def _summary(replay: "Replay", topic: str, target: str) -> str:
    from penstock.tools.display import format_count  # noqa: PLC0415

    extent = replay.extent
    summary = f"{topic} to {target}: {format_count(extent.messages, 'message')}"
    if extent.first_ns is not None and extent.last_ns is not None:
        size = f"{extent.size_bytes / 1e6:,.1f} MB"
        summary += f", {size}, {_time(extent.first_ns)} to {_time(extent.last_ns)}"
    if replay.is_resumed:
        summary += f"; {replay.state.done:,} already published"
    return summary


def _time(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _confirm() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("no terminal to confirm on: pass --yes")
    from penstock.pipelines.running import raise_on_signals  # noqa: PLC0415

    with raise_on_signals():
        click.confirm("Publish these messages?", abort=True, err=True)
