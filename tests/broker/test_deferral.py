"""Deferred messages of a channel that is behind: they count as deferred, and come in time however
long the backlog is."""

from collections.abc import Callable

import pytest
from tests.broker.fakes import Host

from penstock.broker.settings import BrokerSettings
from penstock.common.clock import SECOND_NS


@pytest.fixture
def host() -> Host:
    """A channel of 20 messages, of which memory holds 3, and of 8 that are deferred."""
    host = Host(BrokerSettings(mem_queue_size=3))
    host.broker.topic("t").channel("c")
    publish(host)
    return host


def publish(host: Host) -> None:
    host.publish("t", *map(str, range(20)))
    for body in "abcdefgh":
        host.publish("t", body, defer_ns=SECOND_NS)


def counts(host: Host) -> tuple[int, int]:
    host.pump()
    return host.channel().depth, host.channel().deferred_count


def test_they_count_as_deferred_when_they_are_published(host: Host) -> None:
    assert (20, 8) == counts(host)


@pytest.mark.parametrize("end", [Host.restart, Host.crash])
def test_they_count_as_deferred_after_a_restart(host: Host, end: Callable[[Host], None]) -> None:
    end(host)

    assert (20, 8) == (host.channel().depth, host.channel().deferred_count)
    host.pass_time(SECOND_NS)
    assert (28, 0) == counts(host)


def test_those_that_came_due_before_a_restart_are_read_in_their_turn(host: Host) -> None:
    host.clock.advance(SECOND_NS)
    host.restart()

    assert (28, 0) == (host.channel().depth, host.channel().deferred_count)
    assert [*map(str, range(20)), *"abcdefgh"] == host.consumer(rdy=100).take()


def test_a_long_stretch_of_deferred_messages_is_skipped_in_steps(host: Host) -> None:
    for number in range(1000):
        host.publish("t", f"deferred {number} " + "x" * 1000, defer_ns=SECOND_NS)
        host.publish("t", f"{number}", defer_ns=SECOND_NS * (number % 2))
    consumer = host.consumer(rdy=3000)

    assert 520 == len(consumer.take())
    host.pass_time(SECOND_NS)
    assert 1508 == len(consumer.take())


def test_they_count_as_deferred_after_a_seek(host: Host) -> None:
    consumer = host.consumer(rdy=100)
    consumer.fin(*map(str, range(20)))
    consumer.rdy(0)
    assert (0, 8) == counts(host)

    host.channel().seek(host.broker.topics["t"].log.first_seq)
    assert (20, 8) == counts(host)


def test_they_count_as_deferred_once_a_topic_releases_them() -> None:
    host = Host(BrokerSettings(mem_queue_size=3))
    topic = host.broker.topic("t")
    publish(host)
    assert 28 == topic.depth

    topic.channel("c")
    assert (20, 8) == counts(host)
    topic.pause(True)
    publish(host)
    topic.pause(False)
    assert (40, 16) == counts(host)


def test_they_count_as_deferred_in_a_channel_that_begins_in_the_log(host: Host) -> None:
    topic = host.broker.topics["t"]
    topic.channel("late", topic.log.first_seq)
    host.pump()

    late = topic.channels["late"]
    assert (20, 8) == (late.depth, late.deferred_count)


def test_they_are_gone_when_the_channel_is_emptied(host: Host) -> None:
    host.channel().empty(host.broker.topics["t"].owed_seq)
    assert (0, 0) == counts(host)

    host.pass_time(2 * SECOND_NS)
    assert (0, 0) == counts(host)
    host.restart()
    assert (0, 0) == counts(host)


def test_they_are_not_counted_twice_when_a_channel_is_moved_by_commits_and_back(
    host: Host,
) -> None:
    channel = host.channel()
    channel.set_committing(True)
    channel.commit(host.broker.topics["t"].log.first_seq + 5)
    host.publish("t", "i", defer_ns=SECOND_NS)
    assert (24, 0) == counts(host)

    channel.set_committing(False)
    assert (15, 9) == counts(host)


def test_they_come_in_time_though_the_consumer_is_slow(host: Host) -> None:
    consumer = host.consumer(rdy=1)
    host.pass_time(SECOND_NS)
    for _ in range(16):
        consumer.fin(consumer.bodies[-1])

    taken = consumer.take()
    assert [*"abcdefgh"] == [body for body in taken if body.isalpha()]
    assert [*map(str, range(len(taken) - 8))] == [body for body in taken if body.isdigit()]


def test_each_message_comes_once(host: Host) -> None:
    consumer = host.consumer(rdy=1)
    host.pass_time(SECOND_NS // 2)
    while consumer.subscriber.in_flight:
        consumer.fin(consumer.bodies[-1])
    host.pass_time(SECOND_NS)
    while consumer.subscriber.in_flight:
        consumer.fin(consumer.bodies[-1])

    assert [*map(str, range(20)), *"abcdefgh"] == consumer.take()
    assert (0, 0) == counts(host)


def test_one_that_came_before_the_log_was_read_up_to_it_is_not_read_again(host: Host) -> None:
    consumer = host.consumer(rdy=1)
    host.pass_time(SECOND_NS)
    for _ in range(8):
        consumer.fin(consumer.bodies[-1])
    assert consumer.bodies[-1].isalpha() or consumer.bodies[-2].isalpha()
    host.crash()

    rest = host.consumer(rdy=100).take()
    assert sorted(rest) == sorted({*rest})
    assert {*map(str, range(20)), *"abcdefgh"} == {*rest, *consumer.bodies[:8]}
