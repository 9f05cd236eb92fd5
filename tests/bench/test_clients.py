import pytest
from bench.clients import LOADS, measure


@pytest.mark.parametrize("load", LOADS)
def test_every_load_is_measured(load: str) -> None:
    rate, per_cpu_second = measure(load, "penstock", seconds=0.2, backlog=20_000)

    assert rate > 0
    assert per_cpu_second > 0
