from pathlib import Path

import pytest
from bench.scenarios import SCENARIOS, Needs, row_titles
from bench.targets import Target, penstock, redis, trial


@pytest.mark.parametrize(
    ("target", "fitting"),
    [
        (penstock(), {Needs.ANY, Needs.NSQ, Needs.COMPLETE, Needs.COMPLETE_NSQ}),
        (trial(Path("reference.py")), {Needs.ANY, Needs.NSQ}),
        (redis("redis-server"), {Needs.ANY, Needs.COMPLETE}),
    ],
    ids=lambda value: value.name if isinstance(value, Target) else "",
)
def test_a_target_gets_the_scenarios_that_it_supports(target: Target, fitting: set[Needs]) -> None:
    expected = [one.name for one in SCENARIOS if one.needs in fitting]

    assert expected == [one.name for one in SCENARIOS if one.fits(target)]


def test_no_row_is_filled_by_two_scenarios() -> None:
    assert len(row_titles()) == sum(len(scenario.rows) for scenario in SCENARIOS)
