"""Stored inputs: one text file per target, with one Python bytes literal per line.

Text is readable and makes useful diffs.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

__all__ = ["keep_inputs", "kept_inputs"]

FOLDER = Path(__file__).parent / "corpus"

# All inputs are replayed in every test run and are part of every clone.
INPUTS_MAX = 150
BYTES_MAX = 40_000


def kept_inputs(target: str) -> list[bytes]:
    """Stored inputs of a target; empty for a new one."""
    path = _path(target)
    if not path.exists():
        return []
    return [ast.literal_eval(line) for line in path.read_text(encoding="ascii").splitlines()]


def keep_inputs(target: str, inputs: Iterable[bytes]) -> int:
    """Replace the stored inputs, shortest first, up to the size limit. Returns their number."""
    lines: list[str] = []
    room = BYTES_MAX
    for data in sorted(set(inputs), key=lambda each: (len(each), each))[:INPUTS_MAX]:
        line = f"{data!r}\n"
        room -= len(line)
        if room < 0:
            break
        lines.append(line)
    _path(target).write_text("".join(lines), encoding="ascii")
    return len(lines)


def _path(target: str) -> Path:
    return FOLDER / f"{target}.txt"
