"""`penstock archive`: archive topics to a lake of Parquet files."""

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from penstock.cli.command_options import (
    CHANNEL,
    DURATION,
    TOPIC,
    CommandWithExamples,
    HttpAccess,
    http_access,
    http_addresses,
)
from penstock.cli.spark_options import create_brokers, spark_options, spark_settings
from penstock.common.errors import PipelineError

if TYPE_CHECKING:
    from penstock.pipelines.archive import ArchiveResult

__all__ = ["command"]


@click.command(
    "archive",
    cls=CommandWithExamples,
    examples=[
        "penstock archive orders clicks --lake lake",
        "penstock archive orders --lake lake --once --lookupd-http-address 127.0.0.1:4161",
        "penstock archive orders --lake lake --schema 'user string, total double'",
        "penstock archive orders --lake /mnt/lake --schema infer --master spark://10.0.0.1:7077",
    ],
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@click.option("--lake", required=True, metavar="DIR", help="Lake to write to: a local folder.")
@http_addresses
@http_access
@click.option("--once", is_flag=True, help="Archive the messages that exist now, then exit.")
@click.option(
    "--trigger",
    type=DURATION,
    default="10s",
    show_default=True,
    help="Interval between two batches.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Maximum messages per batch.",
)
@click.option(
    "--schema",
    default="",
    metavar="SCHEMA",
    help="Schema of the bodies: DDL string, path of a file, or infer."
    "  [default: the lake's schema]",
)
@click.option(
    "--compact/--no-compact",
    default=None,
    help="Merge all small files at the end, or never merge.  [default: merge where there are many]",
)
@click.option(
    "--channel",
    type=CHANNEL,
    default="penstock-archive",
    show_default=True,
    help="Channel that records the progress on the nodes; use another one for each lake.",
)
@spark_options
def command(
    topics: tuple[str, ...],
    lake: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    access: HttpAccess,
    once: bool,
    trigger: float,
    batch_size: int,
    schema: str,
    compact: bool | None,
    channel: str,
    master: str,
    spark_log: str,
    spark_conf: tuple[str, ...],
) -> None:
    """Archive each TOPIC to a lake, every message exactly once.

    A lake is a folder of Parquet files by topic, date and hour (UTC). The command runs until Ctrl-C
    and continues where it stopped when it is started again; nsqd retains messages that are not
    archived yet. With a schema, the fields of JSON bodies become columns, and messages that violate
    the schema go to _rejected.
    """
    settings = spark_settings(master, spark_log, spark_conf)

    from penstock.pipelines.archive import ArchiveConfig, archive, check_config  # noqa: PLC0415
    from penstock.pipelines.running import JobInterruptedError, stop_on_signals  # noqa: PLC0415
    from penstock.pipelines.session import spark_session  # noqa: PLC0415

    config = ArchiveConfig(
        topics=tuple(dict.fromkeys(topics)),
        lake=lake,
        brokers=create_brokers(nsqds, lookupds, access),
        channel=channel,
        once=once,
        trigger_seconds=trigger,
        batch_rows=batch_size,
        schema=schema,
        compact=compact,
    )
    snapshot = check_config(config)
    for failure in snapshot.failures:
        click.echo(f"penstock: continuing without an unreachable nsqd: {failure}", err=True)
    with (
        stop_on_signals() as stop,
        suppress(JobInterruptedError),
        spark_session(settings, stop) as spark,
    ):
        for done in archive(spark, config, snapshot, stop):
            click.echo(_summary(done, lake))
    if once and stop.is_requested:
        raise PipelineError("interrupted; run the same command again to continue")


def _summary(done: "ArchiveResult", lake: str) -> str:
    from penstock.tools.display import format_count  # noqa: PLC0415

    summary = f"{done.topic}: {format_count(done.messages, 'message')} archived"
    if done.rejected:
        summary += f", {done.rejected:,} of them rejected"
    if done.files_merged:
        summary += f"; {format_count(done.files_merged, 'file')} fewer after merging"
    return f"{summary}; {lake} has {done.total:,}"
