"""`penstock doctor`: check whether this machine can run Penstock."""

import json
import sys

import click

from penstock.cli.command_options import CommandWithExamples
from penstock.tools.display import format_count, format_table

__all__ = ["command"]

_COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


@click.command(
    "doctor",
    cls=CommandWithExamples,
    examples=["penstock doctor", "penstock doctor --data-path /var/lib/penstock --json"],
)
@click.option(
    "--data-path",
    type=click.Path(),
    default="penstock-data",
    show_default=True,
    help="Data path to check.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address whose ports to check."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@click.pass_context
def command(context: click.Context, *, data_path: str, host: str, as_json: bool) -> None:
    """Check whether this machine can run Penstock, and suggest repairs.

    Checks Python and its packages, Java for Spark, the data path and its disk, limits, memory,
    clock, and the ports of nsqd, nsqlookupd and nsqadmin. Changes nothing. Exits with 1 if a
    failed check would prevent Penstock from working. Warnings do not change the exit code.
    """
    from penstock.tools.doctor import Grade, Subject, examine  # noqa: PLC0415

    diagnoses = dict(examine(Subject(data_path, host)))
    is_fit = all(each.grade is not Grade.FAIL for each in diagnoses.values())
    if as_json:
        checks = [{"check": name, **each._asdict()} for name, each in diagnoses.items()]
        click.echo(json.dumps({"fit": is_fit, "checks": checks}))
    else:
        rows = [(name, str(each.grade), each.found) for name, each in diagnoses.items()]
        lines = format_table([("check", "", ""), *rows])[1:]
        for line, each in zip(lines, diagnoses.values(), strict=True):
            click.echo(_coloured(line, each.grade))
            if each.hint:
                click.echo(f"    {each.hint}")
        click.echo(_verdict([each.grade.value for each in diagnoses.values()]))
    context.exit(0 if is_fit else 1)


def _coloured(line: str, grade: str) -> str:
    if not sys.stdout.isatty():
        return line
    return line.replace(f"  {grade}", f"  {click.style(grade, fg=_COLOURS[grade])}", 1)


def _verdict(grades: list[str]) -> str:
    failures, warnings = grades.count("FAIL"), grades.count("warn")
    if failures:
        return f"not ready: {failures} failed, {format_count(warnings, 'warning')}"
    return f"ready, {format_count(warnings, 'warning')}" if warnings else "ready"
