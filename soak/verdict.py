"""Whether an nsqd stayed as it was, and nothing was lost. Pure: figures in, sentences out."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from soak.load import Account
from soak.samples import Sample

__all__ = ["Finding", "judge_account", "judge_samples", "settled_at"]

# By then memory has grown to what the load needs, and the disk to what retention keeps.
SETTLED_SECONDS = 300.0
SETTLED_SHARE = 0.25
"""Of a run that is shorter than that."""

SPAN_SHARE = 0.1
"""How much of a run the figures at its settling, and at its end, are the median of."""

GROWTH_MAX = 0.10


class Finding(NamedTuple):
    """One thing that was looked at."""

    text: str
    is_good: bool


class Limit(NamedTuple):
    """How much a figure may have grown from when all had settled to the end."""

    title: str
    of: Callable[[Sample], float]
    slack: float
    """What may be added to the ten percent: a step of its size means nothing."""
    unit: str


LIMITS = (
    Limit("resident memory", lambda sample: sample.rss_mb, 0, "MB"),
    Limit("open handles", lambda sample: sample.handles, 5, ""),
    Limit("disk", lambda sample: sample.disk_mb, 8, "MB"),
    # What other programs on this machine are to blame for says nothing of nsqd.
    Limit("lateness of the loop", lambda s: max(0.0, s.late_ms - s.starved_ms), 25, "ms"),
)


def settled_at(seconds: float) -> float:
    """From when on, in a run of so many seconds, nothing may grow."""
    return min(SETTLED_SECONDS, SETTLED_SHARE * seconds)


def judge_samples(samples: Sequence[Sample], seconds: float) -> list[Finding]:
    """Compares the end of a run with when all had settled."""
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
    """Whether a load got all that it was promised, and was a load at all."""
    said = f"{account.acknowledged:,} messages acknowledged, {account.lost:,} of them lost"
    again = account.audited - account.acknowledged
    return [
        Finding(said, is_good=account.lost == 0 and account.acknowledged > 0),
        Finding(f"{again:,} deliveries to the audit more than acknowledged", is_good=True),
        Finding(f"{account.read_back:,} messages read back", is_good=account.read_back > 0),
    ]
