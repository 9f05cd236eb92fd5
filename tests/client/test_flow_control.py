import pytest

from penstock.client.config import ClientConfig
from penstock.client.flow_control import Backoff, BackoffState, RdyAllocation, allocate_rdy

CONFIG = ClientConfig(low_rdy_idle_timeout=10.0, low_rdy_timeout=30.0)


def apply(shares: list[RdyAllocation], total: int, now: float) -> list[int]:
    """Shares out, and does what it says."""
    parts = allocate_rdy(shares, CONFIG, total, now)
    for share, part in zip(shares, parts, strict=True):
        if share.rdy != part:
            share.rdy, share.changed_at = part, now
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
def test_all_of_it_is_shared_out(total: int, connections: int, expected: list[int]) -> None:
    shares = [RdyAllocation(0.0, 2500) for _ in range(connections)]

    assert expected == allocate_rdy(shares, CONFIG, total, 0.0)


def test_nobody_gets_more_than_nsqd_allows() -> None:
    assert [10, 50] == allocate_rdy(
        [RdyAllocation(0.0, 10), RdyAllocation(0.0, 2500)], CONFIG, 100, 0.0
    )


def test_who_brings_nothing_gives_its_place_to_who_waited_longest() -> None:
    shares = [RdyAllocation(0.0, 2500) for _ in range(3)]

    assert [1, 0, 0] == apply(shares, 1, 0.0)
    assert [1, 0, 0] == apply(shares, 1, 9.0)
    assert [0, 1, 0] == apply(shares, 1, 10.0)
    assert [0, 0, 1] == apply(shares, 1, 20.0)
    assert [1, 0, 0] == apply(shares, 1, 30.0)


def test_who_brings_something_stays_but_not_for_ever() -> None:
    shares = [RdyAllocation(0.0, 2500) for _ in range(2)]
    apply(shares, 1, 0.0)

    for now in (9.0, 18.0, 27.0):
        shares[0].delivered_at = now
        assert [1, 0] == apply(shares, 1, now)
    assert [0, 1] == apply(shares, 1, 30.0)


def test_it_holds_longer_after_each_failure_and_shorter_after_each_success() -> None:
    backoff = Backoff(ClientConfig(backoff_multiplier=0.5))
    held = []
    for succeeded in (False, False, False, True, True, True):
        assert backoff.succeeded() if succeeded else backoff.failed()
        if backoff.flow is BackoffState.NONE:
            held.append(backoff.hold_seconds)
            backoff.held()

    assert [1.0, 2.0, 4.0, 2.0, 1.0] == held
    assert BackoffState.ALL is backoff.flow


def test_after_holding_it_tries_one() -> None:
    backoff = Backoff(ClientConfig())
    backoff.failed()
    backoff.held()

    assert BackoffState.ONE is backoff.flow


def test_what_is_handled_while_it_holds_does_not_count() -> None:
    backoff = Backoff(ClientConfig())
    backoff.failed()

    assert not backoff.failed()
    assert not backoff.succeeded()
    assert (BackoffState.NONE, 2.0) == (backoff.flow, backoff.hold_seconds)


def test_success_changes_nothing_when_all_is_well() -> None:
    backoff = Backoff(ClientConfig())

    assert not backoff.succeeded()
    assert BackoffState.ALL is backoff.flow


def test_it_holds_no_longer_than_it_may() -> None:
    backoff = Backoff(ClientConfig(max_backoff_duration=5.0))
    held = []
    for _ in range(6):
        backoff.failed()
        held.append(backoff.hold_seconds)
        backoff.held()

    assert [2.0, 4.0, 5.0, 5.0, 5.0, 5.0] == held
    for _ in range(3):  # and is over it as soon
        assert backoff.succeeded()
        backoff.held() if backoff.flow is BackoffState.NONE else None
    assert BackoffState.ALL is backoff.flow


def test_jitter_is_anywhere_below() -> None:
    config = ClientConfig(backoff_strategy="full_jitter")
    backoff = Backoff(config, rand=lambda: 0.25)

    backoff.failed()

    assert backoff.hold_seconds == pytest.approx(0.5)


def test_it_can_be_switched_off() -> None:
    backoff = Backoff(ClientConfig(max_backoff_duration=0.0))

    assert not backoff.failed()
    assert BackoffState.ALL is backoff.flow
