"""Goals for the results, and their evaluation. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.figures import METRICS, OURS, Results

__all__ = ["GROWTH", "Goal", "GrowthGoal", "Verdict", "goals_of", "judge"]

TRIAL_SHARES = (0.8, 0.95)
"""Bounds relative to the reference server, which lacks most features: required and desired."""

BACKLOG_SHARES = (0.8, 0.9)
"""The reference server keeps a backlog in memory and never reads a file."""

LATENCY_SHARES = (0.8, 1 / 1.2)
"""At most 1.2 times as long."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a result, or on its ratio to another target's."""

    row: str
    metric: str
    bound: float
    beside: str | None = None

    def __str__(self) -> str:
        what = f"{self.row}, {METRICS[self.metric].title}"
        if self.beside:
            return f"{what}: at least {self.bound:.3g} times as good as {self.beside}"
        side = "at least" if METRICS[self.metric].more_is_better else "at most"
        return f"{what}: {side} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class GrowthGoal:
    """A bound on the growth of the cost per message over a curve of `bench.growth`."""

    curve: str
    first: int
    last: int
    factor_max: float

    def __str__(self) -> str:
        return (
            f"{self.curve}, CPU per message: from {self.first:,} to {self.last:,}"
            f" at most {self.factor_max:g} times"
        )

    def is_met(self, factor: float) -> bool:
        return factor <= self.factor_max


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and its result; `figure` and `met` are None if it was not measured."""

    goal: Goal
    figure: float | None

    @property
    def met(self) -> bool | None:
        if self.figure is None:
            return None
        more = self.goal.beside is not None or METRICS[self.goal.metric].more_is_better
        return self.figure >= self.goal.bound if more else self.figure <= self.goal.bound


RATES = ("rate", "per_cpu")

BESIDE_TRIAL: Sequence[tuple[str, Sequence[str], Sequence[float]]] = (
    ("mpub", RATES, TRIAL_SHARES),
    ("consume", RATES, TRIAL_SHARES),
    ("pub", RATES, TRIAL_SHARES),
    ("pub64", RATES, TRIAL_SHARES),
    ("topics", RATES, TRIAL_SHARES),
    ("http", RATES, TRIAL_SHARES),
    ("fanout", RATES, TRIAL_SHARES),
    ("consumers", RATES, TRIAL_SHARES),
    ("backlog-publish", RATES, BACKLOG_SHARES),
    ("backlog-drain", RATES, BACKLOG_SHARES),
    ("huge-backlog-publish", RATES, BACKLOG_SHARES),
    ("huge-backlog-drain", RATES, BACKLOG_SHARES),
    ("latency", ("p50_ms", "p99_ms", "p999_ms"), LATENCY_SHARES),
    ("latency-plain", ("p50_ms",), LATENCY_SHARES),
)

OTHERS: Sequence[Goal] = (
    Goal("mpub", "rate", 1.6, beside="redis"),
    Goal("consume", "rate", 2.0, beside="redis"),
    Goal("latency-half", "p99_ms", 10),
    Goal("latency-plain", "p50_ms", 0.3),
    Goal("backlog-drain", "peak_mb", 120),
    Goal("huge-backlog-drain", "peak_mb", 120),
    Goal("idle", "idle_mb", 60),
    Goal("idle", "start_s", 0.35),
)

GROWTH: Sequence[GrowthGoal] = (
    GrowthGoal("topics", first=1, last=1_000, factor_max=1.2),
    GrowthGoal("backlog", first=0, last=5_000_000, factor_max=1.2),
)


def goals_of(rows: Sequence[str]) -> Iterator[Goal]:
    """The goals for these rows of the table."""
    for row, metrics, shares in BESIDE_TRIAL:
        if row in rows:
            for metric in metrics:
                yield from (Goal(row, metric, share, beside="trial") for share in shares)
    yield from (goal for goal in OTHERS if goal.row in rows)


def judge(goal: Goal, results: Results) -> Verdict:
    if goal.beside:
        return Verdict(goal, results.advantage(goal.row, goal.metric, over=goal.beside))
    return Verdict(goal, results.median(goal.row, goal.metric, OURS))
