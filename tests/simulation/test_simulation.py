"""New random schedules have no violation, and a fixed set of them reaches every required event.

The seeds follow from the seed of the test run (tests/seeds.py). The message of a failure contains
the command that repeats it. `make simulate` runs more schedules.
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

# The first 400 schedules or so reach all required events.
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
def test_schedules_reach_every_required_event() -> None:
    """The seeds are fixed, so that a rare event cannot fail the test by chance."""
    reached = campaign(range(0))
    while missing := missing_from(reached.coverage):
        assert reached.runs < COVERAGE_SCHEDULES_MAX, missing
        more = campaign(range(reached.runs, reached.runs + COVERAGE_STEP))
        reached.runs += more.runs
        reached.coverage.update(more.coverage)
        assert {} == more.failures


def test_a_seed_always_gives_the_same_run() -> None:
    first, second = (trace_of(schedule_of(7)) for _ in range(2))

    assert first == second


def test_a_failing_schedule_is_shortened() -> None:
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
