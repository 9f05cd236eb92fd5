"""What a new process finds, after a clean stop and after a crash.

A crash here is the end of the process: what was written stays, what was not is gone.
"""

from collections.abc import Callable

import pytest
from tests.broker.fakes import MSG_TIMEOUT_NS, Host

from penstock.broker.settings import BrokerSettings
from penstock.common.clock import SECOND_NS
from penstock.protocol import frames as wire

either_end = pytest.mark.parametrize("end", [Host.restart, Host.crash], ids=["stop", "crash"])
End = Callable[[Host], None]


@pytest.fixture(params=[0, 2, 10_000], ids=lambda size: f"mem_queue_size={size}")
def host(request: pytest.FixtureRequest) -> Host:
    """Everything here holds whether messages are in memory or in the log only."""
    return Host(BrokerSettings(mem_queue_size=request.param))


@either_end
class TestAnyEnd:
    def test_what_was_published_is_there(self, host: Host, end: End) -> None:
        host.consumer()
        host.publish("t", *"abc")
        end(host)
        assert 3 == host.channel().depth

        assert ["a", "b", "c"] == host.consumer(rdy=10).take()

    def test_topics_and_channels_are_there(self, host: Host, end: End) -> None:
        for channel in ("c", "d"):
            host.channel("t", channel)
        host.broker.topic("alone")
        host.broker.topic(".")
        end(host)

        assert {"t": ["c", "d"], "alone": [], ".": []} == {
            name: sorted(topic.channels) for name, topic in host.broker.topics.items()
        }

    def test_what_waited_for_a_channel_still_does(self, host: Host, end: End) -> None:
        host.publish("t", *"ab")
        end(host)
        host.publish("t", "c")
        assert 3 == host.broker.topics["t"].depth

        assert ["a", "b", "c"] == host.consumer(rdy=10).take()

    def test_each_channel_goes_on_from_where_it_was(self, host: Host, end: End) -> None:
        one = host.consumer(channel="one", rdy=10)
        host.publish("t", *"ab")
        other = host.consumer(channel="other", rdy=1)
        host.publish("t", *"cd")
        one.fin("a", "b", "c")
        other.fin("c")
        host.save_progress()
        end(host)

        assert ["d"] == host.consumer(channel="one", rdy=10).take()
        assert ["d"] == host.consumer(channel="other", rdy=10).take()

    def test_a_channel_made_afterwards_gets_only_what_comes(self, host: Host, end: End) -> None:
        host.consumer()
        host.publish("t", "a")
        end(host)
        new = host.consumer(channel="new", rdy=10)
        host.publish("t", "b")

        assert ["b"] == new.take()

    def test_what_was_saved_as_finished_does_not_come_back(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abcdef")
        consumer.fin("f", "a", "d")
        host.save_progress()
        end(host)
        assert 3 == host.channel().depth

        assert ["b", "c", "e"] == host.consumer(rdy=10).take()

    def test_what_an_ephemeral_channel_has_finished_is_not_held_again(
        self, host: Host, end: End
    ) -> None:
        consumer = host.consumer(channel="c#ephemeral", rdy=10)
        host.publish("t", *"ab")
        consumer.fin("a", "b")
        host.save_progress()
        end(host)
        host.publish("t", "c")

        assert ["c"] == host.consumer(rdy=10).take()

    def test_what_was_in_flight_comes_back(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"abc")
        consumer.touch("b")
        end(host)

        assert (3, 0) == (host.channel().depth, host.channel().in_flight_count)
        assert ["a", "b", "c"] == host.consumer(rdy=10).take()

    def test_what_a_departed_consumer_left_comes_back(self, host: Host, end: End) -> None:
        host.settings = BrokerSettings(requeue_on_disconnect=False)
        host.restart()
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        consumer.leave()
        end(host)

        assert ["a"] == host.consumer(rdy=1).take()

    def test_what_was_requeued_comes_back_in_its_old_place(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"abc")
        consumer.req("a")
        consumer.rdy(0)
        consumer.req("b")
        host.save_progress()
        end(host)

        again = host.consumer(rdy=10)
        assert ["a", "b", "c"] == again.take()
        assert [2, 2, 1] == again.attempts

    def test_timeouts_count_as_attempts(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        consumer.rdy(0)
        host.pass_time(MSG_TIMEOUT_NS + SECOND_NS)
        host.save_progress()
        end(host)

        assert [2] == host.consumer(rdy=10).attempts

    @pytest.mark.parametrize("down_ns", [0, SECOND_NS, 2 * SECOND_NS])
    def test_a_deferred_message_waits_for_what_is_left_of_its_time(
        self, host: Host, end: End, down_ns: int
    ) -> None:
        host.consumer(rdy=1)
        host.publish("t", "later", defer_ns=5 * SECOND_NS)
        host.publish("t", "now")
        host.pass_time(SECOND_NS)
        host.clock.advance(down_ns)
        end(host)
        consumer = host.consumer(rdy=10)
        assert ["now"] == consumer.take()
        assert 1 == consumer.channel.deferred_count

        host.pass_time(4 * SECOND_NS - down_ns - 1)
        assert [] == consumer.take()
        host.pass_time(1)
        assert ["later"] == consumer.take()
        assert [1] == consumer.attempts[-1:]

    def test_so_does_one_that_was_requeued_with_a_delay(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"ab")
        consumer.req("a", 5 * SECOND_NS)
        host.save_progress()
        host.pass_time(SECOND_NS)
        end(host)
        again = host.consumer(rdy=10)
        assert ["b"] == again.take()

        host.pass_time(4 * SECOND_NS - 1)
        assert [] == again.take()
        host.pass_time(1)
        assert ["a"] == again.take()
        assert 2 == again.attempts[-1]

    def test_one_whose_time_came_meanwhile_is_delivered_at_once(self, host: Host, end: End) -> None:
        host.consumer()
        host.publish("t", "later", defer_ns=SECOND_NS)
        host.clock.advance(10 * SECOND_NS)
        end(host)
        consumer = host.consumer(rdy=1)
        host.pass_time(0)

        assert ["later"] == consumer.take()

    def test_one_that_was_delivered_is_not_deferred_again(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "later", defer_ns=SECOND_NS)
        host.pass_time(SECOND_NS)
        assert ["later"] == consumer.take()
        end(host)
        again = host.consumer(rdy=1)
        host.pass_time(0)

        assert ["later"] == again.take()

    def test_one_that_was_finished_is_gone(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", "later", defer_ns=SECOND_NS)
        host.publish("t", "now")
        host.pass_time(SECOND_NS)
        consumer.fin("later")
        host.save_progress()
        end(host)
        again = host.consumer(rdy=10)
        host.pass_time(10 * SECOND_NS)

        assert ["now"] == again.take()

    def test_a_paused_topic_still_holds_what_it_held(self, host: Host, end: End) -> None:
        host.consumer()
        host.publish("t", "a")
        host.broker.topics["t"].pause(True)
        host.publish("t", *"bc")
        end(host)
        topic = host.broker.topics["t"]
        assert topic.paused
        assert (2, 1) == (topic.depth, host.channel().depth)
        consumer = host.consumer(rdy=10)
        assert ["a"] == consumer.take()

        topic.pause(False)
        host.pump()
        assert ["b", "c"] == consumer.take()

    def test_a_topic_that_was_paused_once_is_not_now(self, host: Host, end: End) -> None:
        host.consumer()
        host.broker.topics["t"].pause(True)
        host.publish("t", "a")
        host.broker.topics["t"].pause(False)
        end(host)

        assert not host.broker.topics["t"].paused
        assert ["a"] == host.consumer(rdy=1).take()

    def test_sequence_numbers_go_on(self, host: Host, end: End) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        end(host)
        again = host.consumer(rdy=10)
        host.publish("t", "b")

        numbers = wire.ids_to_ints(wire.message_ids(consumer.frames + again.frames[1:]))
        assert numbers[1] == numbers[0] + 1

    def test_ephemeral_things_are_gone(self, host: Host, end: End) -> None:
        host.consumer("t", "c#ephemeral")
        host.consumer("e#ephemeral", "c")
        host.publish("t", "a")
        end(host)

        assert {"t": []} == {
            name: list(topic.channels) for name, topic in host.broker.topics.items()
        }

    def test_a_deleted_topic_does_not_come_back(self, host: Host, end: End) -> None:
        host.consumer()
        host.publish("t", "a")
        host.broker.delete_topic("t")
        end(host)

        assert {} == host.broker.topics

    def test_a_deleted_channel_does_not_come_back(self, host: Host, end: End) -> None:
        host.consumer()
        host.publish("t", "a")
        host.broker.delete_channel(host.broker.topics["t"], "c")
        end(host)

        assert {} == host.broker.topics["t"].channels
        assert 0 == host.broker.topics["t"].depth

    def test_time_after_time_nothing_is_lost_or_comes_too_often(self, host: Host, end: End) -> None:
        finished: list[str] = []
        for number in range(6):
            consumer = host.consumer(rdy=3)
            host.publish("t", str(2 * number), str(2 * number + 1))
            done = consumer.take()[1:]
            consumer.fin(*done)
            finished += done
            host.save_progress()
            end(host)
        rest = host.consumer(rdy=100).take()

        assert sorted(map(str, range(12))) == sorted(finished + rest)


class TestCleanStop:
    def test_what_was_finished_last_does_not_come_back(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abc")
        consumer.fin("a", "c")
        host.restart()

        assert ["b"] == host.consumer(rdy=10).take()

    def test_what_was_in_flight_has_its_attempts(self, host: Host) -> None:
        consumer = host.consumer(rdy=3)
        host.publish("t", *"abcd")
        consumer.req("b")
        consumer.touch("c")
        host.restart()

        again = host.consumer(rdy=10)
        assert ["a", "b", "c", "d"] == again.take()
        assert [2, 2, 2, 2] == again.attempts

    def test_so_it_has_after_several(self, host: Host) -> None:
        host.consumer()
        host.publish("t", "a")
        for expected in range(1, 5):
            assert [expected] == host.consumer(rdy=1).attempts
            host.restart()

    def test_what_was_requeued_last_has_its_attempts(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        consumer.rdy(0)
        consumer.req("a")
        host.restart()

        assert [2] == host.consumer(rdy=1).attempts


class TestCrash:
    def test_what_was_finished_and_not_saved_may_come_back_and_nothing_else(
        self, host: Host
    ) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abcd")
        consumer.fin("a", "c")
        host.save_progress()
        consumer.fin("b")
        host.crash()

        assert ["b", "d"] == host.consumer(rdy=10).take()

    def test_what_was_requeued_and_not_saved_comes_back(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"ab")
        consumer.req("a", 3600 * SECOND_NS)
        host.crash()
        again = host.consumer(rdy=10)
        host.pass_time(3600 * SECOND_NS)

        assert {"a", "b"} == set(again.take())

    def test_an_emptied_channel_stays_empty(self, host: Host) -> None:
        host.consumer(rdy=1)
        host.publish("t", *"abc")
        host.channel().empty(host.broker.topics["t"].owed_seq)
        host.crash()

        assert 0 == host.channel().depth

    def test_an_emptied_topic_stays_empty(self, host: Host) -> None:
        host.publish("t", *"abc")
        host.broker.topics["t"].empty()
        host.crash()

        assert 0 == host.broker.topics["t"].depth
        assert [] == host.consumer(rdy=10).take()

    def test_an_emptied_paused_topic_stays_empty(self, host: Host) -> None:
        host.consumer()
        topic = host.broker.topics["t"]
        topic.pause(True)
        host.publish("t", *"abc")
        topic.empty()
        host.crash()
        host.broker.topics["t"].pause(False)

        assert [] == host.consumer(rdy=10).take()
        assert 0 == host.channel().depth


@pytest.mark.parametrize(("before", "after"), [(3, 900), (900, 3)])
class TestWithAnotherNodeId:
    """--node-id or a collision may change the node id. The ids of the messages stored before then
    sort below or above those of later messages."""

    @pytest.fixture
    def host(self, before: int, after: int) -> Host:
        host = Host(BrokerSettings(node_id=before))
        host.consumer()
        host.publish("t", *"ab")
        host.settings = BrokerSettings(node_id=after)
        host.restart()
        return host

    def test_first_deliveries_are_in_order(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"cd")

        assert ["a", "b", "c", "d"] == consumer.take()

    def test_messages_are_found_by_their_ids(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"cdef")
        consumer.touch("a")
        consumer.touch("d")
        consumer.req("c", 3600 * SECOND_NS)
        consumer.fin("a", "b", "d", "e")
        host.restart()

        again = host.consumer(rdy=10)
        host.pass_time(3600 * SECOND_NS)
        assert {"c", "f"} == set(again.take())

    def test_each_times_out_at_its_own_time(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.pass_time(10 * SECOND_NS)
        host.publish("t", *"cd")
        consumer.take()
        consumer.rdy(0)
        host.pass_time(MSG_TIMEOUT_NS - 9 * SECOND_NS)
        assert 2 == consumer.channel.timeout_count

        host.pass_time(8 * SECOND_NS)
        assert 2 == consumer.channel.timeout_count
        host.pass_time(2 * SECOND_NS)
        assert 4 == consumer.channel.timeout_count

    def test_touches_are_counted_from_the_messages_own_delivery(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.pass_time(10 * SECOND_NS)
        host.publish("t", *"cd")
        for _ in range(40):
            host.pass_time(MSG_TIMEOUT_NS // 2)
            for body in "abcd":
                if consumer.id_of(body) in consumer.subscriber.in_flight:
                    consumer.touch(body)

        # Each was given its 15 minutes, and then delivered once more.
        assert sorted("aabbccdd") == sorted(consumer.take())
