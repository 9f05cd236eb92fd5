"""Runs stored inputs and seeds: fast, deterministic, without atheris."""

import time
import traceback
from dataclasses import dataclass

from fuzz.corpus import kept_inputs
from fuzz.targets import Target

__all__ = ["Replay", "failure_of", "replay"]


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of a replay."""

    inputs: int
    seconds: float
    failures: list[str]


def replay(target: Target) -> Replay:
    """Run a target with its seeds and stored inputs."""
    began = time.perf_counter()
    inputs = list(dict.fromkeys([*target.seeds, *kept_inputs(target.name)]))
    failures = [failure for data in inputs if (failure := failure_of(target, data))]
    return Replay(len(inputs), time.perf_counter() - began, failures)


def failure_of(target: Target, data: bytes) -> str:
    """Traceback of a failing input; empty if it does not fail."""
    try:
        target.check(data)
    except Exception:  # noqa: BLE001 (any exception is a failure)
        return f"{target.name}: {data!r}\n{traceback.format_exc()}"
    return ""
