import pytest

from penstock.client.config import ClientConfig
from penstock.client.flow_control import Backoff, BackoffState, RdyAllocation, allocate_rdy

CONFIG = ClientConfig(low_rdy_idle_timeout=10.0, low_rdy_timeout=30.0)


def apply(allocations: list[RdyAllocation], total: int, now: float) -> list[int]:
    """Allocate, and store the result."""
    parts = allocate_rdy(allocations, CONFIG, total, now)
    for allocation, part in zip(allocations, parts, strict=True):
        if allocation.rdy != part:
            allocation.rdy, allocation.changed_at = part, now
    return parts


@pytest.mark.parametrize(
    ("total", "connections", "expected"),
    [
        (200, 1, [200]),
        (200, 2, [100, 100]),
        (8, 3, [3, 3, 2]),
        (3, 3, [1, 1, 1]),
        (2, 3, [1, 1, 0]),
        (0, 2, [0, 0]),
        (5, 0, []),
    ],
)
def test_the_whole_rdy_count_is_allocated(
    total: int, connections: int, expected: list[int]
) -> None:
    allocations = [RdyAllocation(0.0, 2500) for _ in range(connections)]

    assert expected == allocate_rdy(allocations, CONFIG, total, 0.0)


def test_no_connection_gets_more_than_nsqds_limit() -> None:
    assert [10, 50] == allocate_rdy(
        [RdyAllocation(0.0, 10), RdyAllocation(0.0, 2500)], CONFIG, 100, 0.0
    )


def test_an_idle_connection_is_replaced_by_the_one_that_waited_longest() -> None:
    allocations = [RdyAllocation(0.0, 2500) for _ in range(3)]

    assert [1, 0, 0] == apply(allocations, 1, 0.0)
    assert [1, 0, 0] == apply(allocations, 1, 9.0)
    assert [0, 1, 0] == apply(allocations, 1, 10.0)
    assert [0, 0, 1] == apply(allocations, 1, 20.0)
    assert [1, 0, 0] == apply(allocations, 1, 30.0)


def test_a_busy_connection_keeps_its_rdy_until_low_rdy_timeout() -> None:
    allocations = [RdyAllocation(0.0, 2500) for _ in range(2)]
    apply(allocations, 1, 0.0)

    for now in (9.0, 18.0, 27.0):
        allocations[0].delivered_at = now
        assert [1, 0] == apply(allocations, 1, now)
    assert [0, 1] == apply(allocations, 1, 30.0)


def test_each_failure_lengthens_the_pause_and_each_success_shortens_it() -> None:
    backoff = Backoff(ClientConfig(backoff_multiplier=0.5))
    pauses = []
    for succeeded in (False, False, False, True, True, True):
        assert backoff.record_success() if succeeded else backoff.record_failure()
        if backoff.state is BackoffState.PAUSED:
            pauses.append(backoff.pause_seconds)
            backoff.start_probing()

    assert [1.0, 2.0, 4.0, 2.0, 1.0] == pauses
    assert BackoffState.RUNNING is backoff.state


def test_after_a_pause_it_probes() -> None:
    backoff = Backoff(ClientConfig())
    backoff.record_failure()
    backoff.start_probing()

    assert BackoffState.PROBING is backoff.state


def test_results_during_a_pause_do_not_count() -> None:
    backoff = Backoff(ClientConfig())
    backoff.record_failure()

    assert not backoff.record_failure()
    assert not backoff.record_success()
    assert (BackoffState.PAUSED, 2.0) == (backoff.state, backoff.pause_seconds)


def test_success_without_backoff_changes_nothing() -> None:
    backoff = Backoff(ClientConfig())

    assert not backoff.record_success()
    assert BackoffState.RUNNING is backoff.state


def test_a_pause_is_at_most_max_backoff_duration() -> None:
    backoff = Backoff(ClientConfig(max_backoff_duration=5.0))
    pauses = []
    for _ in range(6):
        backoff.record_failure()
        pauses.append(backoff.pause_seconds)
        backoff.start_probing()

    assert [2.0, 4.0, 5.0, 5.0, 5.0, 5.0] == pauses
    for _ in range(3):  # levels above the maximum are not counted
        assert backoff.record_success()
        backoff.start_probing() if backoff.state is BackoffState.PAUSED else None
    assert BackoffState.RUNNING is backoff.state


def test_full_jitter_scales_the_pause() -> None:
    config = ClientConfig(backoff_strategy="full_jitter")
    backoff = Backoff(config, rand=lambda: 0.25)

    backoff.record_failure()

    assert backoff.pause_seconds == pytest.approx(0.5)


def test_max_backoff_duration_0_disables_backoff() -> None:
    backoff = Backoff(ClientConfig(max_backoff_duration=0.0))

    assert not backoff.record_failure()
    assert BackoffState.RUNNING is backoff.state
