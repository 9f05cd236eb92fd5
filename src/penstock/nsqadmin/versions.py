"""Versions of nsqd, for telling which of them are older than the newest."""

import re

__all__ = ["parse_version"]

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")

Version = tuple[int, int, int, bool, str]


def parse_version(text: str) -> Version:
    """What compares as the versions do; the oldest of all for what is no version. A version with a
    suffix, such as 1.3.0-alpha, comes before the one without."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return 0, 0, 0, True, ""
    major, minor, patch, suffix = match[1], match[2], match[3], match[4] or ""
    return int(major), int(minor), int(patch), not suffix, suffix
