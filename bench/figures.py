"""Samples of a run, with medians and ratios. Pure.

A sample is the result of one repetition of one scenario for one row of the table and one target.
Targets take turns within a repetition, so a slow machine slows all of them: ratios are computed for
each repetition, and the median of these ratios is reported. A ratio says how many times *better*
one target is than another, whether a higher or a lower value is better.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

__all__ = ["METRICS", "OURS", "Figures", "Metric", "Results", "Sample", "percentile"]

OURS = "penstock"

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: name, format, and whether higher or lower is better."""

    title: str
    digits: int = 0
    more_is_better: bool = True


METRICS: Mapping[str, Metric] = {
    "rate": Metric("msgs/s"),
    "per_cpu": Metric("msgs per CPU-second"),
    "per_cpu_of_all": Metric("msgs per CPU-second of all members"),
    "follower_share": Metric("CPU of a follower/leader", digits=2, more_is_better=False),
    "p50_ms": Metric("p50, ms", digits=3, more_is_better=False),
    "p99_ms": Metric("p99, ms", digits=3, more_is_better=False),
    "p999_ms": Metric("p99.9, ms", digits=3, more_is_better=False),
    "start_s": Metric("start to first answer, s", digits=3, more_is_better=False),
    "first_message_s": Metric("start to first message, s", digits=3, more_is_better=False),
    "idle_mb": Metric("idle memory, MB", digits=1, more_is_better=False),
    "peak_mb": Metric("peak memory, MB", digits=1, more_is_better=False),
}


@dataclass(frozen=True, slots=True)
class Sample:
    row: str
    target: str
    repetition: int
    figures: Figures


@dataclass
class Results:
    """All samples of one run."""

    samples: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        unknown = sample.figures.keys() - METRICS.keys()
        assert not unknown, f"figures without a metric: {sorted(unknown)}"
        self.samples.append(sample)

    def rows(self) -> list[str]:
        """Rows with samples, in the order of measurement."""
        return list(dict.fromkeys(sample.row for sample in self.samples))

    def metrics(self, row: str) -> list[str]:
        """Metrics of a row at any target, in the order of METRICS."""
        found = {key for sample in self.samples if sample.row == row for key in sample.figures}
        return [key for key in METRICS if key in found]

    def median(self, row: str, metric: str, target: str) -> float | None:
        values = self._by_repetition(row, metric, target).values()
        return median(values) if values else None

    def advantage(self, row: str, metric: str, over: str, of: str = OURS) -> float | None:
        """How many times better `of` is than `over`; None unless both were measured together."""
        mine = self._by_repetition(row, metric, of)
        theirs = self._by_repetition(row, metric, over)
        shared = mine.keys() & theirs.keys()
        if not shared:
            return None
        better, worse = (mine, theirs) if METRICS[metric].more_is_better else (theirs, mine)
        return median(_ratio(better[n], worse[n]) for n in shared)

    def _by_repetition(self, row: str, metric: str, target: str) -> dict[int, float]:
        return {
            sample.repetition: sample.figures[metric]
            for sample in self.samples
            if sample.row == row and sample.target == target and metric in sample.figures
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Percentile of ascending values; `share` is 0 to 1."""
    if not ordered:
        raise ValueError("no values, so no percentile")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _ratio(value: float, base: float) -> float:
    return value / base if base else math.inf
