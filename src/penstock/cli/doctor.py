"""`penstock doctor`: is this machine fit to run Penstock?"""

import json
import sys

import click

from penstock.cli.command_options import CommandWithExamples
from penstock.tools.display import format_table

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
    help="Where messages are to be kept.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(context: click.Context, *, data_path: str, host: str, as_json: bool) -> None:
    """Check this machine, and say what to put right.

    Looks at Python and the packages, Java for Spark, the data path and its disk, limits, memory,
    clock, and the ports of nsqd, nsqlookupd and nsqadmin. Nothing is changed. Exits with 1 if
    something would keep Penstock from working; what only might be better is a warning.
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
        return f"not fit: {failures} to put right" + (f", {warnings} to look at" * bool(warnings))
    return f"fit, {warnings} to look at" if warnings else "fit"
