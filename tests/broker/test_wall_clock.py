"""The time of day may be set while messages wait. Deferred ones follow it, for their due time is a
time of day; those in flight do not, for a timeout is a duration."""

import pytest
from tests.broker.fakes import MSG_TIMEOUT_NS, Host

from penstock.common.clock import MILLISECOND_NS, SECOND_NS

HOUR_NS = 3600 * SECOND_NS

# How late a timer may be.
LATE_NS = 10 * MILLISECOND_NS


def set_clock(host: Host, step_ns: int) -> None:
    """Steps the wall clock. The daemon looks at it every few seconds, as here."""
    host.clock.set_wall(host.clock.wall_ns() + step_ns)
    host.advance()


def defer(host: Host, duration_ns: int, way: str) -> None:
    """Lets the message "a" wait, by one of the two ways there are."""
    if way == "DPUB":
        host.publish("t", "a", defer_ns=duration_ns)
        return
    consumer = host.consumer(rdy=1)
    host.publish("t", "a")
    consumer.req("a", duration_ns)
    consumer.leave()


both_ways = pytest.mark.parametrize("way", ["DPUB", "REQ"])


@both_ways
def test_set_forward_it_makes_deferred_messages_due_earlier(host: Host, way: str) -> None:
    defer(host, 2 * HOUR_NS, way)
    consumer = host.consumer(rdy=1)
    set_clock(host, HOUR_NS)
    host.pass_time(HOUR_NS - 1)
    assert [] == consumer.take()

    host.pass_time(1)
    assert ["a"] == consumer.take()


@both_ways
def test_set_beyond_the_due_time_it_makes_them_due_at_once(host: Host, way: str) -> None:
    defer(host, HOUR_NS, way)
    consumer = host.consumer(rdy=1)
    set_clock(host, 2 * HOUR_NS)

    assert ["a"] == consumer.take()


@both_ways
def test_set_back_it_makes_them_due_later(host: Host, way: str) -> None:
    defer(host, HOUR_NS, way)
    consumer = host.consumer(rdy=1)
    set_clock(host, -HOUR_NS)
    host.pass_time(2 * HOUR_NS - 1)
    assert [] == consumer.take()

    host.pass_time(1)
    assert ["a"] == consumer.take()


def test_set_forward_and_back_again_it_changes_nothing(host: Host) -> None:
    defer(host, 2 * HOUR_NS, "DPUB")
    consumer = host.consumer(rdy=1)
    set_clock(host, HOUR_NS)
    set_clock(host, -HOUR_NS)
    host.pass_time(2 * HOUR_NS - 1)
    assert [] == consumer.take()

    host.pass_time(1)
    assert ["a"] == consumer.take()


@pytest.mark.parametrize("step_ns", [-HOUR_NS, HOUR_NS, -SECOND_NS, SECOND_NS])
def test_what_is_in_flight_does_not_care(host: Host, step_ns: int) -> None:
    consumer = host.consumer(rdy=2)
    host.publish("t", *"ab")
    consumer.touch("b")
    set_clock(host, step_ns)
    host.pass_time(MSG_TIMEOUT_NS - 1)
    assert 0 == consumer.channel.timeout_count

    host.pass_time(1 + LATE_NS)
    assert 2 == consumer.channel.timeout_count


def test_new_deferrals_are_measured_on_the_clock_as_it_is_now(host: Host) -> None:
    consumer = host.consumer(rdy=1)
    set_clock(host, HOUR_NS)
    host.publish("t", "a", defer_ns=SECOND_NS)
    host.pass_time(SECOND_NS - 1)
    assert [] == consumer.take()

    host.pass_time(1)
    assert ["a"] == consumer.take()


@pytest.mark.parametrize("slew_ns", [-4 * MILLISECOND_NS, 4 * MILLISECOND_NS])
def test_slewed_a_little_it_delays_a_message_a_little_and_keeps_nobody_busy(
    host: Host, slew_ns: int
) -> None:
    consumer = host.consumer(rdy=1)
    host.publish("t", "a", defer_ns=SECOND_NS)
    set_clock(host, slew_ns)
    host.pass_time(SECOND_NS - slew_ns + LATE_NS)

    assert ["a"] == consumer.take()
    assert len(host.engine.advances_asked) < 10


def test_slewed_for_hours_it_is_followed(host: Host) -> None:
    """Each step is small; what they add up to is not."""
    consumer = host.consumer(rdy=1)
    host.publish("t", "a", defer_ns=HOUR_NS)
    for _ in range(1000):
        host.pass_time(SECOND_NS)
        set_clock(host, MILLISECOND_NS)
    host.pass_time(HOUR_NS - 1001 * SECOND_NS - LATE_NS)
    assert [] == consumer.take()

    host.pass_time(2 * LATE_NS)
    assert ["a"] == consumer.take()


def test_set_back_over_a_restart_it_lets_them_wait_for_their_time_of_day(host: Host) -> None:
    defer(host, HOUR_NS, "DPUB")
    host.clock.set_wall(host.clock.wall_ns() - HOUR_NS)
    host.restart()
    consumer = host.consumer(rdy=1)
    host.pass_time(2 * HOUR_NS - 1)
    assert [] == consumer.take()

    host.pass_time(1)
    assert ["a"] == consumer.take()
