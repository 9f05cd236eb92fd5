"""Would the simulation find a bug? It finds every one that was made on purpose."""

import pytest
from tests.simulation.campaign import first_failure
from tests.simulation.mutations import MUTATIONS, SEEDS_MAX, Mutation, seeds_until_found


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_is_found(mutation: Mutation) -> None:
    assert seeds_until_found(mutation) is not None


def test_without_one_nothing_is_found() -> None:
    """Or the others would mean nothing. What they need is run by the other tests, too."""
    assert first_failure(range(0, SEEDS_MAX, 10)) is None
