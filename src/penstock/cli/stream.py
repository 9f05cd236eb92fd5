"""`penstock stream`: streaming SQL from topics to topics or files."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_options import (
    TOPIC,
    CommandWithExamples,
    HttpAccess,
    http_access,
    http_addresses,
)
from penstock.cli.spark_options import brokers_of, spark_options, spark_settings
from penstock.common.errors import ConfigError, HttpRequestError, NotConnectedError, PipelineError

if TYPE_CHECKING:
    from penstock.pipelines.progress import QueryMetrics
    from penstock.pipelines.running import Stop
    from penstock.pipelines.stream import QuerySample, SchemaViolations, StreamConfig, Survey
    from penstock.pipelines.stream_definition import StreamDefinition

__all__ = ["command"]

# Between two looks whether what is waited for is there.
WAIT_SECONDS = 1.0

# Of a row's value, or of a body, in a terminal.
SHOWN_MAX = 80


@click.command(
    "stream",
    cls=CommandWithExamples,
    examples=[
        "penstock stream shop.toml --sample 20",
        "penstock stream shop.toml --lookupd-http-address 127.0.0.1:4161",
        "penstock stream --source orders=orders --schema 'orders=id STRING, total DOUBLE' \\",
        "    --sql 'SELECT * FROM orders WHERE total > 100' --to-topic orders.large --once",
    ],
)
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@http_addresses
@http_access
@click.option("--source", multiple=True, metavar="NAME=TOPIC", help="A topic to read.")
@click.option(
    "--schema",
    multiple=True,
    metavar="NAME=COLUMNS",
    help="The fields of a source's JSON, such as 'orders=id STRING, total DOUBLE'.",
)
@click.option(
    "--watermark",
    multiple=True,
    metavar="NAME=COLUMN,TIME",
    help="A source's time of events, and how late they may be: 'orders=ts, 10 minutes'.",
)
@click.option(
    "--rejects",
    multiple=True,
    metavar="NAME=TOPIC",
    help="Where messages of a source go that do not fit its schema.",
)
@click.option("--sql", help="The query over the sources.")
@click.option("--to-topic", type=TOPIC, help="Publish the rows to this topic, as JSON.")
@click.option("--to-files", metavar="PATH", help="Write the rows to files in this folder.")
@click.option("--format", metavar="FORMAT", help="parquet, json or csv.  [default: parquet]")
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="A folder for each value.")
@click.option("--mode", metavar="MODE", help="append, update or complete.  [default: append]")
@click.option("--trigger", metavar="TIME", help="Between two batches, such as '10 seconds'.")
@click.option("--checkpoint", metavar="DIR", help="Where it keeps how far it has come.")
@click.option("--once", is_flag=True, help="End when all that is there now has been read.")
@click.option("--wait", is_flag=True, help="Wait for nodes and topics that are not there yet.")
@click.option("--explain", is_flag=True, help="Show what would be done and how; write nothing.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the first N rows that come of what is there; write nothing.",
)
@spark_options
def command(
    file: str | None,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    *,
    access: HttpAccess,
    once: bool,
    wait: bool,
    explain: bool,
    sample: int | None,
    checkpoint: str | None,
    master: str,
    spark_log: str,
    spark_conf: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run SQL over topics, as long as messages come.

    FILE is TOML: sources with their schemas, queries, and sinks (docs/how_to/pipelines.md). Options
    can give a single query instead. A restarted query continues where it stopped. Ctrl-C stops it.
    """
    settings = spark_settings(master, spark_log, spark_conf)

    from penstock.pipelines.running import JobInterruptedError, stop_on_signals  # noqa: PLC0415
    from penstock.pipelines.session import spark_session  # noqa: PLC0415
    from penstock.pipelines.stream import (  # noqa: PLC0415  # noqa: PLC0415
        StreamConfig,
        check_config,
        explain_stream,
        query_samples,
        run_stream,
        schema_violations,
    )

    config = StreamConfig(
        definition=_definition(file, checkpoint, flags),
        brokers=brokers_of(nsqds, lookupds, access),
        once=once,
    )
    writes = not explain and sample is None
    check_config(config, writes=writes)
    with stop_on_signals() as stop:
        if writes:
            with suppress(JobInterruptedError):
                survey = _survey(config, stop, wait=wait)
                with spark_session(settings, stop) as spark:
                    for done in run_stream(spark, config, survey, stop):
                        click.echo(_summary(done))
            if once and stop.is_requested:
                raise PipelineError("interrupted; run the same command again to continue")
            return
        if sample is not None:
            _survey(config, stop, wait=wait)
        with (
            spark_session(settings, stop) as spark,
            stop.interrupting(spark.sparkContext.cancelAllJobs),
        ):
            if sample is None:
                click.echo(explain_stream(spark, config))
                return
            for each in query_samples(spark, config, sample):
                _show(each)
            for some in schema_violations(spark, config):
                click.echo(_violations_line(some), err=True)


# What is to be done.


def _definition(
    file: str | None, checkpoint: str | None, flags: Mapping[str, Any]
) -> "StreamDefinition":
    """Of the file, or of the options that stand for one."""
    from penstock.pipelines.stream_definition import load_definition, parse_definition  # noqa: PLC0415

    given = [name.replace("_", "-") for name, value in flags.items() if value]
    if file is not None and given:
        raise click.UsageError(f"--{given[0]} and a file do not go together: say it in the file")
    if file is None and not flags["source"]:
        raise click.UsageError("a file is wanted, or a --source")
    return (
        load_definition(file, checkpoint)
        if file
        else parse_definition(_definition_from_flags(flags), checkpoint)
    )


def _definition_from_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    sources: dict[str, dict[str, str]] = {
        name: {"topic": topic} for name, topic in _pairs("source", flags)
    }
    for key in ("schema", "watermark", "rejects"):
        for name, value in _pairs(key, flags):
            if name not in sources:
                raise click.UsageError(f"--{key} {name}=...: there is no --source {name}=...")
            sources[name][key] = value
    whole: dict[str, Any] = {"sources": sources}
    if flags["sql"]:
        whole["queries"] = {"rows": flags["sql"]}
    sink = {"topic": flags["to_topic"], "path": flags["to_files"]}
    sink |= {key: flags[key] for key in ("format", "mode", "trigger")}
    sink |= {"partition_by": list(flags["partition_by"])}
    if any(sink.values()):
        taken = "rows" if flags["sql"] else next(iter(sources))
        whole["sinks"] = {"out": {"from": taken, **{k: v for k, v in sink.items() if v}}}
        whole["name"] = flags["to_topic"] or Path(flags["to_files"] or "stream").name
    return whole


def _pairs(option: str, flags: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for text in flags[option]:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise click.UsageError(f"--{option}: {text!r} is not NAME=...")
        yield name.strip(), value.strip()


def _survey(config: "StreamConfig", stop: "Stop", *, wait: bool) -> "Survey":
    """The logs of all sources; with `wait`, retries until there are some. Raises
    JobInterruptedError."""
    from penstock.pipelines.stream import survey_sources  # noqa: PLC0415

    said = ""
    while True:
        stop.check()
        try:
            survey = survey_sources(config)
        except (ConfigError, HttpRequestError, NotConnectedError) as failure:
            if not wait:
                raise
            if said != (said := str(failure)):
                click.echo(f"penstock: waiting: {said}", err=True)
            stop.wait(WAIT_SECONDS)
        else:
            for each in survey.failures:
                click.echo(f"penstock: continuing without it until it is back: {each}", err=True)
            return survey


# What is shown.


def _show(sample: "QuerySample") -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, title=sample.query, title_justify="left", title_style="bold")
    for name in sample.columns:
        table.add_column(name)
    for row in sample.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    console = Console()
    console.print(table)
    if not sample.rows:
        console.print("no rows")


def _shown(value: object) -> str:
    text = bytes(value).decode("utf-8", "replace") if isinstance(value, bytearray) else str(value)
    text = "" if value is None else " ".join(text.split())
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def _violations_line(found: "SchemaViolations") -> str:
    return (
        f"penstock: {found.source}: {found.count:,} of the first {found.among:,} messages do not"
        f" match the schema, such as {_shown(bytearray(found.example))}"
    )


def _summary(done: "QueryMetrics") -> str:
    from penstock.tools.display import format_count  # noqa: PLC0415

    notes = [f", {count:,} {name}" for name, count in done.notes.items()]
    return f"{done.name}: {format_count(done.rows, 'message')} read{''.join(notes)}"
