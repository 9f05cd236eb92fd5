import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.scenarios import SCENARIOS, Scenario

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("TRIAL", None)
    environment.pop("AGAINST", None)
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("scenarios", [SCENARIOS[::2], SCENARIOS[1::2]], ids=["even", "odd"])
def test_a_quick_run_measures_our_nsqd_on_every_row(
    tmp_path: Path, scenarios: Sequence[Scenario]
) -> None:
    """In two halves, which can run in parallel."""
    json_file, markdown_file = tmp_path / "figures.json", tmp_path / "figures.md"
    files = [f"--json={json_file}", f"--markdown={markdown_file}"]
    titles = {row: title for one in scenarios for row, title in one.rows.items()}

    run = bench("--quick", "--no-redis", *files, *(f"--only={one.name}" for one in scenarios))

    assert run.returncode == 0, run.stderr
    document = json.loads(json_file.read_text())
    assert list(titles) == [sample["row"] for sample in document["samples"]]
    # A quick run may be shorter than a tick of the CPU's clock, and a message may come in time.
    assert all(value >= 0 for sample in document["samples"] for value in sample["figures"].values())
    assert all(title in markdown_file.read_text() for title in titles.values())


@pytest.mark.slow
def test_another_nsqd_is_measured_beside_ours() -> None:
    """Our own nsqd takes the place of another one; the test is about the command line."""
    flags = "--tcp-address={tcp} --http-address={http} --data-path={data}"
    another = f"{sys.executable} -m penstock.cli.nsqd {flags}"

    run = bench("--quick", "--no-redis", "--only=pub", f"--against={another}")

    assert run.returncode == 0, run.stderr
    assert "vs against" in run.stdout


def test_a_target_that_fails_is_reported_and_fails_the_run() -> None:
    run = bench("--quick", "--no-ours", "--no-redis", "--only=mpub", "--against=false")

    assert run.returncode == 1
    assert "mpub, against: against does not start: exit code 1; it printed nothing" in run.stdout
    assert "Traceback" not in run.stderr


def test_help_names_every_scenario() -> None:
    run = bench("--help")

    assert run.returncode == 0
    assert all(scenario.name in run.stdout for scenario in SCENARIOS)


def test_no_target_is_a_usage_error() -> None:
    run = bench("--no-ours", "--no-redis")

    assert run.returncode == 2
    assert "nothing to measure" in run.stderr
