"""A fresh sample of schedules without a violation; every state on the list is reached.

The seeds follow from the seed of the run (tests/seeds.py), so every run tests other schedules. The
message of a failure names the command that repeats it. `make simulate` runs as many as it is told.
"""

import pytest
from tests.seeds import fresh_random
from tests.simulation.campaign import campaign, shortened, trace_of
from tests.simulation.coverage import missing_from
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import run
from tests.simulation.schedule import schedule_of

PARTS = 4
SCHEDULES_PER_PART = 500

# The first schedules reach everything on the list after about 400.
COVERAGE_STEP = 100
COVERAGE_SCHEDULES_MAX = 4_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_violates_a_guarantee(part: int) -> None:
    first = fresh_random(f"test_no_schedule_violates_a_guarantee {part}").getrandbits(40)
    command = f"python -m tests.simulation --seed {first} --seeds {SCHEDULES_PER_PART}"
    print(command)
    outcome = campaign(range(first, first + SCHEDULES_PER_PART))

    assert {} == outcome.failures, f"{command}, or --seed with one of these"
    assert SCHEDULES_PER_PART == outcome.runs


@pytest.mark.timeout(600)
def test_schedules_reach_everything_on_the_list() -> None:
    """With the same seeds on every run, so that a rare state does not fail it by chance."""
    reached = campaign(range(0))
    while missing := missing_from(reached.coverage):
        assert reached.runs < COVERAGE_SCHEDULES_MAX, missing
        more = campaign(range(reached.runs, reached.runs + COVERAGE_STEP))
        reached.runs += more.runs
        reached.coverage.update(more.coverage)
        assert {} == more.failures


def test_a_seed_stands_for_one_run() -> None:
    first, second = (trace_of(schedule_of(7)) for _ in range(2))

    assert first == second


def test_a_failing_schedule_is_made_short() -> None:
    mutation = next(each for each in MUTATIONS if each.name == "a seek is off by one")
    with mutation.active():
        failing = next(
            schedule
            for schedule in map(schedule_of, range(100))
            if len(schedule.steps) > 20 and run(schedule).violation is not None
        )
        short = shortened(failing)
        assert run(short).violation is not None

    assert len(short.steps) <= 8
    assert "VIOLATION" not in trace_of(short)
