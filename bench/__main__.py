"""python -m bench: run the scenarios with all targets in turn, and print a comparison."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from bench import targets
from bench.figures import METRICS, Results, Sample
from bench.load import LoadError
from bench.report import Report, as_json, as_markdown, print_report
from bench.scenarios import SCENARIOS, Scenario, row_titles
from bench.targets import Target

__all__ = ["main"]

WIDTH_MIN = 140
# Programs without targets; each prints its own table.
PARTS = {
    "log": "bench.log_bench",  # our log without a server, in this process
    "clients": "bench.clients",  # our client library, compared with others
    "discovery": "bench.discovery",  # nsqlookupd with a large cluster
    "crowd": "bench.crowd",  # 5,000 consumers on one channel
    "shards": "bench.shards",  # one nsqd, and several on the same machine
    "spark": "bench.spark_drain",  # Spark, reading a topic
    "hostile": "bench.hostile",  # latency of a client while another one attacks
    "history": "bench.history",  # reading a topic's history back
    "channels": "bench.channels",  # ten thousand channels
    "fsync": "bench.fsync",  # publishing with --sync-every=1, and the disk's own fsync rate
    "stalls": "bench.stalls",  # how long one large operation blocks other clients
    "growth": "bench.growth",  # the cost of a message as a dimension grows
    "replication": "bench.replication",  # replicated nodes, a single one, and JetStream
}

FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command()
@click.option(
    "--trial",
    envvar="TRIAL",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Reference server: a Python script that takes nsqd's flags. [env: TRIAL]",
)
@click.option(
    "--against",
    envvar="AGAINST",
    metavar="COMMAND",
    help="Command line of another nsqd, with {tcp}, {http} and {data}. [env: AGAINST]",
)
@click.option(
    "--redis/--no-redis",
    default=True,
    help="Also measure Redis Streams, if redis-server is installed.",
)
@click.option("--ours/--no-ours", default=True, help="Our own nsqd.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*(scenario.name for scenario in SCENARIOS), *PARTS]),
    help="Run this scenario only; may be repeated.",
)
@click.option(
    "--repeat", type=click.IntRange(min=1), help="Repetitions of each scenario. [default: 3]"
)
@click.option(
    "--quick", is_flag=True, help="Run each scenario once with few messages, to test that it runs."
)
@click.option("--json", "json_file", type=FILE, help="Write all samples to this file, as JSON.")
@click.option(
    "--markdown", "markdown_file", type=FILE, help="Write the table to this file, as Markdown."
)
def main(
    *,
    trial: Path | None,
    against: str | None,
    redis: bool,
    ours: bool,
    only: Sequence[str],
    repeat: int | None,
    quick: bool,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure nsqd and other servers on this machine.

    The targets take turns within each repetition. The table shows medians of the repetitions, and
    how many times better ours is; below 1, ours is worse.
    """
    chosen = _targets(ours=ours, trial=trial, redis=redis, against=against)
    scenarios = [scenario for scenario in SCENARIOS if not only or scenario.name in only]
    _warn_if_busy()
    results, failures = _run(scenarios, chosen, repeat or (1 if quick else 3), quick=quick)
    report = Report(results, [target.name for target in chosen], row_titles(), failures)
    console = Console()
    console.width = max(console.width, WIDTH_MIN)
    if scenarios:
        print_report(report, console)
    for part, module in PARTS.items():
        if part in only or (ours and not only and not quick):
            click.echo(f"\n{part}:")
            if subprocess.run([sys.executable, "-m", module], check=False).returncode:
                failures.append(part)
    if json_file:
        json_file.write_text(as_json(report))
    if markdown_file:
        markdown_file.write_text(as_markdown(report))
    sys.exit(1 if failures else 0)


def _targets(*, ours: bool, trial: Path | None, redis: bool, against: str | None) -> list[Target]:
    chosen = []
    if ours:
        chosen.append(targets.penstock())
    if trial:
        chosen.append(targets.trial(trial))
    if redis:
        if program := shutil.which("redis-server"):
            chosen.append(targets.redis(program))
        else:
            click.echo("redis-server is not installed: measuring without it", err=True)
    if against:
        chosen.append(targets.nsqd(against))
    if not chosen:
        raise click.UsageError("nothing to measure")
    return chosen


def _warn_if_busy() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        click.echo(
            f"this machine is busy (load {load:.1f} on {cores} cores): msgs/s and latencies will be"
            " poor; ratios and msgs per CPU-second hold better",
            err=True,
        )


def _run(
    scenarios: Sequence[Scenario], chosen: Sequence[Target], repeat: int, *, quick: bool
) -> tuple[Results, list[str]]:
    results, failures = Results(), []
    for scenario in scenarios:
        fitting = [target for target in chosen if scenario.fits(target)]
        count = scenario.quick_count if quick else scenario.count
        for repetition in range(repeat):
            # The first target may find the machine in another state, so the order rotates.
            turn = repetition % len(fitting) if fitting else 0
            for target in fitting[turn:] + fitting[:turn]:
                try:
                    _measure(scenario, target, count, repetition, results)
                except (LoadError, OSError) as error:
                    failures.append(f"{scenario.name}, {target.name}: {error}")
                    click.echo(failures[-1], err=True)
    return results, failures


def _measure(
    scenario: Scenario, target: Target, count: int, repetition: int, results: Results
) -> None:
    with targets.running(target, *scenario.flags) as server:
        rows = scenario.run(server, count)
    for row, figures in rows.items():
        results.add(Sample(row, target.name, repetition, figures))
        text = ", ".join(
            f"{METRICS[key].title} {value:,.{METRICS[key].digits}f}"
            for key, value in figures.items()
        )
        click.echo(f"{row} {repetition + 1} {target.name}: {text}", err=True)


if __name__ == "__main__":
    main()
