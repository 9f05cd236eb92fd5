import pytest

from penstock.client.backoff import Backoff, BackoffState
from penstock.client.config import ClientConfig


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
