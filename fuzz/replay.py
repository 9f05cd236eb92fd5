"""The kept inputs once more, and the seeds: fast, the same every time, without atheris."""

import time
import traceback
from dataclasses import dataclass

from fuzz.corpus import kept_inputs
from fuzz.targets import Target

__all__ = ["Replay", "failure_of", "replay"]


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of it."""

    inputs: int
    seconds: float
    failures: list[str]


def replay(target: Target) -> Replay:
    """Tries a target with everything that is kept for it."""
    began = time.perf_counter()
    inputs = list(dict.fromkeys([*target.seeds, *kept_inputs(target.name)]))
    failures = [failure for data in inputs if (failure := failure_of(target, data))]
    return Replay(len(inputs), time.perf_counter() - began, failures)


def failure_of(target: Target, data: bytes) -> str:
    """What an input shows to be wrong; empty if nothing."""
    try:
        target.check(data)
    except Exception:  # noqa: BLE001 (whatever it is, it is what was looked for)
        return f"{target.name}: {data!r}\n{traceback.format_exc()}"
    return ""
