"""`penstock archive`: topics to a lake of Parquet files."""

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
from penstock.cli.spark_options import brokers_of, spark_options, spark_settings
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
@click.option("--lake", required=True, metavar="DIR", help="The folder to archive to.")
@http_addresses
@http_access
@click.option("--once", is_flag=True, help="Archive what there is now, and end.")
@click.option(
    "--trigger",
    type=DURATION,
    default="10s",
    show_default=True,
    help="How often a batch is written, while there are messages.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="A batch has no more messages.",
)
@click.option(
    "--schema",
    default="",
    metavar="SCHEMA",
    help="JSON becomes a column: fields and types, a file with them, or infer."
    "  [default: the one that the lake has]",
)
@click.option(
    "--compact/--no-compact",
    default=None,
    help="Merge all small files at the end, or none ever.  [default: where there are many]",
)
@click.option(
    "--channel",
    type=CHANNEL,
    default="penstock-archive",
    show_default=True,
    help="Keeps the archive's place on the nodes; each lake needs its own.",
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
    """Archive each TOPIC to a lake, every message once.

    A lake is a folder of Parquet files by topic, date and hour (UTC). It goes on until Ctrl-C, and
    the next time where it was; nsqds keep what is not archived yet. With a schema, bodies become
    columns, and what does not fit is kept aside in _rejected.
    """
    settings = spark_settings(master, spark_log, spark_conf)

    from penstock.pipelines.archive import ArchiveConfig, archive, check_config  # noqa: PLC0415
    from penstock.pipelines.running import JobInterruptedError, stop_on_signals  # noqa: PLC0415
    from penstock.pipelines.session import spark_session  # noqa: PLC0415

    config = ArchiveConfig(
        topics=tuple(dict.fromkeys(topics)),
        lake=lake,
        brokers=brokers_of(nsqds, lookupds, access),
        channel=channel,
        once=once,
        trigger_seconds=trigger,
        batch_rows=batch_size,
        schema=schema,
        compact=compact,
    )
    survey = check_config(config)
    for failure in survey.failures:
        click.echo(f"penstock: goes on without this nsqd until it is back: {failure}", err=True)
    with (
        stop_on_signals() as stop,
        suppress(JobInterruptedError),
        spark_session(settings, stop) as spark,
    ):
        for done in archive(spark, config, survey, stop):
            click.echo(_summary(done, lake))
    if once and stop.is_requested:
        raise PipelineError("interrupted; the same command goes on from there")


def _summary(done: "ArchiveResult", lake: str) -> str:
    from penstock.tools.display import format_count  # noqa: PLC0415

    words = f"{done.topic}: {format_count(done.messages, 'message')} archived"
    if done.rejected:
        words += f", {done.rejected:,} of them rejected"
    if done.files_merged:
        words += f"; {format_count(done.files_merged, 'file')} less after merging"
    return f"{words}; {lake} has {done.total:,}"
