"""The simulation finds every deliberate bug."""

import pytest
from tests.simulation.campaign import first_failure
from tests.simulation.mutations import MUTATIONS, SEEDS_MAX, Mutation, seeds_until_found


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_simulation_finds_a_deliberate_bug(mutation: Mutation) -> None:
    assert seeds_until_found(mutation) is not None


def test_schedules_without_a_bug_have_no_violation() -> None:
    """Otherwise the other tests would prove nothing."""
    assert first_failure(range(0, SEEDS_MAX, 10)) is None
