import io
import json

from bench.figures import OURS, Results, Sample
from bench.report import Report, as_json, as_markdown, print_report
from rich.console import Console


def report() -> Report:
    results = Results()
    results.add(Sample("mpub", OURS, 0, {"rate": 900_000, "peak_mb": 61.25}))
    results.add(Sample("mpub", "trial", 0, {"rate": 1_000_000}))
    results.add(Sample("latency", OURS, 0, {"p50_ms": 0.1}))
    results.add(Sample("latency", "trial", 0, {"p50_ms": 0.05}))
    titles = {"mpub": "MPUB x200", "latency": "end to end"}
    return Report(results, [OURS, "trial"], titles, ["http, trial: not a 200"])


def test_the_markdown_has_a_line_for_each_metric_and_each_goal() -> None:
    lines = as_markdown(report()).splitlines()

    assert lines[:6] == [
        "|  |  | penstock | trial | vs trial |",
        "| --- | --- | ---: | ---: | ---: |",
        "| MPUB x200 | msgs/s | 900,000 | 1,000,000 | 0.90 |",
        "|  | peak memory, MB | 61.2 |  |  |",
        "| end to end | p50, ms | 0.100 | 0.050 | 0.50 |",
        "",
    ]
    assert "| mpub, msgs/s: at least 0.8 times as good as trial | 0.90 | met |" in lines
    assert "| latency, p50, ms: at least 0.8 times as good as trial | 0.50 | not met |" in lines
    assert "| mpub, msgs/s: at least 1.6 times as good as redis |  | not measured |" in lines


def test_the_json_contains_samples_table_and_goals() -> None:
    document = json.loads(as_json(report()))

    assert document["samples"][0] == {
        "row": "mpub",
        "target": OURS,
        "repetition": 0,
        "figures": {"rate": 900_000, "peak_mb": 61.25},
    }
    assert document["table"][0] == {
        "row": "mpub",
        "metric": "rate",
        "medians": {OURS: 900_000, "trial": 1_000_000},
        "times_better": {"trial": 0.9},
    }
    assert document["goals"][0]["met"] is True
    assert document["failures"] == ["http, trial: not a 200"]


def test_the_printed_report_names_missed_goals_and_failures() -> None:
    out = io.StringIO()

    print_report(report(), Console(file=out, width=120))

    text = out.getvalue()
    assert "not met  latency, p50, ms: at least 0.8 times as good as trial  (0.5)" in text
    assert "failed  http, trial: not a 200" in text


def test_without_our_own_nsqd_there_is_nothing_to_compare() -> None:
    results = Results()
    results.add(Sample("mpub", "redis", 0, {"rate": 5}))

    assert as_markdown(Report(results, ["redis"], {"mpub": "MPUB"})).startswith(
        "|  |  | redis |\n| --- | --- | ---: |\n| MPUB | msgs/s | 5 |\n"
    )
