import json
from pathlib import Path
from xml.etree import ElementTree as ET

from bench.plot import main
from click.testing import CliRunner

TABLE = [
    {"row": "mpub", "metric": "per_cpu", "medians": {"penstock": 1_000_000, "redis": 400_000}},
    {"row": "http", "metric": "per_cpu", "medians": {"penstock": 60_000, "redis": None}},
    {"row": "http", "metric": "rate", "medians": {"penstock": 60_000, "redis": None}},
]
CURVE = {
    "name": "backlog",
    "title": "messages that wait",
    "unit": "messages",
    "cpu_us": [{"point": 0, "costs": {"PUB": 20.0}}, {"point": 1_000, "costs": {"PUB": 21.0}}],
}


def test_both_kinds_of_figures_can_be_plotted(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps({"table": TABLE}))
    (tmp_path / "growth.json").write_text(json.dumps({"curves": [CURVE]}))
    files = [str(tmp_path / "bench.json"), str(tmp_path / "growth.json")]

    run = CliRunner().invoke(main, [*files, f"--into={tmp_path}"])

    assert 0 == run.exit_code, run.output
    for name in ("bench-rates.svg", "bench-growth.svg"):
        assert "{http://www.w3.org/2000/svg}svg" == ET.parse(tmp_path / name).getroot().tag


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")

    run = CliRunner().invoke(main, [str(tmp_path / "other.json")])

    assert 1 == run.exit_code
    assert "is neither of bench --json nor of bench.growth --json" in run.output
