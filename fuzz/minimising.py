"""Selects few inputs with the same coverage."""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from fuzz.targets import Target

__all__ = ["minimised"]

Reached = frozenset[tuple[str, int, int]]
"""Pairs of lines of Penstock that ran one after the other in a file."""


def minimised(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """The inputs, shortest first, that add coverage to those before them."""
    reached: set[tuple[str, int, int]] = set()
    chosen = []
    for data in sorted(set(inputs), key=lambda each: (len(each), each)):
        fresh = _reached_by(target, data) - reached
        if fresh:
            reached |= fresh
            chosen.append(data)
    return chosen


def _reached_by(target: Target, data: bytes) -> Reached:
    reached: set[tuple[str, int, int]] = set()
    last: dict[str, int] = {}

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if "penstock" not in file:
            return None
        if event == "line":
            reached.add((file, last.get(file, 0), frame.f_lineno))
            last[file] = frame.f_lineno
        return trace

    sys.settrace(trace)
    try:
        target.check(data)
    finally:
        sys.settrace(None)
    return frozenset(reached)
