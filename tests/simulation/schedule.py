"""The schedule of a simulation, generated from a seed: a setup and a list of steps.

A step names no connection and no message, because these depend on earlier steps. It has numbers,
which select from the connections and messages that exist when it runs. So any step can be removed,
which allows a failing schedule to be shortened.
"""

from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

from penstock.common.clock import SECOND_NS

__all__ = ["VERBS", "Schedule", "Setup", "Step", "schedule_of"]


class Step(NamedTuple):
    """A verb, and the numbers that select its objects."""

    verb: str
    a: int
    b: int
    c: int
    ends_turn: bool = True
    """Whether the loop runs before the next step; otherwise both are in the same turn."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of the node, for all restarts."""

    mem_queue_size: int
    requeue_on_disconnect: bool
    sync_every: int
    max_bytes_per_file: int
    disk_is_slow: bool
    node_id: int
    retention_time_ns: int | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that determines a run."""

    seed: int
    setup: Setup
    steps: tuple[Step, ...]


# Relative frequency of each step.
VERBS: dict[str, int] = {
    "publish": 180,
    "publish_bad": 6,
    "subscribe": 62,
    "ready": 60,
    "fin": 170,
    "req": 70,
    "touch": 28,
    "close": 6,
    "leave": 24,
    "stop_reading": 12,
    "resume_reading": 20,
    "ignore_heartbeats": 6,
    "pass_time": 110,
    "set_wall_clock": 10,
    "pause_topic": 12,
    "unpause_topic": 14,
    "pause_channel": 12,
    "unpause_channel": 14,
    "empty_topic": 8,
    "empty_channel": 8,
    "delete_topic": 5,
    "delete_channel": 8,
    "create_channel": 8,
    "seek": 14,
    "commit": 14,
    "consume": 12,
    "cancel": 12,
    "requeue_now": 12,
    "retain": 6,
    "break_disk": 20,
    "heal_disk": 40,
    "sync": 20,
    "restart": 7,
    "kill": 11,
    "lose_power": 7,
    "crash_soon": 10,
}

_WORDS = list(VERBS)
_WEIGHTS = list(accumulate(VERBS.values()))
_TOTAL = _WEIGHTS[-1]
_PICK_MAX = 1 << 16


def schedule_of(seed: int) -> Schedule:
    """The schedule of a seed, the same on every machine."""
    random = Random(seed)
    setup = Setup(
        mem_queue_size=random.choice((0, 1, 3, 100)),
        requeue_on_disconnect=random.random() < 0.7,
        sync_every=random.choice((1, 1, 3, 2500)),
        max_bytes_per_file=random.choice((150, 400, 100_000)),
        disk_is_slow=random.random() < 0.3,
        node_id=random.choice((0, 7, 900)),
        retention_time_ns=random.choice((None, None, 3600 * SECOND_NS)),
    )
    count = random.choice((10, 15, 20, 30, 40, 50, 70, 110, 150))
    words = random.choices(_WORDS, cum_weights=_WEIGHTS, k=count)
    # Most steps have their own turn; in some schedules, many steps share one.
    sharing = random.choice((0.0, 0.0, 0.1, 0.4))
    number = random.random
    steps = tuple(
        Step(
            word,
            int(number() * _PICK_MAX),
            int(number() * _PICK_MAX),
            int(number() * _PICK_MAX),
            number() >= sharing,
        )
        for word in words
    )
    return Schedule(seed, setup, steps)
