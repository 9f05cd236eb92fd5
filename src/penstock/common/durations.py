"""Durations in Go's syntax, which NSQ uses in flags, config files and pages: `1h2m3s`, `-250us`.

Values are integers of nanoseconds.
"""

import re

__all__ = ["format_duration", "parse_duration"]

_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu, which Go also accepts
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}

# Go stores a duration as an int64 of nanoseconds: about 292 years.
_DURATION_NS_MAX = 2**63 - 1

_PART = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>[a-zµμ]+)")


def parse_duration(text: str) -> int:
    """Parse a duration to nanoseconds. Raises ValueError if it is invalid or too long."""
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned == "0":
        return 0
    duration_ns, position = 0, 0
    while position < len(unsigned) or position == 0:
        part = _PART.match(unsigned, position)
        if part is None:
            raise ValueError(f"not a duration: {text}")
        duration_ns += _part_ns(part)
        position = part.end()
    if duration_ns > _DURATION_NS_MAX:
        raise ValueError(f"too long a duration: {text}")
    return -duration_ns if text[0] == "-" else duration_ns


def format_duration(duration_ns: int) -> str:
    """Format as Go does, exactly: `1m0s`, `2.5s`, `250ms`, `0s`."""
    sign, rest_ns = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    if rest_ns == 0:
        return "0s"
    if rest_ns < _UNIT_NS["s"]:
        unit = next(unit for unit in ("ms", "µs", "ns") if rest_ns >= _UNIT_NS[unit])
        return f"{sign}{_decimal(rest_ns, _UNIT_NS[unit])}{unit}"
    minutes, seconds_ns = divmod(rest_ns, _UNIT_NS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(seconds_ns, _UNIT_NS['s'])}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _part_ns(part: re.Match[str]) -> int:
    whole, fraction, unit = part["whole"], part["fraction"] or "", part["unit"]
    if unit not in _UNIT_NS or not (whole or fraction):
        raise ValueError(f"not a duration: {part.string}")
    # Integer arithmetic: 0.1s is exactly 100,000,000 ns.
    unit_ns = _UNIT_NS[unit]
    scale: int = 10 ** len(fraction)
    return int(whole or "0") * unit_ns + int(fraction or "0") * unit_ns // scale


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)
