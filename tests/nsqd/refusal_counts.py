"""What nsqd's metrics say of refusals."""

import re
from collections import Counter

from penstock.testing.nsqd import NsqdProcess

_SAMPLE = re.compile(r'\nnsqd_(?:http_)?refusals_total\{(?:reason|code)="(\w+)"\} (\d+)')


def refusal_counts(nsqd: NsqdProcess) -> Counter[str]:
    """How often it has refused somebody something, by reason, or by status over HTTP."""
    text = nsqd.http("GET", "/metrics").body.decode()
    return Counter({reason: int(count) for reason, count in _SAMPLE.findall(text)})
