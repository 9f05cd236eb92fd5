"""The schedule of a simulated cluster, generated from a seed: a setup and a list of steps.

As in tests/simulation, a step has only numbers, which select from what exists when it runs. So any
step can be removed, which allows a failing schedule to be shortened.
"""

from dataclasses import dataclass
from itertools import accumulate
from random import Random

from tests.simulation.schedule import Step

__all__ = ["VERBS", "ClusterSchedule", "ClusterSetup", "schedule_of"]


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """Configuration of the members."""

    must_sync: bool
    min_in_sync: int
    max_bytes_per_file: int
    chunk_bytes: int
    """Maximum bytes of a file in one message."""
    queue_max: int
    """Messages to a follower that a connection takes before its buffer is full."""
    starts_in_sync: bool
    """Whether all members are in sync before the first step."""


@dataclass(frozen=True, slots=True)
class ClusterSchedule:
    """Everything that determines a run."""

    seed: int
    setup: ClusterSetup
    steps: tuple[Step, ...]


# Relative frequency of each step.
VERBS: dict[str, int] = {
    "publish": 160,
    "finish": 40,
    "create_channel": 14,
    "delete_channel": 3,
    "create_topic": 10,
    "delete_topic": 3,
    "trim": 12,
    "deliver": 240,
    "coordinate": 120,
    "lose_answer": 12,
    "time_out_write": 12,
    "run_tasks": 40,
    "sync": 60,
    "pass_time": 40,
    "settle": 22,
    "break_connection": 10,
    "cut": 8,
    "heal": 16,
    "cut_off_etcd": 6,
    "reconnect_etcd": 14,
    "expire": 8,
    "kill": 9,
    "lose_power": 7,
    "stop": 3,
    "start": 36,
    "crash_soon": 5,
    "break_disk": 4,
    "flip_bit": 4,
    "set_wall_clock": 4,
    "prefer_leader": 5,
    "replace_member": 2,
}

_WORDS = list(VERBS)
_WEIGHTS = list(accumulate(VERBS.values()))
_PICK_MAX = 1 << 16


def schedule_of(seed: int) -> ClusterSchedule:
    """The schedule of a seed, the same on every machine."""
    random = Random(seed)
    setup = ClusterSetup(
        must_sync=random.random() < 0.4,
        min_in_sync=random.choice((1, 2, 2)),
        max_bytes_per_file=random.choice((150, 400, 100_000)),
        chunk_bytes=random.choice((90, 250, 100_000)),
        queue_max=random.choice((3, 1000)),
        starts_in_sync=random.random() < 0.8,
    )
    count = random.choice((20, 30, 40, 60, 90, 140))
    words = random.choices(_WORDS, cum_weights=_WEIGHTS, k=count)
    number = random.randrange
    steps = tuple(
        Step(word, number(_PICK_MAX), number(_PICK_MAX), number(_PICK_MAX)) for word in words
    )
    return ClusterSchedule(seed, setup, steps)
