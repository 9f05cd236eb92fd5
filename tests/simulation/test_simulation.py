"""Ten thousand schedules without a violation, and nothing that they should have come by is missing.

Each part runs seeds of its own, so that they can be run side by side. One that fails is run again
with `python -m tests.simulation --seed N`, which makes it short and tells what happens.
"""

import pytest
from tests.simulation.campaign import campaign, shortened, trace_of
from tests.simulation.coverage import missing_from
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import run
from tests.simulation.schedule import schedule_of

# Together ten thousand. The first part is large enough to come by everything.
PARTS = [range(2_000), *(range(first, first + 500) for first in range(2_000, 10_000, 500))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", PARTS, ids=str)
def test_no_schedule_breaks_a_promise(seeds: range) -> None:
    outcome = campaign(seeds)

    assert {} == outcome.failures
    assert len(seeds) == outcome.runs
    if len(seeds) == 2_000:
        assert [] == missing_from(outcome.coverage)


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
