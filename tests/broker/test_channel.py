from collections.abc import Callable
from itertools import cycle

import pytest
from tests.broker.fakes import MSG_TIMEOUT_NS, Consumer, Host

from penstock.broker.channel import TURN_FRAMES, Channel, NotInFlightError
from penstock.broker.settings import BrokerSettings
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.protocol import frames as wire

UNKNOWN_ID = b"0123456789abcdef"

# How late a timer may be.
LATE_NS = 10 * MILLISECOND_NS

Verb = Callable[[Consumer, bytes], None]


def fin(consumer: Consumer, message_id: bytes) -> None:
    for refusal in consumer.channel.finish(consumer.subscriber, [message_id]):
        raise refusal


def req(consumer: Consumer, message_id: bytes) -> None:
    consumer.channel.requeue(consumer.subscriber, message_id, due_ns=0)


def touch(consumer: Consumer, message_id: bytes) -> None:
    consumer.channel.touch(consumer.subscriber, message_id, now_ns=0)


every_verb = pytest.mark.parametrize(
    ("word", "verb"), [("FIN", fin), ("REQ", req), ("TOUCH", touch)]
)


def counts(channel: Channel) -> dict[str, int]:
    """Where the channel's messages are."""
    return {
        "queued": channel.depth,
        "in flight": channel.in_flight_count,
        "deferred": channel.deferred_count,
    }


def numbered(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


class TestReadyCount:
    def test_nothing_is_delivered_before_rdy(self, host: Host) -> None:
        consumer = host.consumer()
        host.publish("t", "a")
        host.pass_time(SECOND_NS)

        assert [] == consumer.take()
        consumer.rdy(1)
        assert ["a"] == consumer.take()

    def test_it_is_a_ceiling_and_not_a_credit_that_is_used_up(self, host: Host) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"abcde")

        assert ["a", "b"] == consumer.take()
        consumer.fin("a")
        assert ["c"] == consumer.take()
        consumer.fin("b", "c")
        assert ["d", "e"] == consumer.take()

    def test_a_lower_one_holds_until_enough_has_been_answered(self, host: Host) -> None:
        consumer = host.consumer(rdy=3)
        host.publish("t", *"abcdef")
        consumer.rdy(1)
        consumer.fin("a", "b")

        assert ["a", "b", "c"] == consumer.take()
        consumer.fin("c")
        assert ["d"] == consumer.take()

    def test_zero_stops_delivery_and_leaves_what_is_in_flight(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"ab")
        consumer.rdy(0)
        consumer.fin("a")

        assert ["a"] == consumer.take()
        consumer.rdy(1)
        assert ["b"] == consumer.take()

    def test_a_higher_one_lets_more_through_at_once(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"abc")
        consumer.rdy(3)

        assert ["a", "b", "c"] == consumer.take()

    def test_every_answer_makes_room(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"abc")
        consumer.fin("a")
        consumer.req("b", SECOND_NS)
        host.pass_time(MSG_TIMEOUT_NS + LATE_NS)

        assert ["a", "b", "c", "b"] == consumer.take()

    def test_a_peer_that_does_not_read_gets_no_more_until_it_does(self, host: Host) -> None:
        consumer = host.consumer(rdy=5)
        host.publish("t", "a")
        consumer.subscriber.blocked = True
        host.publish("t", "b")
        consumer.fin("a")
        assert ["a"] == consumer.take()

        consumer.subscriber.blocked = False
        consumer.channel.ready(consumer.subscriber)
        host.pump()
        assert ["b"] == consumer.take()


class TestOrder:
    def test_first_deliveries_come_as_published(self, host: Host) -> None:
        consumer = host.consumer(rdy=2500)
        host.publish("t", "a", "b")
        host.publish("t", "c")

        assert ["a", "b", "c"] == consumer.take()

    def test_who_keeps_up_is_given_a_batch_at_once_and_sent_it_when_the_turn_ends(self) -> None:
        host = Host(pumps_by_itself=False)
        consumer = host.consumer(rdy=3)
        host.pump()
        host.publish("t", "a", "b")
        host.publish("t", "c", "d")
        given = counts(consumer.channel), consumer.take()
        host.pump()

        assert ({"queued": 2, "in flight": 2, "deferred": 0}, []) == given
        assert ["a", "b", "c"] == consumer.take()

    def test_a_requeued_message_joins_at_the_end(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"abc")
        consumer.req("a")
        consumer.fin("b")
        consumer.fin("c")

        assert ["a", "b", "c", "a"] == consumer.take()
        assert [1, 1, 1, 2] == consumer.attempts

    @pytest.mark.parametrize("mem_queue_size", [0, 1, 2, 3, 10_000])
    @pytest.mark.parametrize("rdy", [1, 2, 7, 2500])
    def test_it_holds_whatever_the_memory_queue_holds(self, mem_queue_size: int, rdy: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumer = host.consumer()
        bodies = numbered(50)
        for start in range(0, 50, 5):
            host.publish("t", *bodies[start : start + 5])
        consumer.rdy(rdy)
        for body in numbered(50, 50):
            host.publish("t", body)
        while batch := consumer.take():
            consumer.fin(*batch)

        assert numbered(100) == consumer.bodies

    @pytest.mark.parametrize("mem_queue_size", [0, 2, 10_000])
    def test_requeues_do_not_disturb_it(self, mem_queue_size: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumer = host.consumer()
        host.publish("t", *numbered(20))
        consumer.rdy(3)
        first_deliveries: list[str] = []
        while batch := consumer.take():
            for body in batch:
                if body in first_deliveries:
                    consumer.fin(body)
                else:
                    first_deliveries.append(body)
                    consumer.req(body)

        assert numbered(20) == first_deliveries
        assert {"queued": 0, "in flight": 0, "deferred": 0} == counts(consumer.channel)

    def test_a_message_requeued_time_and_again_does_not_hold_up_those_in_the_log(self) -> None:
        """With RDY 1 it alone is in memory, and always there: the log has to get its turn."""
        host = Host(BrokerSettings(mem_queue_size=1))
        consumer = host.consumer()
        host.publish("t", *"abc")
        consumer.rdy(1)
        for _ in range(20):
            body = consumer.take()[-1]
            if body == "a":
                consumer.req(body)
            else:
                consumer.fin(body)

        assert {"a", "b", "c"} == set(consumer.bodies)


class TestSharingOut:
    def test_each_message_goes_to_one_subscriber(self, host: Host) -> None:
        consumers = [host.consumer(rdy=3) for _ in range(4)]
        host.publish("t", *numbered(10))

        assert sorted(numbered(10)) == sorted(body for each in consumers for body in each.take())

    def test_subscribers_take_turns(self, host: Host) -> None:
        consumers = [host.consumer(rdy=1) for _ in range(3)]
        host.publish("t", *numbered(3))
        for number, consumer in zip(range(3, 9), cycle(consumers), strict=False):
            consumer.fin(consumer.bodies[-1])
            host.publish("t", str(number))

        assert [["0", "3", "6"], ["1", "4", "7"], ["2", "5", "8"]] == [
            each.take() for each in consumers
        ]

    def test_a_turn_is_bounded_so_that_one_with_a_high_rdy_does_not_get_all(
        self, host: Host
    ) -> None:
        consumers = [host.consumer(rdy=2500) for _ in range(2)]
        host.publish("t", *numbered(3 * TURN_FRAMES + 7))

        assert [[TURN_FRAMES, TURN_FRAMES], [TURN_FRAMES, 7]] == [
            [len(batch) for batch in each.deliveries] for each in consumers
        ]

    def test_a_subscriber_at_its_ceiling_does_not_hold_up_the_others(self, host: Host) -> None:
        busy, free = host.consumer(rdy=1), host.consumer(rdy=10)
        host.publish("t", *numbered(5))

        assert (1, 4) == (len(busy.take()), len(free.take()))

    def test_what_one_subscriber_requeues_another_may_get(self, host: Host) -> None:
        one = host.consumer(rdy=1)
        host.publish("t", "a")
        other = host.consumer(rdy=1)
        one.rdy(0)
        one.req("a")

        assert ["a"] == other.take()
        other.fin("a")
        assert {"queued": 0, "in flight": 0, "deferred": 0} == counts(one.channel)


class TestRedelivery:
    def test_attempts_count_deliveries_and_the_timestamp_stays(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        published_ns = host.clock.wall_ns()
        host.publish("t", "a")
        consumer.req("a")
        host.pass_time(MSG_TIMEOUT_NS + LATE_NS)
        consumer.req("a", SECOND_NS)
        host.pass_time(SECOND_NS)

        assert [1, 2, 3, 4] == consumer.attempts
        assert {published_ns} == {wire.timestamp_ns(frame) for frame in consumer.frames}
        assert 1 == len(set(wire.message_ids(consumer.frames)))

    def test_attempts_wrap_as_the_wire_has_16_bits_for_them(self, host: Host) -> None:
        consumer = host.consumer()
        host.publish("t", "a")
        frames = consumer.channel._queue.take(1)
        consumer.channel._queue.requeue([wire.with_attempts(frames[0], 65534)])
        consumer.rdy(1)
        consumer.req("a")
        consumer.req("a")

        assert [65535, 0, 1] == consumer.attempts

    def test_a_timeout_brings_a_message_back_at_the_end(self, host: Host) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"abc")
        host.pass_time(MSG_TIMEOUT_NS - 1)
        assert ["a", "b"] == consumer.take()

        host.pass_time(1 + LATE_NS)
        assert ["c", "a"] == consumer.take()
        assert 2 == consumer.channel.timeout_count
        assert {"queued": 1, "in flight": 2, "deferred": 0} == counts(consumer.channel)

    @pytest.mark.parametrize("offset_ns", [0, 1, MILLISECOND_NS, 3 * SECOND_NS + 7])
    def test_timers_fire_in_time(self, host: Host, offset_ns: int) -> None:
        """Each message's own time counts, also when others were sent just before it."""
        consumer = host.consumer(rdy=2)
        host.publish("t", "a")
        host.pass_time(offset_ns)
        host.publish("t", "b")
        consumer.take()
        host.pass_time(MSG_TIMEOUT_NS - 1)
        assert "b" not in consumer.take()

        host.pass_time(1 + LATE_NS)
        assert "b" in consumer.take()

    def test_each_subscriber_has_its_own_timeout(self, host: Host) -> None:
        quick = host.consumer(rdy=1, msg_timeout_ns=SECOND_NS)
        host.publish("t", "a")
        slow = host.consumer(rdy=1, msg_timeout_ns=5 * SECOND_NS)
        host.publish("t", "b")
        quick.rdy(0)
        host.pass_time(SECOND_NS + LATE_NS)

        assert (1, 1) == (quick.channel.timeout_count, quick.channel.depth)
        host.pass_time(4 * SECOND_NS)
        assert ["b", "a"] == slow.take()

    def test_what_was_answered_in_time_does_not_time_out(self, host: Host) -> None:
        consumer = host.consumer(rdy=3)
        host.publish("t", *"abc")
        consumer.fin("a", "c")
        consumer.req("b", 2 * MSG_TIMEOUT_NS)
        host.pass_time(MSG_TIMEOUT_NS + SECOND_NS)

        assert 0 == consumer.channel.timeout_count
        assert {"queued": 0, "in flight": 0, "deferred": 1} == counts(consumer.channel)

    def test_a_redelivered_message_has_its_whole_timeout_again(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        host.pass_time(MSG_TIMEOUT_NS // 2)
        consumer.req("a")
        host.pass_time(MSG_TIMEOUT_NS - 1)
        assert [1, 2] == consumer.attempts

        host.pass_time(1 + LATE_NS)
        assert [1, 2, 3] == consumer.attempts

    def test_a_touch_starts_the_timeout_again(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        for _ in range(3):
            host.pass_time(MSG_TIMEOUT_NS - SECOND_NS)
            consumer.touch("a")
        host.pass_time(MSG_TIMEOUT_NS - 1)
        assert 0 == consumer.channel.timeout_count

        host.pass_time(1 + LATE_NS)
        assert 1 == consumer.channel.timeout_count

    def test_touches_do_not_reach_beyond_the_longest_timeout(self) -> None:
        host = Host(BrokerSettings(max_msg_timeout_ns=5 * SECOND_NS))
        consumer = host.consumer(rdy=1, msg_timeout_ns=2 * SECOND_NS)
        host.publish("t", "a")
        for _ in range(9):
            host.pass_time(SECOND_NS // 2)
            consumer.touch("a")
        host.pass_time(SECOND_NS // 2 - LATE_NS)
        assert [1] == consumer.attempts

        host.pass_time(2 * LATE_NS)
        assert [1, 2] == consumer.attempts

    def test_a_requeue_with_delay_waits_its_time(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"ab")
        consumer.req("a", 3 * SECOND_NS)
        consumer.fin("b")
        assert {"queued": 0, "in flight": 0, "deferred": 1} == counts(consumer.channel)

        host.pass_time(3 * SECOND_NS - 1)
        assert ["a", "b"] == consumer.take()
        host.pass_time(1)
        assert ["a"] == consumer.take()
        assert 2 == consumer.attempts[-1]


class TestRefusals:
    @every_verb
    def test_of_a_message_that_nobody_has(self, host: Host, word: str, verb: Verb) -> None:
        consumer = host.consumer(rdy=1)

        with pytest.raises(NotInFlightError) as refusal:
            verb(consumer, UNKNOWN_ID)
        assert f"E_{word}_FAILED {word} 0123456789abcdef failed ID not in flight" == str(
            refusal.value
        )
        assert not refusal.value.fatal

    @every_verb
    def test_of_what_is_not_even_an_id_of_ours(self, host: Host, word: str, verb: Verb) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")

        refusal = f"E_{word}_FAILED {word} .* failed ID not in flight"
        with pytest.raises(NotInFlightError, match=refusal):
            verb(consumer, b"\xff no hex digits")

    @every_verb
    def test_of_another_ones_message(self, host: Host, word: str, verb: Verb) -> None:
        owner = host.consumer(rdy=1)
        host.publish("t", "a")
        other = host.consumer(rdy=1)
        message_id = owner.id_of("a")

        with pytest.raises(NotInFlightError) as refusal:
            verb(other, message_id)
        assert (
            f"E_{word}_FAILED {word} {message_id.decode()} failed client does not own message"
            == str(refusal.value)
        )
        assert not refusal.value.fatal
        assert {"queued": 0, "in flight": 1, "deferred": 0} == counts(owner.channel)
        assert (0, 0, 0) == (
            other.subscriber.finish_count,
            other.subscriber.requeue_count,
            other.channel.requeue_count,
        )

    @every_verb
    @pytest.mark.parametrize("situation", ["finished", "requeued", "timed out", "emptied"])
    def test_of_what_is_no_longer_in_flight(
        self, host: Host, word: str, verb: Verb, situation: str
    ) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        message_id = consumer.id_of("a")
        consumer.rdy(0)
        match situation:
            case "finished":
                consumer.fin("a")
            case "requeued":
                consumer.req("a")
            case "timed out":
                host.pass_time(MSG_TIMEOUT_NS + LATE_NS)
            case "emptied":
                consumer.channel.empty(host.broker.topics["t"].owed_seq)

        with pytest.raises(
            NotInFlightError, match=f"{word} {message_id.decode()} failed ID not in flight"
        ):
            verb(consumer, message_id)

    @every_verb
    def test_of_what_timed_out_and_is_with_another_now(
        self, host: Host, word: str, verb: Verb
    ) -> None:
        slow = host.consumer(rdy=1)
        host.publish("t", "a")
        slow.rdy(0)
        other = host.consumer(rdy=1)
        host.pass_time(MSG_TIMEOUT_NS + LATE_NS)
        assert ["a"] == other.take()

        with pytest.raises(NotInFlightError, match=f"{word} .* failed client does not own message"):
            verb(slow, slow.id_of("a"))

    @every_verb
    def test_none_if_it_timed_out_and_came_back_to_the_same_connection(
        self, host: Host, word: str, verb: Verb
    ) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        host.pass_time(MSG_TIMEOUT_NS + LATE_NS)
        assert ["a", "a"] == consumer.take()

        verb(consumer, consumer.id_of("a"))

    def test_the_others_of_one_go_are_finished_all_the_same(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abcd")
        consumer.touch("c")
        consumer.req("d")
        chosen = [*map(consumer.id_of, "ab"), UNKNOWN_ID, *map(consumer.id_of, "cd")]

        refusals = consumer.channel.finish(consumer.subscriber, chosen)

        assert [UNKNOWN_ID] == [refusal.message_id for refusal in refusals]
        assert 4 == consumer.subscriber.finish_count
        assert 0 == consumer.channel.in_flight_count

    @pytest.mark.parametrize("touched", [False, True])
    def test_a_message_finished_twice_in_one_go_is_finished_and_refused(
        self, host: Host, touched: bool
    ) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"ab")
        if touched:
            consumer.touch("a")
        message_ids = [consumer.id_of(body) for body in "aba"]

        refusals = consumer.channel.finish(consumer.subscriber, message_ids)

        assert [message_ids[0]] == [refusal.message_id for refusal in refusals]
        assert 2 == consumer.subscriber.finish_count
        host.save_progress()
        host.restart()
        assert 0 == host.channel().depth


class TestDisconnecting:
    def test_brings_back_at_once_what_was_in_flight(self, host: Host) -> None:
        one = host.consumer(rdy=2)
        host.publish("t", *"abc")
        one.touch("b")
        other = host.consumer()
        one.leave()
        other.rdy(10)

        assert ["c", "a", "b"] == other.take()
        assert [1, 2, 2] == other.attempts
        assert 0 == other.channel.requeue_count
        assert 2 == other.channel.timeout_count

    def test_delivers_nothing_more_to_the_one_that_left(self, host: Host) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", "a")
        consumer.leave()
        host.publish("t", "b")
        host.pass_time(2 * MSG_TIMEOUT_NS)

        assert ["a"] == consumer.take()
        assert {"queued": 2, "in flight": 0, "deferred": 0} == counts(consumer.channel)

    def test_leaves_the_turns_of_the_others_alone(self, host: Host) -> None:
        first, second, third = (host.consumer(rdy=1) for _ in range(3))
        second.leave()
        host.publish("t", *"ab")

        assert (["a"], [], ["b"]) == (first.take(), second.take(), third.take())

    def test_may_leave_messages_to_their_timeouts_instead(self) -> None:
        host = Host(BrokerSettings(requeue_on_disconnect=False))
        one = host.consumer(rdy=2)
        host.publish("t", *"ab")
        other = host.consumer(rdy=5)
        one.leave()
        assert {"queued": 0, "in flight": 2, "deferred": 0} == counts(other.channel)

        host.pass_time(MSG_TIMEOUT_NS - 1)
        assert [] == other.take()
        host.pass_time(1 + LATE_NS)
        assert ["a", "b"] == other.take()
        assert (2, 0) == (other.channel.timeout_count, other.channel.requeue_count)

    def test_then_nothing_goes_to_the_one_that_left_when_they_time_out(self) -> None:
        host = Host(BrokerSettings(requeue_on_disconnect=False))
        consumer = host.consumer(rdy=5)
        host.publish("t", *"ab")
        consumer.leave()
        consumer.take()
        host.pass_time(3 * MSG_TIMEOUT_NS)

        assert [] == consumer.take()
        assert {"queued": 2, "in flight": 0, "deferred": 0} == counts(consumer.channel)
        assert 2 == consumer.channel.timeout_count

    @every_verb
    def test_then_nobody_else_owns_what_was_left(self, word: str, verb: Verb) -> None:
        host = Host(BrokerSettings(requeue_on_disconnect=False))
        one = host.consumer(rdy=1)
        host.publish("t", "a")
        other = host.consumer(rdy=1)
        one.leave()

        with pytest.raises(NotInFlightError, match="failed client does not own message"):
            verb(other, one.id_of("a"))


class TestPausing:
    def test_stops_new_deliveries_and_nothing_else(self, host: Host) -> None:
        consumer = host.consumer(rdy=4)
        host.publish("t", *"abcd")
        consumer.take()
        consumer.channel.pause(True)
        host.publish("t", *"ef")
        consumer.fin("a")
        consumer.req("b")
        consumer.req("c", SECOND_NS)
        consumer.touch("d")
        host.pass_time(MSG_TIMEOUT_NS + LATE_NS)

        assert [] == consumer.take()
        assert {"queued": 5, "in flight": 0, "deferred": 0} == counts(consumer.channel)
        assert 1 == consumer.channel.timeout_count

    def test_ends_with_what_came_meanwhile(self, host: Host) -> None:
        consumer = host.consumer(rdy=2)
        consumer.channel.pause(True)
        host.publish("t", *"abc")
        consumer.channel.pause(False)
        host.pump()

        assert ["a", "b"] == consumer.take()

    def test_one_channel_leaves_the_others_alone(self, host: Host) -> None:
        paused, other = host.consumer(rdy=1), host.consumer(channel="d", rdy=1)
        paused.channel.pause(True)
        host.publish("t", "a")

        assert ([], ["a"]) == (paused.take(), other.take())


class TestEmptying:
    def test_drops_what_is_queued_in_flight_and_deferred(self, host: Host) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"abcd")
        consumer.req("b", SECOND_NS)
        consumer.take()
        assert {"queued": 1, "in flight": 2, "deferred": 1} == counts(consumer.channel)

        consumer.channel.empty(host.broker.topics["t"].owed_seq)
        host.pump()

        assert {"queued": 0, "in flight": 0, "deferred": 0} == counts(consumer.channel)
        host.pass_time(2 * MSG_TIMEOUT_NS)
        assert [] == consumer.take()
        assert 0 == consumer.channel.timeout_count

    def test_goes_on_with_what_comes_next(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"ab")
        consumer.channel.empty(host.broker.topics["t"].owed_seq)
        host.publish("t", *"cd")

        assert ["a", "c"] == consumer.take()
        consumer.fin("c")
        assert ["d"] == consumer.take()

    @pytest.mark.parametrize("mem_queue_size", [0, 2])
    def test_drops_what_is_in_the_log_only(self, mem_queue_size: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumer = host.consumer()
        host.publish("t", *numbered(10))
        consumer.channel.empty(host.broker.topics["t"].owed_seq)
        host.publish("t", "new")
        consumer.rdy(10)

        assert ["new"] == consumer.take()

    def test_is_forgotten_by_no_restart(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"abc")
        consumer.channel.empty(host.broker.topics["t"].owed_seq)
        host.restart()

        assert 0 == host.channel().depth

    def test_concerns_one_channel(self, host: Host) -> None:
        consumer, other = host.consumer(), host.consumer(channel="d")
        host.publish("t", *"ab")
        consumer.channel.empty(host.broker.topics["t"].owed_seq)

        assert (0, 2) == (consumer.channel.depth, other.channel.depth)

    def test_drops_what_a_departed_consumer_left(self) -> None:
        host = Host(BrokerSettings(requeue_on_disconnect=False))
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        consumer.leave()
        consumer.channel.empty(host.broker.topics["t"].owed_seq)
        host.pass_time(2 * MSG_TIMEOUT_NS)

        assert {"queued": 0, "in flight": 0, "deferred": 0} == counts(consumer.channel)


class TestSampling:
    @pytest.mark.parametrize(("rate", "expected"), [(1, 1), (10, 10), (50, 50), (99, 99), (0, 100)])
    def test_a_rate_of_so_much_percent_delivers_so_much(self, rate: int, expected: int) -> None:
        draws = cycle(number / 100 for number in range(100))
        host = Host(sample=lambda: next(draws))
        consumer = host.consumer(rdy=2500, sample_rate=rate)
        host.publish("t", *numbered(100))

        assert expected == len(consumer.take())

    def test_what_is_left_out_is_finished_for_the_channel(self) -> None:
        draws = cycle([0.0, 0.9])
        host = Host(sample=lambda: next(draws))
        consumer = host.consumer(rdy=10, sample_rate=50)
        host.publish("t", *"abcd")
        assert ["a", "c"] == consumer.take()
        assert {"queued": 0, "in flight": 2, "deferred": 0} == counts(consumer.channel)

        consumer.fin("a", "c")
        host.save_progress()
        host.restart()
        assert 0 == host.channel().depth

    def test_progress_can_be_saved_when_nothing_was_left_out(self) -> None:
        host = Host(sample=lambda: 0.0)
        consumer = host.consumer(rdy=10, sample_rate=50)
        host.publish("t", *"ab")
        host.save_progress()

        consumer.fin("a")
        host.save_progress()
        host.crash()
        assert 1 == host.channel().depth

    def test_those_left_out_take_no_room_under_rdy(self) -> None:
        draws = cycle([0.9, 0.9, 0.0])
        host = Host(sample=lambda: next(draws))
        consumer = host.consumer(rdy=1, sample_rate=50)
        host.publish("t", *"abcdef")

        assert ["c"] == consumer.take()
        consumer.fin("c")
        assert ["f"] == consumer.take()

    def test_only_the_subscriber_that_asked_for_it_has_it(self) -> None:
        host = Host(sample=lambda: 0.99)
        sampling, other = host.consumer(rdy=1, sample_rate=1), host.consumer(channel="d", rdy=10)
        host.publish("t", *"abc")

        assert ([], ["a", "b", "c"]) == (sampling.take(), other.take())

    def test_a_redelivery_is_drawn_for_again(self) -> None:
        draws = iter([0.0, 0.9])
        host = Host(sample=lambda: next(draws))
        consumer = host.consumer(rdy=1, sample_rate=50)
        host.publish("t", "a")
        consumer.req("a")

        assert ["a"] == consumer.take()
        assert {"queued": 0, "in flight": 0, "deferred": 0} == counts(consumer.channel)


class TestCounting:
    def test_a_message_is_in_one_place_at_each_stage(self, host: Host) -> None:
        consumer = host.consumer()
        channel = consumer.channel
        host.publish("t", *"abc")
        host.publish("t", "later", defer_ns=SECOND_NS)
        assert {"queued": 3, "in flight": 0, "deferred": 1} == counts(channel)

        consumer.rdy(2)
        assert {"queued": 1, "in flight": 2, "deferred": 1} == counts(channel)
        consumer.fin("a")
        assert {"queued": 0, "in flight": 2, "deferred": 1} == counts(channel)
        consumer.rdy(0)
        consumer.req("b")
        assert {"queued": 1, "in flight": 1, "deferred": 1} == counts(channel)
        consumer.req("c", 2 * SECOND_NS)
        assert {"queued": 1, "in flight": 0, "deferred": 2} == counts(channel)
        host.pass_time(SECOND_NS)
        assert {"queued": 2, "in flight": 0, "deferred": 1} == counts(channel)
        host.pass_time(SECOND_NS)
        assert {"queued": 3, "in flight": 0, "deferred": 0} == counts(channel)
        consumer.rdy(3)
        consumer.fin("b", "c", "later")
        assert {"queued": 0, "in flight": 0, "deferred": 0} == counts(channel)

    def test_what_is_beyond_the_memory_queue_counts_as_the_backends(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=3))
        consumer = host.consumer()
        host.publish("t", *"abcde")
        assert (5, 2) == (consumer.channel.depth, consumer.channel.backend_depth)

        consumer.rdy(4)
        assert (1, 0) == (consumer.channel.depth, consumer.channel.backend_depth)

    def test_what_happened_is_counted(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abcd")
        consumer.fin("a")
        consumer.req("b")
        consumer.req("c", SECOND_NS)
        host.pass_time(MSG_TIMEOUT_NS + LATE_NS)

        channel, subscriber = consumer.channel, consumer.subscriber
        assert 4 == channel.message_count
        assert 2 == channel.requeue_count
        assert 2 == channel.timeout_count
        assert 8 == channel.delivered_count
        assert (8, 1, 2) == (
            subscriber.message_count,
            subscriber.finish_count,
            subscriber.requeue_count,
        )

    def test_a_deferred_message_counts_when_it_comes(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a", defer_ns=SECOND_NS)

        assert 1 == consumer.channel.message_count
        host.pass_time(SECOND_NS)
        assert 1 == consumer.channel.message_count


class TestDeferring:
    def test_a_message_is_delivered_at_its_time_and_not_before(self, host: Host) -> None:
        consumer = host.consumer(rdy=5)
        host.publish("t", "later", "same", defer_ns=SECOND_NS)
        host.publish("t", "now")
        host.pass_time(SECOND_NS - 1)
        assert ["now"] == consumer.take()

        host.pass_time(1)
        assert ["later", "same"] == consumer.take()
        assert [1, 1, 1] == consumer.attempts

    def test_it_is_in_flight_like_any_other(self, host: Host) -> None:
        consumer = host.consumer(rdy=5)
        host.publish("t", "later", defer_ns=SECOND_NS)
        host.publish("t", "now")
        host.pass_time(SECOND_NS)
        consumer.touch("later")
        consumer.fin("now", "later")

        assert {"queued": 0, "in flight": 0, "deferred": 0} == counts(consumer.channel)

    def test_they_come_in_order_of_their_times(self, host: Host) -> None:
        consumer = host.consumer(rdy=5)
        for body, seconds in [("c", 3), ("a", 1), ("b", 2), ("B", 2)]:
            host.publish("t", body, defer_ns=seconds * SECOND_NS)
        host.pass_time(3 * SECOND_NS)

        assert ["a", "b", "B", "c"] == consumer.take()

    def test_the_time_runs_while_there_is_no_channel(self, host: Host) -> None:
        host.publish("t", "a", defer_ns=2 * SECOND_NS)
        host.pass_time(SECOND_NS)
        consumer = host.consumer(rdy=1)
        host.pass_time(SECOND_NS - 1)
        assert [] == consumer.take()

        host.pass_time(1)
        assert ["a"] == consumer.take()

    def test_it_is_delivered_at_once_if_its_time_has_passed(self, host: Host) -> None:
        host.publish("t", "a", defer_ns=SECOND_NS)
        host.pass_time(2 * SECOND_NS)
        consumer = host.consumer(rdy=1)
        host.pass_time(0)

        assert ["a"] == consumer.take()

    @pytest.mark.parametrize("mem_queue_size", [0, 2])
    def test_beyond_the_memory_queue_they_are_read_back_from_the_log(
        self, mem_queue_size: int
    ) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumer = host.consumer(rdy=100)
        host.publish("t", *"abc", defer_ns=SECOND_NS)
        host.publish("t", *"de", defer_ns=2 * SECOND_NS)
        host.publish("t", *"fg", defer_ns=2 * SECOND_NS)
        assert 7 == consumer.channel.deferred_count

        host.pass_time(SECOND_NS)
        assert ["a", "b", "c"] == consumer.take()
        host.pass_time(SECOND_NS)
        assert ["d", "e", "f", "g"] == consumer.take()
        assert [1] * 7 == consumer.attempts

    def test_read_back_a_requeued_one_keeps_its_attempts(self) -> None:
        host = Host(BrokerSettings(mem_queue_size=0))
        consumer = host.consumer(rdy=3)
        host.publish("t", *"abc")
        consumer.req("b", SECOND_NS)
        host.pass_time(SECOND_NS)
        consumer.req("b", SECOND_NS)
        host.pass_time(SECOND_NS)

        assert ["a", "b", "c", "b", "b"] == consumer.take()
        assert [1, 1, 1, 2, 3] == consumer.attempts
