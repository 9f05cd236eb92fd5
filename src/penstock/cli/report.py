"""`penstock report`: HTML report on a lake."""

import os
from datetime import UTC, datetime
from pathlib import Path

import click

from penstock.cli.command_options import DURATION, TOPIC, CommandWithExamples
from penstock.cli.spark_options import spark_options, spark_settings
from penstock.common.errors import ConfigError
from penstock.tools.display import format_table

__all__ = ["command"]


@click.command(
    "report",
    cls=CommandWithExamples,
    examples=[
        "penstock report --lake lake",
        "penstock report --lake lake --topic orders --from 24h --out orders.html",
        "penstock report --lake lake --topic orders --event-time value.ts --every 1m",
    ],
)
@click.option("--lake", required=True, metavar="DIR", help="Lake to report on.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    type=TOPIC,
    help="Topic to include; may be repeated.  [default: all]",
)
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
@click.option(
    "--every", type=DURATION, help="Interval of the plots.  [default: for about 100 points]"
)
@click.option(
    "--event-time",
    default="",
    metavar="SQL",
    help="SQL expression of the event time, such as value.ts; the report then shows the delay from"
    " event to publication.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="report.html",
    show_default=True,
    help="File to write.",
)
@spark_options
def command(
    lake: str,
    topics: tuple[str, ...],
    *,
    start: str,
    end: str,
    every: float | None,
    event_time: str,
    out: Path,
    master: str,
    spark_log: str,
    spark_conf: tuple[str, ...],
) -> None:
    """Report throughput, sizes and delays of the topics in a lake.

    Writes a self-contained HTML page with plots and tables, and prints a summary. TIME is a point
    in time (2026-11-15T08:00:00Z) or a duration before now (15m).
    """
    settings = spark_settings(master, spark_log, spark_conf)

    from penstock.pipelines.lake import Lake  # noqa: PLC0415
    from penstock.pipelines.report import ReportConfig, check_config, make_report  # noqa: PLC0415
    from penstock.pipelines.report_page import render_page, summary_rows  # noqa: PLC0415
    from penstock.pipelines.running import stop_on_signals  # noqa: PLC0415
    from penstock.pipelines.session import spark_session  # noqa: PLC0415

    config = ReportConfig(
        lake=Lake.open(lake),
        topics=tuple(dict.fromkeys(topics)),
        start=start,
        end=end,
        step_seconds=_whole_seconds(every),
        event_time=event_time,
    )
    check_config(config)
    _check_writable(out)
    with (
        stop_on_signals() as stop,
        spark_session(settings, stop) as spark,
        stop.interrupting(spark.sparkContext.cancelAllJobs),
    ):
        report = make_report(spark, config)
    _write(out, render_page(report, datetime.now(UTC)))
    rows = summary_rows(report)
    for line in format_table(rows, right=frozenset(range(1, len(rows[0])))):
        click.echo(line)
    click.echo(f"wrote {out}")


def _whole_seconds(every: float | None) -> int:
    if every is None:
        return 0
    if every < 1 or every != int(every):
        raise click.BadParameter("must be whole seconds", param_hint="--every")
    return int(every)


def _check_writable(out: Path) -> None:
    """Check that the file can be written, before the report is computed. Raises ConfigError."""
    if not os.access(out if out.exists() else out.absolute().parent, os.W_OK):
        raise ConfigError(f"cannot write {out}")


def _write(out: Path, page: str) -> None:
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as failure:
        raise ConfigError(f"cannot write {out} - {failure.strerror}") from None
