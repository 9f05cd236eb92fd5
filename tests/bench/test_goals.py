import pytest
from bench.figures import METRICS, OURS, Results, Sample
from bench.goals import BESIDE_TRIAL, OTHERS, Goal, goals_of, judge
from bench.scenarios import row_titles


def measured(metric: str, ours: float, trial: float) -> Results:
    results = Results()
    results.add(Sample("row", OURS, 0, {metric: ours}))
    results.add(Sample("row", "trial", 0, {metric: trial}))
    return results


@pytest.mark.parametrize(
    ("goal", "ours", "trial", "met"),
    [
        (Goal("row", "rate", 0.8, beside="trial"), 80, 100, True),
        (Goal("row", "rate", 0.8, beside="trial"), 79, 100, False),
        (Goal("row", "p99_ms", 0.8, beside="trial"), 1.25, 1.0, True),
        (Goal("row", "p99_ms", 0.8, beside="trial"), 1.26, 1.0, False),
        (Goal("row", "rate", 50), 50, 0, True),
        (Goal("row", "rate", 50), 49, 0, False),
        (Goal("row", "peak_mb", 120), 120, 0, True),
        (Goal("row", "peak_mb", 120), 121, 0, False),
    ],
    ids=str,
)
def test_a_goal_is_met_at_its_bound_but_not_beyond(
    goal: Goal, ours: float, trial: float, *, met: bool
) -> None:
    assert met is judge(goal, measured(goal.metric, ours, trial)).met


def test_a_goal_whose_figure_is_missing_is_neither_met_nor_missed() -> None:
    verdict = judge(Goal("row", "rate", 2, beside="redis"), measured("rate", 1, 1))

    assert verdict.figure is None
    assert verdict.met is None


def test_only_rows_that_were_measured_have_goals() -> None:
    assert {"consume"} == {goal.row for goal in goals_of(["consume"])}


def test_every_goal_is_about_a_row_and_a_metric_that_exist() -> None:
    rows = list(row_titles())
    goals = [*(Goal(row, metrics[0], 1) for row, metrics, _ in BESIDE_TRIAL), *OTHERS]

    assert {goal.row for goal in goals} <= set(rows)
    assert {goal.row for goal in goals} == {goal.row for goal in goals_of(rows)}
    assert {goal.metric for goal in goals} <= METRICS.keys()


def test_a_goal_reads_as_a_sentence() -> None:
    assert str(Goal("mpub", "rate", 1.6, beside="redis")) == (
        "mpub, msgs/s: at least 1.6 times as good as redis"
    )
    assert str(Goal("idle", "idle_mb", 60)) == "idle, idle memory, MB: at most 60"
