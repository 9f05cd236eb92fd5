"""The parts of the bench that measure with a single nsqd, in small: do they run."""

import pytest
from click.testing import CliRunner

from bench import channels, history, hostile


@pytest.mark.parametrize("attack", hostile.ATTACKS)
def test_a_client_is_timed_during_an_attack(attack: str) -> None:
    effect = hostile.measure(hostile.ATTACKS[attack], 0.1)

    assert effect.publishes >= 1
    assert 0 < effect.p99_ms <= effect.longest_ms


def test_an_attack_may_be_chosen() -> None:
    run = CliRunner().invoke(hostile.main, ["--only=compressed publishes"])

    assert 0 == run.exit_code, run.output
    assert "compressed" in run.output
    assert "silent" not in run.output


def test_history_is_read_and_live_messages_are_timed() -> None:
    run = CliRunner().invoke(history.main, ["--messages=2000", "--seconds=0.1"])

    assert 0 == run.exit_code, run.output
    assert "MB per CPU-second" in run.output
    assert "p99" in run.output


def test_many_channels_are_created_and_survive_a_restart() -> None:
    figures = channels.measure(topics=3, idle_seconds=0.1)

    assert {"create, s", "stop, s", "start, s", "resident, MB"} <= figures.keys()
