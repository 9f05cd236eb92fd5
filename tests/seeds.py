"""The seed of a test run, from which every randomised test derives its own random numbers.

Each run draws a fresh seed and prints it in its first lines and with every failure.
`PENSTOCK_SEED=N make test` repeats a run with the same random choices.
"""

import os
import secrets
from random import Random

__all__ = ["fresh_random", "run_seed"]

VARIABLE = "PENSTOCK_SEED"

# Set when the first process of a run imports this module; its workers inherit the environment.
os.environ[VARIABLE] = os.environ.get(VARIABLE) or str(secrets.randbits(32))


def run_seed() -> int:
    """The seed of this run."""
    return int(os.environ[VARIABLE])


def fresh_random(test: str) -> Random:
    """A random generator for the named test; prints how to repeat its choices."""
    print(f"{VARIABLE}={run_seed()} repeats the random choices of this run")
    return Random(f"{run_seed()} {test}")
