import pytest
from tests.broker.fakes import Recorder

from penstock.broker.subscriber import Subscriber
from penstock.common.clock import SECOND_NS


def subscriber_with(rdy: int, in_flight: int, *, blocked: bool = False) -> Subscriber:
    subscriber = Subscriber(Recorder(), 60 * SECOND_NS)
    subscriber.rdy = rdy
    subscriber.blocked = blocked
    for number in range(in_flight):
        subscriber.in_flight.add_timed(b"%016x" % number, b"", 0, 60 * SECOND_NS)
    return subscriber


@pytest.mark.parametrize(
    ("rdy", "in_flight", "blocked", "expected"),
    [
        (0, 0, False, 0),
        (5, 0, False, 5),
        (5, 2, False, 3),
        (5, 5, False, 0),
        (2, 5, False, -3),
        (5, 2, True, 0),
    ],
)
def test_rdy_limits_the_messages_in_flight(
    rdy: int, in_flight: int, blocked: bool, expected: int
) -> None:
    assert expected == subscriber_with(rdy, in_flight, blocked=blocked).capacity()


def test_a_new_subscriber_gets_nothing_before_it_says_rdy() -> None:
    assert 0 == Subscriber(Recorder(), 60 * SECOND_NS).capacity()
