"""A topic that is new here, and may have channels elsewhere: no message shall pass them by."""

from collections.abc import Callable

import pytest
from tests.broker.fakes import Host

from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS

either_end = pytest.mark.parametrize("end", [Host.restart, Host.crash], ids=["stop", "crash"])
every_topic = pytest.mark.parametrize("name", ["t", "t#ephemeral"])


def new_topic(host: Host, name: str = "t") -> Topic:
    topic = host.broker.topic(name)
    topic.await_channels()
    return topic


def test_only_a_topic_that_nobody_knew_of_is_news(host: Host) -> None:
    topic = host.broker.topic("t")
    host.publish("t", "a")
    host.broker.topic("t")
    assert [topic] == host.engine.topics_created

    host.crash()
    host.broker.topic("t")

    assert [] == host.engine.topics_created


@every_topic
def test_what_is_published_meanwhile_goes_to_every_channel(host: Host, name: str) -> None:
    topic = new_topic(host, name)
    early = host.consumer(name, "early", rdy=10)
    host.publish(name, "a")
    host.publish(name, "b")
    late = host.consumer(name, "late", rdy=10)
    held = early.take(), late.take(), topic.depth
    topic.start()
    host.pump()
    host.publish(name, "c")

    assert ([], [], 2) == held
    assert ["a", "b", "c"] == early.take()
    assert ["a", "b", "c"] == late.take()
    assert 0 == topic.depth


@every_topic
@pytest.mark.parametrize("channel", ["ch", "ch#ephemeral"])
def test_what_a_channel_is_emptied_of_meanwhile_does_not_come(
    host: Host, name: str, channel: str
) -> None:
    topic = new_topic(host, name)
    emptied = host.consumer(name, channel, rdy=10)
    other = host.consumer(name, "other", rdy=10)
    host.publish(name, "a")
    host.publish(name, "b", defer_ns=SECOND_NS)
    emptied.channel.empty(topic.owed_seq)
    host.publish(name, "c")
    topic.start()
    host.pump()
    host.pass_time(SECOND_NS)

    assert ["c"] == emptied.take()
    assert ["a", "c", "b"] == other.take()


def test_what_is_deferred_meanwhile_keeps_its_time(host: Host) -> None:
    topic = new_topic(host)
    consumer = host.consumer(rdy=10)
    host.publish("t", "late", defer_ns=2 * SECOND_NS)
    host.publish("t", "soon")
    host.pass_time(SECOND_NS)
    topic.start()
    host.pump()
    assert ["soon"] == consumer.take()

    host.pass_time(SECOND_NS)

    assert ["late"] == consumer.take()


def test_without_a_channel_messages_wait_for_the_first_as_ever(host: Host) -> None:
    topic = new_topic(host)
    host.publish("t", "a")
    topic.start()
    assert 1 == topic.depth

    assert ["a"] == host.consumer(rdy=10).take()


def test_a_pause_outlasts_the_wait_and_a_wait_the_pause(host: Host) -> None:
    topic = new_topic(host)
    consumer = host.consumer(rdy=10)
    host.publish("t", "a")
    topic.pause(True)
    topic.pause(False)
    host.pump()
    while_waiting = consumer.take()
    topic.pause(True)
    topic.start()
    host.pump()
    while_paused = consumer.take()
    topic.pause(False)
    host.pump()

    assert ([], []) == (while_waiting, while_paused)
    assert ["a"] == consumer.take()


def test_what_is_emptied_meanwhile_is_gone(host: Host) -> None:
    topic = new_topic(host)
    consumer = host.consumer(rdy=10)
    host.publish("t", "a")
    topic.empty()
    host.publish("t", "b")
    topic.start()
    host.pump()

    assert ["b"] == consumer.take()


@every_topic
def test_a_topic_that_is_deleted_meanwhile_stays_deleted(host: Host, name: str) -> None:
    topic = new_topic(host, name)
    consumer = host.consumer(name, rdy=10)
    host.publish(name, "a")
    host.broker.delete_topic(name)
    topic.start()
    host.pump()
    again = host.broker.topic(name)

    assert [] == consumer.take()
    assert consumer.gone
    assert (0, {}) == (again.depth, again.channels)


@either_end
@pytest.mark.parametrize("channels", [[], ["one"], ["one", "other"]], ids=len)
def test_an_end_meanwhile_loses_nothing(
    host: Host, channels: list[str], end: Callable[[Host], None]
) -> None:
    new_topic(host)
    host.publish("t", "a")
    for name in channels:
        host.channel("t", name)
    host.publish("t", "b")
    end(host)
    assert not host.broker.topics["t"].paused

    for name in channels or ["first"]:
        assert ["a", "b"] == host.consumer("t", name, rdy=10).take()


@either_end
def test_what_was_waited_for_is_over_after_a_start(host: Host, end: Callable[[Host], None]) -> None:
    new_topic(host)
    host.publish("t", "a")
    end(host)
    consumer = host.consumer(rdy=10)
    host.publish("t", "b")

    assert ["a", "b"] == consumer.take()
