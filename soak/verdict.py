"""Verdict on a run: whether resources stayed constant and no message was lost. Pure."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from soak.load import Account
from soak.samples import Sample

__all__ = ["Finding", "judge_account", "judge_samples", "settled_at"]

# After this time, memory and disk have reached the level of the load.
SETTLED_SECONDS = 300.0
SETTLED_SHARE = 0.25
"""The same as a share of a shorter run."""

SPAN_SHARE = 0.1
"""Share of the run whose median is compared, after settling and at the end."""

GROWTH_MAX = 0.10


class Finding(NamedTuple):
    """Result of one check."""

    text: str
    is_good: bool


class Limit(NamedTuple):
    """Allowed growth of a figure, from settling to the end."""

    title: str
    of: Callable[[Sample], float]
    slack: float
    """Allowed growth in addition to ten percent."""
    unit: str


LIMITS = (
    Limit("resident memory", lambda sample: sample.rss_mb, 0, "MB"),
    Limit("open handles", lambda sample: sample.handles, 5, ""),
    Limit("disk", lambda sample: sample.disk_mb, 8, "MB"),
    # Delays caused by other programs do not count.
    Limit("lateness of the loop", lambda s: max(0.0, s.late_ms - s.starved_ms), 25, "ms"),
)


def settled_at(seconds: float) -> float:
    """The time from which nothing may grow, in a run of this many seconds."""
    return min(SETTLED_SECONDS, SETTLED_SHARE * seconds)


def judge_samples(samples: Sequence[Sample], seconds: float) -> list[Finding]:
    """Compare the end of a run with the time after settling."""
    span, settled = SPAN_SHARE * seconds, settled_at(seconds)
    early = [sample for sample in samples if settled <= sample.at < settled + span]
    late = [sample for sample in samples if sample.at >= seconds - span]
    if not early or not late:
        return [Finding("too few samples to judge by", is_good=False)]
    return [_compared(limit, early, late, settled) for limit in LIMITS]


def _compared(
    limit: Limit, early: Sequence[Sample], late: Sequence[Sample], settled: float
) -> Finding:
    before, after = median(map(limit.of, early)), median(map(limit.of, late))
    change = f"{after / before - 1:+.1%}" if before else "new"
    when = f"minute {settled / 60:.3g}"
    text = (
        f"{limit.title}: {before:.1f} {limit.unit} after {when}, {after:.1f} at the end ({change})"
    )
    return Finding(text, is_good=after <= before * (1 + GROWTH_MAX) + limit.slack)


def judge_account(account: Account) -> list[Finding]:
    """Check that no message was lost, and that there was load."""
    said = f"{account.acknowledged:,} messages acknowledged, {account.lost:,} of them lost"
    again = account.audited - account.acknowledged
    return [
        Finding(said, is_good=account.lost == 0 and account.acknowledged > 0),
        Finding(f"{again:,} deliveries to the audit more than acknowledged", is_good=True),
        Finding(f"{account.read_back:,} messages read back", is_good=account.read_back > 0),
    ]
