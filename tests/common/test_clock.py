import time

from penstock.common.clock import SystemClock


def test_monotonic_time_does_not_go_backwards() -> None:
    clock = SystemClock()
    readings = [clock.now_ns() for _ in range(1000)]

    assert sorted(readings) == readings


def test_the_wall_clock_is_the_system_time() -> None:
    before_ns = time.time_ns()
    wall_ns = SystemClock().wall_ns()
    after_ns = time.time_ns()

    assert before_ns <= wall_ns <= after_ns
