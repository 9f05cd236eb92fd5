import pytest
from tests.broker.fakes import MSG_TIMEOUT_NS, Host

from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS
from penstock.protocol import frames as wire
from penstock.storage import READ_BYTES, LogSettings


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def segment_count(topic: Topic) -> int:
    assert topic.store is not None
    return len(topic.store.log.segments)


class TestPublishing:
    def test_every_channel_gets_every_message(self, host: Host) -> None:
        consumers = [host.consumer(channel=name, rdy=10) for name in "cde"]
        host.publish("t", *"ab")

        assert [["a", "b"]] * 3 == [consumer.take() for consumer in consumers]

    def test_messages_have_ids_in_one_dense_sequence_and_the_time_of_publishing(self) -> None:
        host = Host(BrokerSettings(node_id=7))
        consumer = host.consumer(rdy=10)
        published_ns = host.clock.wall_ns()
        host.publish("t", *"ab")
        host.pass_time(SECOND_NS)
        host.publish("t", "c")

        numbers = wire.ids_to_ints(wire.message_ids(consumer.frames))
        assert [0, 1, 2] == [number - numbers[0] for number in numbers]
        assert 7 == numbers[0] >> 54
        assert [published_ns, published_ns, published_ns + SECOND_NS] == [
            wire.timestamp_ns(frame) for frame in consumer.frames
        ]

    def test_changed_node_id_applies_to_later_messages_of_all_topics(self) -> None:
        host = Host(BrokerSettings(node_id=7))
        consumers = {name: host.consumer(topic=name, rdy=10) for name in ("t", "u", "v#ephemeral")}
        host.publish("t", "a")
        host.broker.set_node_id(900)
        host.publish("t", "b")
        host.publish("u", "c")
        host.publish("v#ephemeral", "d")
        consumers["new"] = host.consumer(topic="new", rdy=10)
        host.publish("new", "e")

        assert 900 == host.broker.node_id
        assert {"t": [7, 900], "u": [900], "v#ephemeral": [900], "new": [900]} == {
            name: [number >> 54 for number in wire.ids_to_ints(wire.message_ids(consumer.frames))]
            for name, consumer in consumers.items()
        }
        consumers["t"].fin("a", "b")
        assert 0 == host.channel().depth

    def test_messages_and_their_bytes_are_counted(self, host: Host) -> None:
        host.publish("t", "a", "four")
        host.publish("t", "later", defer_ns=SECOND_NS)
        topic = host.broker.topics["t"]

        assert (3, 10) == (topic.message_count, topic.message_bytes)


class TestHolding:
    def test_the_first_channel_gets_what_waited_and_later_ones_only_what_comes(
        self, host: Host
    ) -> None:
        host.publish("t", *"ab")
        assert 2 == host.broker.topics["t"].depth

        first = host.consumer(channel="first", rdy=10)
        assert 0 == host.broker.topics["t"].depth
        second = host.consumer(channel="second", rdy=10)
        host.publish("t", "c")

        assert (["a", "b", "c"], ["c"]) == (first.take(), second.take())
        assert (3, 1) == (first.channel.message_count, second.channel.message_count)

    def test_what_is_beyond_a_memory_queue_counts_as_the_backends(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=3))
        host.publish("t", *"ab")
        topic = host.broker.topics["t"]
        assert (2, 0) == (topic.depth, topic.backend_depth)

        host.publish("t", *"cde")
        assert (5, 2) == (topic.depth, topic.backend_depth)

    @pytest.mark.parametrize("mem_queue_size", [0, 3, 10_000])
    def test_what_waited_comes_in_order_however_much_it_is(self, mem_queue_size: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        for body in numbered(20):
            host.publish("t", body)
        consumer = host.consumer(rdy=100)
        host.publish("t", "20")

        assert numbered(21) == consumer.take()

    def test_after_its_last_channel_was_deleted_a_topic_holds_what_comes(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"ab")
        host.broker.delete_channel(host.broker.topics["t"], "c")
        host.publish("t", "c")
        assert 1 == host.broker.topics["t"].depth

        assert ["c"] == host.consumer(rdy=10).take()
        assert ["a"] == consumer.take()


class TestPausing:
    @pytest.mark.parametrize("mem_queue_size", [0, 1, 10_000])
    def test_keeps_messages_in_the_topic_while_channels_go_on(self, mem_queue_size: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumer = host.consumer()
        host.publish("t", *"ab")
        topic = host.broker.topics["t"]
        topic.pause(True)
        host.publish("t", *"cd")
        assert (2, 2) == (topic.depth, consumer.channel.depth)

        consumer.rdy(10)
        assert ["a", "b"] == consumer.take()
        assert (2, 0) == (topic.depth, consumer.channel.depth)

    @pytest.mark.parametrize("mem_queue_size", [0, 1, 10_000])
    def test_ends_with_what_came_meanwhile_and_in_order(self, mem_queue_size: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumers = [host.consumer(channel=name, rdy=10) for name in "cd"]
        topic = host.broker.topics["t"]
        host.publish("t", "a")
        topic.pause(True)
        host.publish("t", *"bc")
        topic.pause(False)
        host.pump()
        host.publish("t", "d")

        assert [["a", "b", "c", "d"]] * 2 == [each.take() for each in consumers]
        assert [4, 4] == [each.channel.message_count for each in consumers]
        assert 0 == topic.depth

    def test_twice_or_ending_what_was_not_begun_changes_nothing(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        topic = host.broker.topics["t"]
        topic.pause(False)
        topic.pause(True)
        topic.pause(True)
        host.publish("t", "a")
        topic.pause(False)
        topic.pause(False)
        host.pump()

        assert ["a"] == consumer.take()

    def test_a_channel_made_meanwhile_gets_what_waited(self, host: Host) -> None:
        old = host.consumer(channel="old", rdy=10)
        topic = host.broker.topics["t"]
        host.publish("t", "a")
        topic.pause(True)
        host.publish("t", "b")
        new = host.consumer(channel="new", rdy=10)
        assert [] == new.take()

        topic.pause(False)
        host.pump()
        assert (["a", "b"], ["b"]) == (old.take(), new.take())

    def test_a_topic_without_a_channel_goes_on_holding_after_it(self, host: Host) -> None:
        topic = host.broker.topic("t")
        topic.pause(True)
        host.publish("t", "a")
        topic.pause(False)
        assert 1 == topic.depth

        assert ["a"] == host.consumer(rdy=1).take()

    def test_a_deferred_message_that_was_held_keeps_its_time(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        topic = host.broker.topics["t"]
        topic.pause(True)
        host.publish("t", "later", defer_ns=2 * SECOND_NS)
        host.publish("t", "now")
        host.pass_time(SECOND_NS)
        topic.pause(False)
        host.pump()
        assert ["now"] == consumer.take()

        host.pass_time(SECOND_NS)
        assert ["later"] == consumer.take()

    @pytest.mark.parametrize("channel_paused", [False, True])
    def test_a_deferred_message_that_was_held_counts_as_such_before_anybody_is_ready(
        self, host: Host, channel_paused: bool
    ) -> None:
        host.publish("t", "later", defer_ns=2 * SECOND_NS)
        host.publish("t", "now")
        channel = host.broker.topics["t"].channel("c")
        channel.pause(channel_paused)
        host.pump()

        assert (1, 1) == (channel.depth, channel.deferred_count)


class TestEmptying:
    def test_drops_what_waits_in_the_topic_and_nothing_else(self, host: Host) -> None:
        consumer = host.consumer()
        topic = host.broker.topics["t"]
        host.publish("t", *"ab")
        topic.pause(True)
        host.publish("t", *"cd")
        topic.empty()
        assert (0, 2) == (topic.depth, consumer.channel.depth)

        host.publish("t", "e")
        topic.pause(False)
        consumer.rdy(10)
        assert ["a", "b", "e"] == consumer.take()

    @pytest.mark.parametrize("mem_queue_size", [0, 1])
    def test_leaves_a_channel_that_is_behind_its_own(self, mem_queue_size: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumer = host.consumer()
        topic = host.broker.topics["t"]
        host.publish("t", *"abc")
        topic.pause(True)
        host.publish("t", *"de")
        topic.empty()
        topic.pause(False)
        host.publish("t", *"fg")
        assert 5 == consumer.channel.depth

        consumer.rdy(1)
        for body in "abcf":
            consumer.fin(body)
        assert ["a", "b", "c", "f", "g"] == consumer.take()

    def test_a_channel_that_had_caught_up_goes_on_with_what_comes_next(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        topic = host.broker.topics["t"]
        host.publish("t", "a")
        topic.pause(True)
        host.publish("t", "b")
        topic.empty()
        topic.pause(False)
        assert 0 == consumer.channel.depth
        host.publish("t", "c")
        host.publish("t", "d")

        assert ["a", "c", "d"] == consumer.take()
        assert 0 == consumer.channel.depth

    def test_before_there_is_a_channel_leaves_nothing_for_it(self, host: Host) -> None:
        host.publish("t", *"ab")
        host.broker.topics["t"].empty()
        assert 0 == host.broker.topics["t"].depth

        consumer = host.consumer(rdy=10)
        host.publish("t", "c")
        assert ["c"] == consumer.take()

    def test_is_forgotten_by_no_restart(self, host: Host) -> None:
        host.consumer()
        host.publish("kept", "a")
        host.publish("dropped", "b")
        host.broker.topics["dropped"].empty()
        paused = host.broker.topics["t"]
        paused.pause(True)
        host.publish("t", "c")
        paused.empty()
        host.restart()

        assert {"kept": 1, "dropped": 0, "t": 0} == {
            name: topic.depth for name, topic in host.broker.topics.items()
        }
        assert 0 == host.channel().depth

    def test_of_a_topic_that_holds_nothing_changes_nothing(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "a")
        host.broker.topics["t"].empty()
        host.publish("t", "b")

        assert ["a", "b"] == consumer.take()


class TestDeletingAChannel:
    def test_sends_its_subscribers_away_and_no_others(self, host: Host) -> None:
        consumer, same, other = host.consumer(), host.consumer(), host.consumer(channel="d")
        host.broker.delete_channel(host.broker.topics["t"], "c")

        assert [True, True, False] == [each.gone for each in (consumer, same, other)]
        assert ["d"] == list(host.broker.topics["t"].channels)

    def test_one_made_anew_starts_with_what_comes(self, host: Host) -> None:
        host.consumer(rdy=1)
        host.consumer(channel="other")
        host.publish("t", *"ab")
        host.broker.delete_channel(host.broker.topics["t"], "c")
        consumer = host.consumer(rdy=10)
        host.publish("t", "c")

        assert ["c"] == consumer.take()

    def test_nothing_of_it_times_out_later(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        host.broker.delete_channel(host.broker.topics["t"], "c")
        host.pass_time(2 * MSG_TIMEOUT_NS)

        assert ["a"] == consumer.take()
        assert 0 == consumer.channel.timeout_count

    def test_is_forgotten_by_no_restart(self, host: Host) -> None:
        host.consumer()
        host.broker.delete_channel(host.broker.topics["t"], "c")
        host.restart()

        assert {} == host.broker.topics["t"].channels


class TestEphemeralTopic:
    def test_nothing_of_it_is_stored(self, host: Host) -> None:
        host.consumer("t#ephemeral")
        host.publish("t#ephemeral", "a")
        host.restart()

        assert {} == host.broker.topics

    def test_it_delivers_like_any_other(self, host: Host) -> None:
        consumer = host.consumer("t#ephemeral", rdy=2)
        host.publish("t#ephemeral", *"abc")
        consumer.req("a")
        consumer.fin("b")
        consumer.fin("c")
        host.publish("t#ephemeral", "later", defer_ns=SECOND_NS)
        host.pass_time(SECOND_NS)
        consumer.fin("later")
        host.pass_time(MSG_TIMEOUT_NS)

        assert ["a", "b", "c", "a", "later", "a"] == consumer.take()
        assert [1, 1, 1, 2, 1, 3] == consumer.attempts

    def test_what_waits_for_a_channel_is_kept_as_far_as_there_is_room(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=3))
        host.publish("t#ephemeral", *"ab")
        host.publish("t#ephemeral", *"cd")
        topic = host.broker.topics["t#ephemeral"]
        assert (3, 0, 4) == (topic.depth, topic.backend_depth, topic.message_count)

        consumer = host.consumer("t#ephemeral", rdy=10)
        host.publish("t#ephemeral", "e")
        assert ["a", "b", "c", "e"] == consumer.take()
        assert 5 == consumer.channel.message_count
        assert 0 == topic.depth

    def test_what_finds_no_room_in_a_channel_is_dropped_there_and_still_counted(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=3))
        consumer = host.consumer("t#ephemeral")
        host.publish("t#ephemeral", *"abcde")
        assert (3, 0, 5) == (
            consumer.channel.depth,
            consumer.channel.backend_depth,
            consumer.channel.message_count,
        )

        consumer.rdy(10)
        assert ["a", "b", "c"] == consumer.take()

    def test_without_a_memory_queue_it_reaches_those_who_are_ready(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=0))
        consumer = host.consumer("t#ephemeral")
        host.publish("t#ephemeral", "lost")
        consumer.rdy(10)
        host.publish("t#ephemeral", *"ab")

        assert ["a", "b"] == consumer.take()

    def test_paused_it_holds_as_far_as_there_is_room(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=2))
        consumer = host.consumer("t#ephemeral", rdy=10)
        topic = host.broker.topics["t#ephemeral"]
        topic.pause(True)
        host.publish("t#ephemeral", *"abc")
        assert 2 == topic.depth

        topic.pause(False)
        host.pump()
        assert ["a", "b"] == consumer.take()

    def test_emptied_it_holds_nothing(self, host: Host) -> None:
        host.publish("t#ephemeral", "a")
        host.broker.topics["t#ephemeral"].empty()
        assert 0 == host.broker.topics["t#ephemeral"].depth

        assert [] == host.consumer("t#ephemeral", rdy=1).take()

    def test_a_deferred_message_that_waits_for_a_channel_keeps_its_time(self, host: Host) -> None:
        host.publish("t#ephemeral", "a", defer_ns=2 * SECOND_NS)
        host.pass_time(SECOND_NS)
        consumer = host.consumer("t#ephemeral", rdy=1)
        host.pass_time(SECOND_NS - 1)
        assert [] == consumer.take()

        host.pass_time(1)
        assert ["a"] == consumer.take()


class TestEphemeralChannelOnALastingTopic:
    def test_it_gets_what_comes_and_drops_what_finds_no_room(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=2))
        lasting = host.consumer()
        host.publish("t", "before")
        consumer = host.consumer(channel="c#ephemeral")
        host.publish("t", *"abc")
        assert (2, 0, 3) == (
            consumer.channel.depth,
            consumer.channel.backend_depth,
            consumer.channel.message_count,
        )

        consumer.rdy(10)
        lasting.rdy(10)
        assert ["a", "b"] == consumer.take()
        assert ["before", "a", "b", "c"] == lasting.take()

    def test_as_the_first_channel_it_gets_what_waited_as_far_as_there_is_room(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=3))
        for body in numbered(5):
            host.publish("t", body)
        consumer = host.consumer(channel="c#ephemeral", rdy=10)
        host.publish("t", "next")

        assert ["0", "1", "2", "next"] == consumer.take()
        assert 0 == host.broker.topics["t"].depth

    def test_what_waited_is_read_piece_by_piece(self, host: Host) -> None:
        bodies = [f"{number:<1000}" for number in range(2000)]
        for start in range(0, 2000, 100):
            host.publish("t", *bodies[start : start + 100])
        assert sum(map(len, bodies)) > 4 * READ_BYTES

        consumer = host.consumer(channel="c#ephemeral", rdy=2500)
        assert bodies == consumer.take()

    def test_it_is_not_there_after_a_restart_and_keeps_nothing_from_others(
        self, host: Host
    ) -> None:
        host.consumer()
        host.consumer(channel="c#ephemeral", rdy=1)
        host.publish("t", *"ab")
        host.restart()

        assert ["c"] == list(host.broker.topics["t"].channels)
        assert ["a", "b"] == host.consumer(rdy=10).take()

    def test_it_keeps_no_segment(self) -> None:
        host = Host(log_settings=LogSettings(max_bytes_per_file=300))
        lasting = host.consumer(rdy=100)
        host.consumer(channel="c#ephemeral")
        for body in numbered(20):
            host.publish("t", body)
        lasting.fin(*numbered(20))
        host.save_progress()

        assert segment_count(host.broker.topics["t"]) == 1


class TestTrimming:
    """A segment goes when no channel has anything left to read of it."""

    @pytest.fixture
    def small_segments(self) -> Host:
        return Host(log_settings=LogSettings(max_bytes_per_file=300))

    def test_what_every_channel_has_finished_is_deleted(self, small_segments: Host) -> None:
        host = small_segments
        one, other = host.consumer(rdy=100), host.consumer(channel="d", rdy=100)
        for body in numbered(20):
            host.publish("t", body)
        topic = host.broker.topics["t"]
        segments = segment_count(topic)
        assert segments > 4

        one.fin(*numbered(20))
        host.save_progress()
        assert segments == segment_count(topic)
        other.fin(*numbered(20))
        host.save_progress()
        assert 1 == segment_count(topic)

    def test_what_waits_for_a_channel_stays(self, small_segments: Host) -> None:
        host = small_segments
        consumer = host.consumer(rdy=100)
        topic = host.broker.topics["t"]
        topic.pause(True)
        for body in numbered(20):
            host.publish("t", body)
        segments = segment_count(topic)
        topic.trim(host.clock.wall_ns())
        assert segments == segment_count(topic)

        topic.pause(False)
        host.pump()
        assert numbered(20) == consumer.take()

    def test_what_waits_for_the_first_channel_stays(self, small_segments: Host) -> None:
        host = small_segments
        for body in numbered(20):
            host.publish("t", body)
        host.broker.topics["t"].trim(host.clock.wall_ns())

        assert numbered(20) == host.consumer(rdy=100).take()

    def test_what_is_in_flight_deferred_or_queued_stays(self, small_segments: Host) -> None:
        host = small_segments
        consumer = host.consumer(rdy=20)
        for body in numbered(20):
            host.publish("t", body)
        consumer.rdy(0)
        consumer.req("3", SECOND_NS)
        consumer.req("7")
        open_bodies = {"3", "7", "11"}
        consumer.fin(*[body for body in numbered(20) if body not in open_bodies])
        host.save_progress()
        host.restart()
        again = host.consumer(rdy=20)
        host.pass_time(SECOND_NS)

        assert open_bodies == set(again.take())

    def test_what_a_deleted_channel_had_not_read_does_not_stay_for_it(
        self, small_segments: Host
    ) -> None:
        host = small_segments
        consumer = host.consumer(rdy=100)
        host.consumer(channel="slow")
        for body in numbered(20):
            host.publish("t", body)
        host.broker.delete_channel(host.broker.topics["t"], "slow")
        consumer.fin(*numbered(20))
        host.save_progress()

        assert 1 == segment_count(host.broker.topics["t"])


def test_listeners_of_a_topic_are_called_once() -> None:
    host = Host()
    topic = host.broker.topic("t")
    calls: list[str] = []
    topic.call_on_next_change(lambda: calls.append("one"))
    topic.call_on_next_change(lambda: calls.append("two"))
    host.publish("t", "a")
    assert ["one", "two"] == calls
    host.publish("t", "b")
    assert ["one", "two"] == calls
    topic.call_on_next_change(lambda: calls.append("three"))
    host.broker.delete_topic("t")

    assert ["one", "two", "three"] == calls
