"""Many clients on one channel; CROWD=5000 has the size of the manual measurement."""

import os

import pytest
from bench.crowd import Result, main

CONSUMERS = int(os.environ.get("CROWD", "300"))


@pytest.mark.slow
def test_every_message_is_received_once(capsys: pytest.CaptureFixture[str]) -> None:
    publishers, rate = CONSUMERS // 25, CONSUMERS
    sizes = [f"--consumers={CONSUMERS}", f"--publishers={publishers}", f"--rate={rate}"]
    # Without a limit on the latency, which depends on the machine.
    exit_code = main([*sizes, "--seconds=2", "--p99-ms=1000000000"])
    printed = capsys.readouterr().out

    assert 0 == exit_code, printed
    assert f"published {2 * rate:,} at " in printed


def test_missing_messages_and_high_latency_are_reported() -> None:
    channel = {"depth": 0, "in_flight_count": 2, "requeue_count": 0, "timeout_count": 1}
    lost = Result(3, 5000.0, [1, 2], 0.5, 80.0, channel, 100.0)
    slow = Result(1, 5000.0, [200_000_000], 0.5, 80.0, dict.fromkeys(channel, 0), 100.0)

    assert ["in_flight_count is 2", "timeout_count is 1", "2 of 3 messages came"] == lost.problems()
    assert ["p99 is over 100 ms"] == slow.problems()
