import json
from pathlib import Path

import pytest
from bench.goals import GROWTH
from bench.growth import CURVES, Growth, as_json, factor, main
from click.testing import CliRunner


def grown(name: str, **costs: tuple[float, float]) -> Growth:
    """A curve with the given costs at the first and the last point of its goal."""
    goal = next(goal for goal in GROWTH if goal.curve == name)
    growth = Growth(next(curve for curve in CURVES if curve.name == name))
    for line, (first, last) in costs.items():
        growth.add(goal.first, {line: first})
        growth.add(goal.last, {line: last})
    return growth


def test_the_lowest_repetition_counts() -> None:
    growth = grown("topics", MPUB=(1.0, 2.0))
    growth.add(1_000, {"MPUB": 1.5})
    growth.add(1_000, {"MPUB": 1.7})

    assert {"MPUB": 1.5} == growth.costs[1_000]


def test_every_line_of_a_curve_is_compared_with_its_goal() -> None:
    judged = json.loads(as_json([grown("topics", MPUB=(1.0, 1.2), PUB=(1.0, 1.3))]))["goals"]

    assert [("MPUB", True), ("PUB", False)] == [(one["line"], one["met"]) for one in judged]


def test_a_curve_without_points_has_no_factor() -> None:
    assert {} == factor(GROWTH[0], Growth(CURVES[0]))


def test_every_goal_is_about_points_that_are_measured() -> None:
    points = {curve.name: set(curve.points) for curve in CURVES}

    assert all({goal.first, goal.last} <= points[goal.curve] for goal in GROWTH)


@pytest.mark.slow
def test_a_quick_run_measures_a_curve_at_two_points(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["--quick", "--only=size", f"--json={tmp_path / 'growth.json'}"])
    (curve,) = json.loads((tmp_path / "growth.json").read_text())["curves"]

    assert 0 == run.exit_code, run.output
    assert [10, 100_000] == [one["point"] for one in curve["cpu_us"]]
    assert all(cost > 0 for one in curve["cpu_us"] for cost in one["costs"].values())
