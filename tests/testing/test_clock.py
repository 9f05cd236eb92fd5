import pytest

from penstock.common.clock import SECOND_NS, Clock
from penstock.testing import ManualClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock(now_ns=5, wall_ns=7)

    assert [5, 5] == [clock.now_ns(), clock.now_ns()]
    assert [7, 7] == [clock.wall_ns(), clock.wall_ns()]


def test_time_passes_on_both_clocks() -> None:
    clock = ManualClock(now_ns=5, wall_ns=7)

    clock.advance(SECOND_NS)

    assert (5 + SECOND_NS, 7 + SECOND_NS) == (clock.now_ns(), clock.wall_ns())


def test_steady_time_cannot_be_turned_back() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)


def test_the_time_of_day_can_step_while_steady_time_does_not() -> None:
    clock = ManualClock(now_ns=5, wall_ns=7)

    clock.set_wall(3)

    assert (5, 3) == (clock.now_ns(), clock.wall_ns())
