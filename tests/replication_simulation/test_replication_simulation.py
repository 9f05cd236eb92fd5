"""New random schedules of three members have no violation, and deliberate bugs are found.

The seeds follow from the seed of the test run (tests/seeds.py). The message of a failure contains
the command that repeats it. `make simulate-replication` runs more schedules, and all bugs.
"""

import pytest
from tests.replication_simulation.campaign import campaign, trace_of
from tests.replication_simulation.mutations import seeds_until_found
from tests.replication_simulation.schedule import schedule_of
from tests.seeds import fresh_random

SCHEDULES = 200

# Bugs that a few schedules find. The others are left to `make simulate-replication`.
SAMPLE = [
    "leader ignores a follower in sync",
    "nothing is cut at a rejoin",
    "high watermark starts at the leader's end",
]


@pytest.mark.timeout(600)
def test_no_schedule_violates_a_guarantee() -> None:
    first = fresh_random("test_replicated_schedules").getrandbits(40)
    command = f"python -m tests.replication_simulation --seed {first} --seeds {SCHEDULES}"
    print(command)
    outcome = campaign(range(first, first + SCHEDULES))

    assert {} == outcome.failures, f"{command}, or --seed with one of these"
    assert SCHEDULES == outcome.runs
    for event in ("confirmed", "takeover", "member joins those in sync"):
        assert outcome.coverage[event] > 0, event


@pytest.mark.parametrize("name", SAMPLE)
def test_the_simulation_finds_a_deliberate_bug(name: str) -> None:
    assert seeds_until_found(name) is not None


def test_a_seed_always_gives_the_same_run() -> None:
    first, second = (trace_of(schedule_of(7)) for _ in range(2))

    assert first == second
