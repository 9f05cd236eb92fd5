"""After a power loss the numbers go on further up. What was skipped is no message, and no depth."""

from random import Random

import pytest
from tests.broker.fakes import Host

from penstock.common.clock import SECOND_NS


@pytest.fixture
def host() -> Host:
    """One whose topic has synced "a" and "b", and holds "b" because it is paused."""
    host = Host()
    host.publish("t", "a")
    host.channel()
    host.broker.topics["t"].pause(True)
    host.publish("t", "b")
    lose_power(host)
    return host


def lose_power(host: Host) -> None:
    store = host.broker.topics["t"].store
    assert store is not None
    store.log.sync()
    store.cursors.sync()
    host.clock.advance(SECOND_NS)
    host.memory_files.lose_power(Random(0))
    host.start()


def test_a_topic_counts_the_messages_that_it_holds(host: Host) -> None:
    assert 1 == host.broker.topics["t"].depth


def test_a_channel_counts_the_messages_that_it_is_given(host: Host) -> None:
    host.broker.topics["t"].pause(False)
    channel = host.channel()

    assert (2, 1) == (channel.depth, channel.message_count)
    assert ["a", "b"] == host.consumer(rdy=10).take()


def test_a_channel_that_was_emptied_counts_only_what_comes_after(host: Host) -> None:
    topic = host.broker.topics["t"]
    host.channel().empty(topic.owed_seq)
    topic.pause(False)

    assert 1 == host.channel().depth
    assert ["b"] == host.consumer(rdy=10).take()


def test_a_channel_that_was_committed_counts_only_what_comes_after(host: Host) -> None:
    topic = host.broker.topics["t"]
    host.channel().commit(topic.log.first_seq + 1)
    topic.pause(False)

    assert 1 == host.channel().depth
    assert ["b"] == host.consumer(rdy=10).take()


def test_a_channel_that_is_deleted_before_it_was_pumped_is_left_alone() -> None:
    host = Host(pumps_by_itself=False)
    host.publish("t", "a")
    lose_power(host)
    host.consumer()
    host.broker.delete_channel(host.broker.topics["t"], "c")

    assert [] == host.broker.pump()


def test_what_a_stop_could_not_sync_is_synced_after_the_next_start() -> None:
    host = Host()
    host.publish("t", "a")
    host.channel()
    host.files.fail("sync", times=None)
    assert 1 == len(host.broker.close())
    host.files.heal()
    host._data_path.close()
    host.start()

    store = host.broker.topics["t"].store
    assert store is not None
    assert store.cursors.needs_sync
