"""The inputs worth keeping: for each target a file of text, with a Python bytes literal a line.

So that a person can read them, and a diff shows what came and went.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

__all__ = ["keep_inputs", "kept_inputs"]

FOLDER = Path(__file__).parent / "corpus"

# All of it is replayed in every run of the tests, and is in every clone.
INPUTS_MAX = 150
BYTES_MAX = 40_000


def kept_inputs(target: str) -> list[bytes]:
    """The inputs kept for a target; none if it is new."""
    path = _path(target)
    if not path.exists():
        return []
    return [ast.literal_eval(line) for line in path.read_text(encoding="ascii").splitlines()]


def keep_inputs(target: str, inputs: Iterable[bytes]) -> int:
    """Keeps these and no others, the shortest first and no more than there is room for. Returns how
    many those are."""
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
