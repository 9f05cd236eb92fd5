"""Near consumers first, on a node that is told where it is."""

import pytest
from tests.broker.fakes import Consumer, Host

from penstock.broker.channel import TURN_FRAMES
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import Locality, Location, locality

HERE = Location("z1", "r1")
SAME_ZONE = Location("z1", "r1")
SAME_REGION = Location("z2", "r1")
ELSEWHERE = Location("z3", "r3")


@pytest.fixture
def host() -> Host:
    return Host(BrokerSettings(location=HERE))


def publish(host: Host, count: int) -> None:
    host.publish("t", *(f"m{number}" for number in range(count)))


def counts(*consumers: Consumer) -> list[int]:
    """How many messages each has been sent."""
    return [consumer.subscriber.message_count for consumer in consumers]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (HERE, SAME_ZONE, Locality.ZONE),
        (HERE, SAME_REGION, Locality.REGION),
        (HERE, ELSEWHERE, Locality.GLOBAL),
        (HERE, Location(), Locality.GLOBAL),
        (HERE, Location(zone="z1"), Locality.ZONE),
        (HERE, Location(region="r1"), Locality.REGION),
        (Location(zone="z1"), SAME_REGION, Locality.GLOBAL),
        (Location(region="r1"), SAME_ZONE, Locality.REGION),
        (Location(), Location(), Locality.GLOBAL),
        (None, Location(), Locality.GLOBAL),
        (None, SAME_ZONE, Locality.GLOBAL),
    ],
)
def test_names_that_are_known_and_equal_make_a_consumer_near(
    ours: Location | None, theirs: Location, expected: Locality
) -> None:
    assert expected is locality(ours, theirs)


def test_the_nearest_gets_everything_while_it_can_take_more(host: Host) -> None:
    far = host.consumer(rdy=2000, location=ELSEWHERE)
    middle = host.consumer(rdy=2000, location=SAME_REGION)
    near = host.consumer(rdy=2000, location=SAME_ZONE)
    publish(host, 4 * TURN_FRAMES)

    assert [4 * TURN_FRAMES, 0, 0] == counts(near, middle, far)


def test_what_the_nearest_cannot_take_goes_to_the_next(host: Host) -> None:
    far = host.consumer(rdy=5, location=ELSEWHERE)
    middle = host.consumer(rdy=3, location=SAME_REGION)
    near = host.consumer(rdy=2, location=SAME_ZONE)
    publish(host, 12)

    assert [2, 3, 5] == counts(near, middle, far)
    assert 2 == host.channel().depth


def test_far_consumers_get_what_there_is_when_no_near_one_can_take_it(host: Host) -> None:
    near = host.consumer(rdy=1, location=SAME_ZONE)
    blocked = host.consumer(rdy=10, location=SAME_ZONE)
    blocked.subscriber.blocked = True
    far = host.consumer(rdy=10, location=ELSEWHERE)
    publish(host, 8)

    assert [1, 0, 7] == counts(near, blocked, far)


def test_a_near_consumer_that_has_room_again_comes_first_again(host: Host) -> None:
    near = host.consumer(rdy=1, location=SAME_ZONE)
    far = host.consumer(rdy=3, location=ELSEWHERE)
    for body in "abcd":
        host.publish("t", body)
    near.fin("a")
    host.publish("t", "e")

    assert (["a", "e"], ["b", "c", "d"]) == (near.bodies, far.bodies)


def test_those_equally_near_take_turns(host: Host) -> None:
    others = [host.consumer(rdy=2000, location=SAME_REGION) for _ in range(2)]
    near = [host.consumer(rdy=2000, location=SAME_ZONE) for _ in range(3)]
    for number in range(9):
        host.publish("t", f"m{number}")

    assert [3, 3, 3, 0, 0] == counts(*near, *others)
    assert ["m0", "m3", "m6"] == near[0].bodies


def test_what_comes_back_goes_to_the_nearest_too(host: Host) -> None:
    far = host.consumer(rdy=1, location=ELSEWHERE)
    host.publish("t", "a")
    near = host.consumer(rdy=1, location=SAME_ZONE)
    far.req("a")

    assert (["a"], ["a"]) == (far.bodies, near.bodies)


def test_a_node_that_is_not_told_to_prefer_shares_out_by_turns() -> None:
    host = Host()
    far = host.consumer(rdy=2000, location=ELSEWHERE)
    near = host.consumer(rdy=2000, location=SAME_ZONE)
    publish(host, 2 * TURN_FRAMES)

    assert [TURN_FRAMES, TURN_FRAMES] == counts(far, near)


def test_deliveries_are_counted_by_how_near_they_went(host: Host) -> None:
    near = host.consumer(rdy=2, location=SAME_ZONE)
    host.consumer(rdy=3, location=SAME_REGION)
    host.consumer(rdy=4, location=ELSEWHERE)
    publish(host, 9)
    near.req("m0")
    near.leave()

    channel = host.channel()
    assert [3, 3, 4] == channel.delivered_counts
    assert 10 == channel.delivered_count


def test_without_preference_everything_is_counted_as_gone_anywhere() -> None:
    host = Host(BrokerSettings(mem_queue_size=1))
    publish(host, 5)
    host.consumer(rdy=10, location=SAME_ZONE)

    assert [0, 0, 5] == host.channel().delivered_counts
