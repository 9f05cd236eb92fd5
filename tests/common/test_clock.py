import time

from penstock.common.clock import SystemClock


def test_steady_time_does_not_run_backwards() -> None:
    clock = SystemClock()
    readings = [clock.now_ns() for _ in range(1000)]

    assert sorted(readings) == readings


def test_the_time_of_day_is_the_systems() -> None:
    before_ns = time.time_ns()
    wall_ns = SystemClock().wall_ns()
    after_ns = time.time_ns()

    assert before_ns <= wall_ns <= after_ns
