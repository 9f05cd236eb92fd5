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
from penstock.cli.spark_options import create_brokers, spark_options, spark_settings
from penstock.common.errors import ConfigError, HttpRequestError, NotConnectedError, PipelineError

if TYPE_CHECKING:
    from penstock.pipelines.progress import QueryMetrics
    from penstock.pipelines.running import Stop
    from penstock.pipelines.stream import (
        ClusterSnapshot,
        QuerySample,
        SchemaViolations,
        StreamConfig,
    )
    from penstock.pipelines.stream_definition import StreamDefinition

__all__ = ["command"]

# Interval between two attempts with --wait.
WAIT_SECONDS = 1.0

# Maximum characters shown of a value or a body.
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
@click.option(
    "--source",
    multiple=True,
    metavar="NAME=TOPIC",
    help="Topic to read, and its table name in SQL.",
)
@click.option(
    "--schema",
    multiple=True,
    metavar="NAME=COLUMNS",
    help="Schema of a source's JSON bodies, such as 'orders=id STRING, total DOUBLE'.",
)
@click.option(
    "--watermark",
    multiple=True,
    metavar="NAME=COLUMN,TIME",
    help="Column with the event time of a source, and the maximum delay of its messages, such as"
    " 'orders=ts, 10 minutes'.",
)
@click.option(
    "--rejects",
    multiple=True,
    metavar="NAME=TOPIC",
    help="Topic for messages of a source that violate its schema.",
)
@click.option("--sql", help="Query over the sources.")
@click.option("--to-topic", type=TOPIC, help="Topic to publish the rows to, as JSON.")
@click.option("--to-files", metavar="PATH", help="Folder to write the rows to.")
@click.option(
    "--format", metavar="FORMAT", help="File format: parquet, json or csv.  [default: parquet]"
)
@click.option(
    "--partition-by",
    multiple=True,
    metavar="COLUMN",
    help="Column to partition files by; may be repeated.",
)
@click.option(
    "--mode", metavar="MODE", help="Output mode: append, update or complete.  [default: append]"
)
@click.option(
    "--trigger", metavar="TIME", help="Interval between two batches, such as '10 seconds'."
)
@click.option(
    "--checkpoint", metavar="DIR", help="Checkpoint directory.  [default: NAME.checkpoint]"
)
@click.option("--once", is_flag=True, help="Process the messages that exist now, then exit.")
@click.option("--wait", is_flag=True, help="Wait for missing nodes and topics.")
@click.option(
    "--explain", is_flag=True, help="Show sources, sinks and Spark's plans; write nothing."
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the first N rows of each query on stored messages; write nothing.",
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
    """Run streaming SQL from topics to topics or files.

    FILE is TOML with sources, queries and sinks (docs/how_to/pipelines.md). A single query can be
    given by options instead. The command runs until Ctrl-C, and continues from its checkpoint when
    it is started again.
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
        brokers=create_brokers(nsqds, lookupds, access),
        once=once,
    )
    writes = not explain and sample is None
    check_config(config, writes=writes)
    with stop_on_signals() as stop:
        if writes:
            with suppress(JobInterruptedError):
                snapshot = _snapshot(config, stop, wait=wait)
                with spark_session(settings, stop) as spark:
                    for done in run_stream(spark, config, snapshot, stop):
                        click.echo(_summary(done))
            if once and stop.is_requested:
                raise PipelineError("interrupted; run the same command again to continue")
            return
        if sample is not None:
            _snapshot(config, stop, wait=wait)
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


# The definition.


def _definition(
    file: str | None, checkpoint: str | None, flags: Mapping[str, Any]
) -> "StreamDefinition":
    """Definition from the file or from the options."""
    from penstock.pipelines.stream_definition import load_definition, parse_definition  # noqa: PLC0415

    given = [name.replace("_", "-") for name, value in flags.items() if value]
    if file is not None and given:
        raise click.UsageError(f"--{given[0]} cannot be combined with FILE: add it to the file")
    if file is None and not flags["source"]:
        raise click.UsageError("provide FILE or --source")
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
                raise click.UsageError(f"--{key} {name}=... requires --source {name}=...")
            sources[name][key] = value
    definition: dict[str, Any] = {"sources": sources}
    if flags["sql"]:
        definition["queries"] = {"rows": flags["sql"]}
    sink = {"topic": flags["to_topic"], "path": flags["to_files"]}
    sink |= {key: flags[key] for key in ("format", "mode", "trigger")}
    sink |= {"partition_by": list(flags["partition_by"])}
    if any(sink.values()):
        taken = "rows" if flags["sql"] else next(iter(sources))
        definition["sinks"] = {"out": {"from": taken, **{k: v for k, v in sink.items() if v}}}
        definition["name"] = flags["to_topic"] or Path(flags["to_files"] or "stream").name
    return definition


def _pairs(option: str, flags: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for text in flags[option]:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise click.UsageError(f"--{option} must be NAME=..., not {text!r}")
        yield name.strip(), value.strip()


def _snapshot(config: "StreamConfig", stop: "Stop", *, wait: bool) -> "ClusterSnapshot":
    """Locate the topics of all sources; with `wait`, retry until all exist. Raises
    JobInterruptedError."""
    from penstock.pipelines.stream import survey_sources  # noqa: PLC0415

    said = ""
    while True:
        stop.check()
        try:
            snapshot = survey_sources(config)
        except (ConfigError, HttpRequestError, NotConnectedError) as failure:
            if not wait:
                raise
            if said != (said := str(failure)):
                click.echo(f"penstock: waiting: {said}", err=True)
            stop.wait(WAIT_SECONDS)
        else:
            for each in snapshot.failures:
                click.echo(f"penstock: continuing without an unreachable nsqd: {each}", err=True)
            return snapshot


# Output.


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

    notes = [f", {count:,} {name}" for name, count in done.counters.items()]
    return f"{done.name}: {format_count(done.rows, 'message')} read{''.join(notes)}"
