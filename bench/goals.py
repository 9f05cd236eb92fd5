"""What our figures have to reach, and whether they do. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.figures import METRICS, OURS, Results

__all__ = ["Goal", "Verdict", "goals_of", "judge"]

TRIAL_SHARE = 0.8
"""Of the yardstick, which has no features: what the features may cost is the other fifth."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one figure of ours: on its ratio to another target's, or on the figure itself."""

    row: str
    metric: str
    bound: float
    beside: str | None = None

    def __str__(self) -> str:
        what = f"{self.row}, {METRICS[self.metric].title}"
        if self.beside:
            return f"{what}: at least {self.bound:g} times as good as {self.beside}"
        side = "at least" if METRICS[self.metric].more_is_better else "at most"
        return f"{what}: {side} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal beside the figure that was measured; `figure` and `met` are None if none was."""

    goal: Goal
    figure: float | None

    @property
    def met(self) -> bool | None:
        if self.figure is None:
            return None
        more = self.goal.beside is not None or METRICS[self.goal.metric].more_is_better
        return self.figure >= self.goal.bound if more else self.figure <= self.goal.bound


BESIDE_TRIAL: Sequence[tuple[str, Sequence[str]]] = (
    ("mpub", ("rate", "per_cpu")),
    ("consume", ("rate", "per_cpu")),
    ("pub", ("rate", "per_cpu")),
    ("http", ("rate", "per_cpu")),
    ("fanout", ("rate", "per_cpu")),
    ("backlog-publish", ("rate", "per_cpu")),
    ("backlog-drain", ("rate", "per_cpu")),
    ("latency", ("p50_ms", "p99_ms", "p999_ms")),
    ("latency-plain", ("p50_ms",)),
)

OTHERS: Sequence[Goal] = (
    Goal("mpub", "rate", 1.6, beside="redis"),
    Goal("consume", "rate", 2.0, beside="redis"),
    Goal("latency-plain", "p50_ms", 0.3),
    Goal("backlog-drain", "peak_mb", 120),
    Goal("idle", "idle_mb", 60),
    Goal("idle", "start_s", 0.35),
)


def goals_of(rows: Sequence[str]) -> Iterator[Goal]:
    """The goals for these rows of the table."""
    for row, metrics in BESIDE_TRIAL:
        if row in rows:
            yield from (Goal(row, metric, TRIAL_SHARE, beside="trial") for metric in metrics)
    yield from (goal for goal in OTHERS if goal.row in rows)


def judge(goal: Goal, results: Results) -> Verdict:
    if goal.beside:
        return Verdict(goal, results.advantage(goal.row, goal.metric, over=goal.beside))
    return Verdict(goal, results.median(goal.row, goal.metric, OURS))
