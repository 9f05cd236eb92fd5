"""`bench.guard` saves figures and compares them; the figures themselves depend on the machine."""

import json
from pathlib import Path

import pytest
from bench.guard import WORKLOADS, Cost, main
from click.testing import CliRunner


def test_saved_figures_are_compared_with_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    saved = CliRunner().invoke(main, ["--rounds=1", f"--save={file}"])

    assert 0 == saved.exit_code, saved.output
    assert WORKLOADS.keys() == json.loads(file.read_text()).keys()
    assert "as before" not in saved.output

    file.write_text(json.dumps(dict.fromkeys(WORKLOADS, 1e9)))
    compared = CliRunner().invoke(main, ["--rounds=1", f"--against={file}"])

    assert 0 == compared.exit_code, compared.output
    assert len(WORKLOADS) == compared.output.count("times as many as before")


def test_a_much_higher_cost_per_message_fails(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    file.write_text(json.dumps(dict.fromkeys(WORKLOADS, 1e-9)))
    compared = CliRunner().invoke(main, ["--rounds=1", f"--against={file}"])

    assert 1 == compared.exit_code
    assert "at most 1.25 times is allowed" in compared.output


@pytest.mark.parametrize(("steps", "is_too_much"), [(2.5, False), (2.51, True)])
def test_the_limit_is_a_quarter_more(steps: float, *, is_too_much: bool) -> None:
    assert is_too_much is Cost("PUB", steps, 2.0).is_too_much
    assert not Cost("PUB", steps).is_too_much
