"""Error counters in nsqd's metrics."""

import re
from collections import Counter

from penstock.testing.nsqd import NsqdProcess

_SAMPLE = re.compile(r'\nnsqd_(?:http_)?refusals_total\{(?:reason|code)="(\w+)"\} (\d+)')


def refusal_counts(nsqd: NsqdProcess) -> Counter[str]:
    """Number of refused commands and requests, by reason or HTTP status."""
    text = nsqd.http("GET", "/metrics").body.decode()
    return Counter({reason: int(count) for reason, count in _SAMPLE.findall(text)})
