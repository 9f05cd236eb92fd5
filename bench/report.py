"""Output of results: table, Markdown, JSON."""

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from bench.figures import METRICS, OURS, Results
from bench.goals import Verdict, goals_of, judge

__all__ = ["Line", "Report", "as_json", "as_markdown", "machine", "print_report"]

MET: Mapping[bool | None, str] = {True: "met", False: "not met", None: "not measured"}
STYLES: Mapping[bool | None, str] = {True: "green", False: "red", None: "yellow"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a metric of a row for every target, and the ratio to ours."""

    row: str
    metric: str
    values: Mapping[str, float | None]
    advantages: Mapping[str, float | None]


@dataclass(frozen=True)
class Report:
    """Results, and the data to present them."""

    results: Results
    targets: Sequence[str]
    titles: Mapping[str, str]
    failures: Sequence[str] = ()

    @property
    def others(self) -> Sequence[str]:
        """Targets that ours is compared with; none if ours was not measured."""
        return [name for name in self.targets if name != OURS] if OURS in self.targets else []

    def lines(self) -> Iterator[Line]:
        results = self.results
        for row in results.rows():
            for metric in results.metrics(row):
                values = {name: results.median(row, metric, name) for name in self.targets}
                advantages = {name: results.advantage(row, metric, name) for name in self.others}
                yield Line(row, metric, values, advantages)

    def verdicts(self) -> list[Verdict]:
        return [judge(goal, self.results) for goal in goals_of(self.results.rows())]

    def head(self) -> list[str]:
        return ["", "", *self.targets, *(f"vs {name}" for name in self.others)]

    def cells(self) -> Iterator[list[str]]:
        """The cells of the table as text. Only the first line of a row has its title."""
        previous = ""
        for line in self.lines():
            title = "" if line.row == previous else self.titles[line.row]
            previous = line.row
            digits = METRICS[line.metric].digits
            values = [_number(line.values[name], digits) for name in self.targets]
            ratios = [_ratio(line.advantages[name]) for name in self.others]
            yield [title, METRICS[line.metric].title, *values, *ratios]


def print_report(report: Report, console: Console) -> None:
    table = Table(caption="medians; a ratio says how many times better ours is in the same run")
    for name in report.head():
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    body = list(report.cells())
    for cells, following in pairwise([*body, ["end"]]):
        table.add_row(*cells, end_section=bool(following[0]))
    console.print(table)
    for verdict in report.verdicts():
        met = MET[verdict.met]
        console.print(
            f"[{STYLES[verdict.met]}]{met:>12}[/]  {verdict.goal}"
            + ("" if verdict.figure is None else f"  ({verdict.figure:.3g})"),
            highlight=False,
        )
    for failure in report.failures:
        console.print(f"[red]      failed[/]  {failure}", highlight=False)


def as_markdown(report: Report) -> str:
    """The table and the goals, for the documentation."""
    head = report.head()
    rule = ["---" if not name else "---:" for name in head]
    table = [_markdown_row(cells) for cells in (head, rule, *report.cells())]
    goals = [
        _markdown_row([str(verdict.goal), _ratio(verdict.figure), MET[verdict.met]])
        for verdict in report.verdicts()
    ]
    goals_head = [_markdown_row(["goal", "figure", ""]), _markdown_row(["---", "---:", "---"])]
    return "\n".join([*table, "", *goals_head, *goals, ""])


def as_json(report: Report) -> str:
    """Samples, table and goals as JSON."""
    document = {
        "machine": machine(),
        "targets": list(report.targets),
        "samples": [
            {
                "row": sample.row,
                "target": sample.target,
                "repetition": sample.repetition,
                "figures": dict(sample.figures),
            }
            for sample in report.results.samples
        ],
        "table": [
            {
                "row": line.row,
                "metric": line.metric,
                "medians": dict(line.values),
                "times_better": dict(line.advantages),
            }
            for line in report.lines()
        ],
        "goals": [
            {"goal": str(verdict.goal), "figure": verdict.figure, "met": verdict.met}
            for verdict in report.verdicts()
        ],
        "failures": list(report.failures),
    }
    return json.dumps(document, indent=2) + "\n"


def machine() -> Mapping[str, object]:
    """The machine and its load."""
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
